"""What bad input gets: one sentence with a way on, and nothing else disturbed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL, Cli

Write = Callable[[str, str], Path]

GOOD_ROW = '{"arrival_s": 0.1, "num_prompt_tokens": 3, "num_output_tokens": 2}\n'


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.jsonl", GOOD_ROW + '{"arrival_s": 0.2, "num_prompt_tokens": 3}\n', "line 2"),
        ("t.jsonl", GOOD_ROW * 2 + '{"arrival_s": "x", "num_prompt_tokens": 3, "num_output_tokens": 2}\n', "line 3"),
        ("t.jsonl", GOOD_ROW + "{no json\n", "line 2"),
        ("t.jsonl", GOOD_ROW + GOOD_ROW.replace("3", "0"), "line 2"),
        (
            "t.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,three,2\n",
            "line 3",
        ),
    ],
)
def test_a_trace_with_a_broken_row(cli: Cli, write: Write, name: str, text: str, words: str) -> None:
    write(name, text)
    for command in (["run", "prefill_first"], ["ab", "prefill_first", "stall_free"], ["diff", "vllm_v1", "stall_free"]):
        answer = cli(*command, "--workload", name)
        assert answer.code == 2
        assert name in answer.error and words in answer.error


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ("absent.csv", "cannot read absent.csv"),
        ("synthetic:rat=4", "did you mean 'rate'?"),
        ("synthetic:rate=0", "rate of a synthetic workload is '0'"),
        ("synthetic:n=many", "n of a synthetic workload"),
    ],
)
def test_a_workload_that_is_none(cli: Cli, workload: str, words: str) -> None:
    answer = cli("run", "prefill_first", "--workload", workload)
    assert answer.code == 2
    assert words in answer.error


def test_a_file_of_no_known_format(cli: Cli, write: Write) -> None:
    write("notes.txt", "dear diary\n")
    assert "'dear diary'" in cli("run", "prefill_first", "--workload", "notes.txt").error


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--speedup", "0"], "speedup"),
        (["--speedup", "nan"], "speedup"),
        (["--limit", "0"], "limit"),
        (["--declared-max-tokens", "all"], "exact, model or a whole number"),
        (["--declared-max-tokens", "0"], "exact, model or a whole number"),
        (["--max-steps", "0"], "max_steps"),
        (["--max-seconds", "-1"], "max_seconds"),
        (["--seed", "-1"], "seed"),
        (["--limit", "x"], "--limit"),
        (["--workloads", "x"], "No such option: --workloads"),
    ],
)
def test_options_out_of_their_range(cli: Cli, args: list[str], words: str) -> None:
    answer = cli("run", "prefill_first", "--workload", SMALL, *args)
    assert answer.code == 2
    assert words in answer.error


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("sim:llama-3.1-70b@h100", "does not fit h100"),
        ("sim:llama-3.1-8b@h10", "'h100'"),
        ("sim:lama-3.1-8b@h100", "'llama-3.1-8b'"),
        ("sims:llama-3.1-8b@h100", "did you mean 'sim'?"),
        ("sim:llama-3.1-8b", "says no GPU"),
        ("", "unknown backend"),
    ],
)
def test_a_backend_that_cannot_be_had(cli: Cli, backend: str, words: str) -> None:
    for command in (["run", "prefill_first"], ["ab", "prefill_first", "stall_free"], ["diff", "vllm_v1", "stall_free"]):
        answer = cli(*command, "--backend", backend, "--workload", SMALL)
        assert answer.code == 2
        assert words in answer.error


def test_a_config_that_fits_no_memory(cli: Cli) -> None:
    args = ["--set", "backend_options.gpu_memory_utilization=0.01"]
    answer = cli("run", "prefill_first", "--workload", SMALL, *args)
    assert answer.code == 2
    assert "no KV block is left" in answer.error and "gpu_memory_utilization" in answer.error


def test_a_model_folder_that_is_none(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the cpu backend needs torch")
    (tmp_path / "model").mkdir()
    answer = cli("run", "prefill_first", "--backend", f"cpu:{tmp_path / 'model'}", "--workload", SMALL)
    assert answer.code == 2
    assert "config.json" in answer.error and str(tmp_path / "model") in answer.error


def test_cuda_without_a_gpu_fails_in_one_sentence(cli: Cli) -> None:
    if any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg"))):
        pytest.skip("this machine has a GPU")
    answer = cli("run", "prefill_first", "--backend", "cuda:smollm2-135m", "--workload", SMALL)
    assert answer.code == 2
    assert "cuda:smollm2-135m cannot run here" in answer.error


def test_more_tokens_than_the_model_takes(cli: Cli) -> None:
    answer = cli("run", "prefill_first", "--set", "max_model_len=200000", "--workload", SMALL)
    assert answer.code == 2
    assert "200000" in answer.error and "131072" in answer.error


def refused(cli: Cli, write: Write, rows: list[tuple[int, int]], *args: str) -> dict[str, str]:
    """Requests that are refused with their errors; the others must finish."""
    write(
        "t.jsonl",
        "".join(
            json.dumps({"arrival_s": 0, "num_prompt_tokens": p, "num_output_tokens": o, "max_tokens": o}) + "\n"
            for p, o in rows
        ),
    )
    sets = [part for arg in args for part in ("--set", arg)]
    answer = cli("run", "prefill_first", "--workload", "t.jsonl", *sets, "--json", "out.json")
    found = {}
    for request in json.loads(Path("out.json").read_text())["runs"][0]["requests"]:
        if request["status"] == "refused":
            found[request["request_id"]] = request["error"]
        else:
            assert request["status"] == "finished"
    if found:
        assert f"{len(found)} refused" in answer.out
    return found


def test_scenario_f1_a_request_that_can_never_fit(cli: Cli, write: Write) -> None:
    found = refused(cli, write, [(12, 4), (3, 2)], "block_size=4", "num_blocks=2")
    assert list(found) == ["r000000"]
    assert "4" in found["r000000"] and "2" in found["r000000"]


def test_scenario_f2_both_sides_of_the_boundary(cli: Cli, write: Write) -> None:
    found = refused(cli, write, [(8, 4), (4, 5), (4, 6)], "block_size=4", "num_blocks=2")
    assert list(found) == ["r000000", "r000002"]


def test_scenario_f4_a_prompt_as_long_as_the_model(cli: Cli, write: Write) -> None:
    found = refused(cli, write, [(31, 4), (32, 4), (33, 4)], "max_model_len=32")
    assert list(found) == ["r000001", "r000002"]
    assert "32" in found["r000001"] and "33" in found["r000002"] and "32" in found["r000002"]


def test_scenario_f6_accepted_and_admitted_by_one_predicate(cli: Cli, write: Write) -> None:
    assert not refused(cli, write, [(992, 32)], "block_size=16", "num_blocks=64")


def test_commands_that_do_not_exist(cli: Cli) -> None:
    answer = cli("abb", "prefill_first", "stall_free")
    assert answer.code == 2
    assert "abb" in answer.error and "batchwright --help" in answer.error


def test_debug_shows_the_traceback(cli: Cli) -> None:
    from typer.testing import CliRunner

    from batchwright import ConfigError
    from batchwright.cli.app import app

    for args in (["run", "nobody", "--debug"], ["--debug", "run", "nobody"], ["policies", "nobody", "--debug"]):
        result = CliRunner().invoke(app, args)
        assert isinstance(result.exception, ConfigError)


def test_a_fault_of_ours_is_told_as_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("batchwright.plugins.load_plugins", fail)
    answer = cli("plugins")
    assert answer.code == 1
    assert answer.error.startswith("ZeroDivisionError: division by zero") and "--debug" in answer.error
