"""``--out``, ``--trace`` and ``--metrics`` of ``run`` and ``ab``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchwright.lab import RunRecord, compare
from batchwright.lab.files import Folder

from .conftest import SMALL, TIGHT, Cli

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'batchwright[parquet]'")


@pytest.fixture(autouse=True)
def no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and figures take seconds to draw, and have tests of their own."""
    monkeypatch.setattr("batchwright.cli.experiment.write_pages", lambda *_, **__: None)


def files(folder: str) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def test_a_folder_holds_what_the_json_file_holds(cli: Cli) -> None:
    command = (
        "ab",
        "prefill_first",
        "b=vllm_v1",
        "--workload",
        SMALL,
        "--seeds",
        "2",
        "--out",
        "kept",
        "--json",
        "a.json",
    )
    answer = cli(*command)
    assert answer.code == 0, answer.err
    labels = ["prefill_first-seed_0", "b-seed_0", "prefill_first-seed_1", "b-seed_1"]
    folder = Folder("kept")
    assert sorted(folder.labels()) == sorted(labels)
    for label in labels:
        assert {f"runs/{label}/{name}" for name in ("run.json", "requests.parquet", "steps.parquet")} <= set(
            files("kept")
        )
    written = json.loads(Path("a.json").read_text())
    runs = {(run["arm"], run["seed"]): RunRecord.from_json(run) for run in written["runs"]}
    assert {(run.arm, run.seed): run for run in folder.read_runs()} == runs
    summary = folder.summary()
    assert summary["summary"] == written["summary"]
    assert summary["verdicts"] == written["verdicts"]
    assert "runs" not in summary
    experiment = folder.experiment()
    assert experiment["design"] == "ab"
    assert list(experiment["arms"]) == ["prefill_first", "b"]
    assert experiment["seeds"] == [0, 1]
    assert experiment["workload"]["num_requests"] == 12
    assert compare(folder.read_runs()).summaries == written["summary"]


def test_the_same_again_gives_the_same_bytes(cli: Cli) -> None:
    found = []
    for folder in ("kept", "kept", "other"):
        assert cli("run", "vllm_v1", "--workload", SMALL, "--out", folder).code == 0
        # experiment.json holds the command.
        found.append({name: Path(folder, name).read_bytes() for name in files(folder) if name != "experiment.json"})
    assert found[0] == found[1] == found[2]


def test_another_experiment_is_not_written_over(cli: Cli) -> None:
    assert cli("run", "vllm_v1", "--workload", SMALL, "--out", "kept").code == 0
    before = {name: Path("kept", name).read_bytes() for name in files("kept")}
    answer = cli("run", "vllm_v1", "--workload", TIGHT, "--out", "kept")
    assert answer.code == 2
    assert "kept holds another experiment: its workload is" in answer.error
    assert "--overwrite" in answer.error
    assert {name: Path("kept", name).read_bytes() for name in files("kept")} == before
    assert cli("run", "vllm_v1", "--workload", TIGHT, "--out", "kept", "--overwrite").code == 0
    assert Folder("kept").experiment()["workload"]["name"] == TIGHT


def test_a_folder_of_other_files_is_refused_before_anything_runs(cli: Cli) -> None:
    Path("kept").mkdir()
    Path("kept/thesis.tex").write_text("mine")
    answer = cli("run", "vllm_v1", "--workload", SMALL, "--out", "kept", "--overwrite")
    assert answer.code == 2
    assert "holds files that are no experiment of Batchwright's" in answer.error
    assert files("kept") == ["thesis.tex"]


def test_overwrite_alone_says_nothing(cli: Cli) -> None:
    assert "folder of --out: name one" in cli("run", "vllm_v1", "--workload", SMALL, "--overwrite").error


def test_a_trace_has_all_runs(cli: Cli) -> None:
    answer = cli("ab", "vllm_v1", "stall_free", "--workload", SMALL, "--trace", "t.json", "--json", "a.json")
    assert answer.code == 0, answer.err
    events = json.loads(Path("t.json").read_text())["traceEvents"]
    runs = json.loads(Path("a.json").read_text())["runs"]
    assert sum(event["ph"] == "X" for event in events) == sum(len(run["steps"]) for run in runs)
    assert "no folder nowhere" in cli("run", "--workload", SMALL, "--trace", "nowhere/t.json").error


def test_the_table_has_the_metrics_that_are_named(cli: Cli) -> None:
    answer = cli("run", "vllm_v1", "--workload", SMALL, "--metrics", "kv_use_peak,p99_batch_size,jain_fairness")
    assert answer.code == 0
    for words in ("KV use, peak (%)", "P99 batch size", "Jain's fairness index"):
        assert words in answer.out
    assert "TTFT" not in answer.out
    wrong = cli("run", "vllm_v1", "--workload", SMALL, "--metrics", "kv_use")
    assert wrong.code == 2
    assert "there is no metric 'kv_use'; did you mean 'kv_use_peak' or 'kv_use_mean'" in wrong.error
    assert "Mean time waiting" in cli("run", "vllm_v1", "--workload", SMALL, "--metrics", "all").out


@pytest.mark.parametrize("option", [("--out", "kept"), ("--trace", "t.json"), ("--metrics", "all")])
def test_agree_has_none_of_these(cli: Cli, option: tuple[str, str]) -> None:
    backends = ("--backend", "sim:llama-3.1-8b@h100,sim:llama-3.1-8b@a100")
    answer = cli("ab", "vllm_v1", "stall_free", "--agree", *backends, "--workload", SMALL, *option)
    assert answer.code == 2
    assert f"leave {option[0]} out" in answer.error


def test_classes_of_requests_have_a_table(cli: Cli) -> None:
    rows = [
        {
            "arrival_s": 0.1 * i,
            "num_prompt_tokens": 50,
            "num_output_tokens": 5,
            "slo_class": name,
            "slo": {"ttft_s": goal},
        }
        for i, (name, goal) in enumerate([("chat", 1.0), ("code", 1e-6)] * 4)
    ]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    answer = cli("run", "vllm_v1", "--workload", "rows.jsonl", "--out", "kept")
    assert answer.code == 0, answer.err
    table = answer.out.partition("classes of vllm_v1")[2].splitlines()
    assert [line.split()[:3] for line in table[1:3]] == [["chat", "4", "100.0"], ["code", "4", "0.0"]]
    assert Folder("kept").summary()["classes"]["vllm_v1"]["chat"]["slo_attainment"] == 1


def test_a_report_of_the_folder_has_the_table_of_the_run(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'batchwright[report]'")
    monkeypatch.setattr("batchwright.cli.pages.write_pages", lambda *_, **__: None)
    strict = ("--level", "0.8", "--primary", "mean_e2el_ms", "--seed", "5", "--warmup", "10%")
    answer = cli("ab", "prefill_first", "vllm_v1", "--workload", TIGHT, *strict, "--out", "kept")
    assert answer.code == 0, answer.err
    again = cli("report", "kept")
    assert again.code == 0, again.err
    # Whether steps were leapt is not in the records.
    assert again.out.splitlines() == [line for line in answer.out.splitlines() if not line.startswith("leapt")]


def test_results_of_vllms_benchmark_are_reported_side_by_side(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'batchwright[report]'")
    monkeypatch.setattr("batchwright.cli.pages.write_pages", lambda *_, **__: None)
    saved = json.loads((Path(__file__).parents[1] / "lab" / "vllm_bench_serve_0.32.0.json").read_text())
    Path("before.json").write_text(json.dumps(saved))
    Path("after.json").write_text(json.dumps({**saved, "ttfts": [2 * t for t in saved["ttfts"]]}))
    answer = cli("report", "before.json", "after.json", "--metrics", "ttft,num_steps")
    assert answer.code == 0, answer.err
    assert "+100% [+100, +100] worse" in answer.out
    Path("wrong.json").write_text("{}")
    wrong = cli("report", "before.json", "wrong.json")
    assert wrong.code == 2
    assert "wrong.json has no duration: it is no result of vllm bench serve" in wrong.error
