"""``sweep``, ``capacity`` and ``tune``: tables, files, errors and exit codes."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import SMALL, Cli

HEAVY = "synthetic:rate=16,n=10,prompt=lognormal(800,0.8),output=lognormal(10,0.6),seed=1"


def rows(text: str, heading: str) -> list[list[str]]:
    """Words of the rows of the table that begins behind a line."""
    lines = text.splitlines()
    first = lines.index(heading) + 2
    last = next(n for n in range(first, len(lines)) if not lines[n])
    return [line.split() for line in lines[first:last]]


# sweep --------------------------------------------------------------------------------------------------------------


def test_a_sweep_has_a_table_for_each_metric(cli: Cli) -> None:
    answer = cli(
        *("sweep", "vllm_v1", "b=stall_free", "--over", "rate=10,40", "--over", "B.policy.chunk_size=32,128"),
        *("--workload", SMALL, "--metrics", "mean_ttft_ms,num_steps", "--json", "out.json"),
    )
    assert (answer.code, answer.err) == (0, "")
    assert [row[:2] for row in rows(answer.out, "Mean TTFT (ms)")] == [
        ["10", "32"],
        ["10", "128"],
        ["40", "32"],
        ["40", "128"],
    ]
    assert answer.out.splitlines()[1].split() == [
        "rate",
        "B.policy.chunk_size",
        "vllm_v1",
        "b",
        "difference",
        "[interval]",
    ]
    assert "Steps" in answer.out and "ITL" not in answer.out
    found = json.loads(Path("out.json").read_text())
    assert found["axes"] == {"rate": [10, 40], "B.policy.chunk_size": [32, 128]}
    assert [point["values"]["rate"] for point in found["points"]] == [10, 10, 40, 40]
    steps = [point["summary"]["b"]["num_steps"] for point in found["points"]]
    assert steps[0] > steps[1] and steps[2] > steps[3]
    assert "runs" not in found["points"][0]


def test_fields_of_the_workload_are_swept_with_all_its_options(cli: Cli) -> None:
    """As if each point had been called by itself."""
    common = (
        "--workload",
        SMALL,
        "--rule",
        "num_prompt_tokens>50: priority=1",
        "--slo",
        "ttft=0.05",
        "--skip",
        "2",
        "-q",
        "--json",
    )
    assert (
        cli("sweep", "vllm_v1", "--over", "prompt=64,uniform(9,99)", "--over", "speedup=1,2", *common, "s.json").code
        == 0
    )
    points = json.loads(Path("s.json").read_text())["points"]
    for place, (prompt, speedup) in enumerate(
        [("64", "1"), ("64", "2"), ("uniform(9,99)", "1"), ("uniform(9,99)", "2")]
    ):
        load = SMALL.replace("uniform(20,200)", prompt)
        assert cli("run", "vllm_v1", "--speedup", speedup, *common, "r.json", "--workload", load).code == 0
        alone = json.loads(Path("r.json").read_text())["summary"]["vllm_v1"]
        assert points[place]["summary"]["vllm_v1"] == alone


def test_a_sweep_goes_on_in_its_folder(cli: Cli) -> None:
    pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    command = ("sweep", "vllm_v1", "stall_free", "--over", "rate=10,40", "--workload", SMALL, "--out", "out")
    assert cli(*command, "--json", "whole.json").code == 0
    assert json.loads(Path("out/experiment.json").read_text())["details"]["over"] == {"rate": [10, 40]}
    assert len(json.loads(Path("out/summary.json").read_text())["points"]) == 2
    if importlib.util.find_spec("matplotlib") and importlib.util.find_spec("jinja2"):
        assert "<svg" in Path("out/report.html").read_text()
    runs = {path: path.stat().st_mtime_ns for path in Path("out").glob("runs/*/run.json")}
    assert len(runs) == 4
    gone = next(iter(runs))
    gone.unlink()
    answer = cli(*command, "--resume", "--json", "again.json")
    assert (answer.code, answer.err) == (0, "")
    assert Path("again.json").read_bytes() == Path("whole.json").read_bytes()
    made = {path for path in runs if path.stat().st_mtime_ns != runs[path]}
    assert made == {gone}
    other = ("sweep", "vllm_v1", "stall_free", "--over", "rate=10,50", "--workload", SMALL, "--out", "out", "--resume")
    assert "out holds another experiment: its details have over" in cli(*other).error


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("sweep", "vllm_v1"), "there is nothing to vary"),
        (("sweep", "vllm_v1", "--over", "max_num_seq=1,2"), "did you mean 'max_num_seqs'"),
        (("sweep", "vllm_v1", "--over", "rate=1,2", "--metrics", "men_ttft_ms"), "did you mean 'mean_ttft_ms'"),
        (("sweep", "vllm_v1", "--over", "rate=1,2", "--resume"), "--resume says what becomes of the folder of --out"),
        (
            ("sweep", "vllm_v1", "--over", "rate=1,2", "--resume", "--overwrite", "--out", "x"),
            "--resume goes on with the experiment in the folder, and --overwrite replaces it",
        ),
        (("capacity", "vllm_v1"), "capacity needs to know what has to be met: give --slo 'ttft_p99<1.0"),
        (("capacity", "vllm_v1", "--slo", "ttft=1"), "says not how many have to meet them: add one, as in"),
        (("capacity", "vllm_v1", "--slo", "tfft_p99<1"), "unknown metric of --slo 'tfft_p99'; did you mean 'ttft_p99'"),
        (("capacity", "vllm_v1", "--slo", "ttft_p99<1000"), "1000 s are hardly meant; write ttft_p99<1000ms"),
        (("capacity", "vllm_v1", "--slo", "ttft_p99"), "put it into quotes: a shell takes < and > for itself"),
        (
            ("capacity", "vllm_v1", "--slo", "ttft_p99<1", "--concurrency", "4", "--duration", "3"),
            "how long 4 users take follows from the answers that they get. Each offers 50 requests",
        ),
        (("capacity", "vllm_v1", "--slo", "ttft_p99<1", "--seeds", "x"), "--seeds x: expected how many"),
        (("tune", "stall_free"), "there is nothing to tune: say what and within which range"),
        (("tune", "stall_free", "--over", "rate=int(1,2)"), "'rate' is no setting of the arm"),
        (("tune", "stall_free", "--over", "policy.chunk_size=int(9,2)"), "its range is 9 to 2"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(cli: Cli, args: tuple[str, ...], words: str) -> None:
    answer = cli(*args)
    assert answer.code == 2 and words in answer.error


# capacity -----------------------------------------------------------------------------------------------------------


def test_a_capacity_has_a_row_an_arm(cli: Cli) -> None:
    answer = cli(
        *("capacity", "vllm_v1", "b=stall_free:chunk_size=128", "--slo", "ttft=0.5,goodput>0.9,itl_p99<0.05"),
        *("--workload", HEAVY, "--seeds", "2", "--tolerance", "1", "--json", "out.json"),
    )
    assert (answer.code, answer.err) == (0, "")
    found = json.loads(Path("out.json").read_text())
    assert found["slo"] == ["goodput>0.9", "itl_p99<0.05"]
    assert found["arms"]["b"]["rate"] > found["arms"]["vllm_v1"]["rate"]
    assert "b carries" in answer.out and "no request has objectives" not in answer.out
    assert f"{found['arms']['b']['rate']:,.4g}" in answer.out


def test_a_capacity_in_users_and_one_of_a_duration(cli: Cli) -> None:
    command = ("capacity", "vllm_v1", "--slo", "itl_p99<0.02", "--seeds", "1", "--tolerance", "1", "--json", "o.json")
    answer = cli(*command, "--workload", HEAVY, "--concurrency", "2", "--highest", "8")
    assert answer.code in (0, 1) and "capacity (users)" in answer.out
    points = json.loads(Path("o.json").read_text())["arms"]["vllm_v1"]["points"]
    assert all(point["num_requests"] == 5 * point["concurrency"] for point in points)
    spec = HEAVY.replace("rate=16", "rate=4")
    # With all that else the command line says of the workload.
    options = (
        "--duration",
        "2",
        "--lowest",
        "2",
        "--highest",
        "8",
        "--rule",
        "*: priority=1",
        "--declared-max-tokens",
        "9",
    )
    answer = cli(*command, "--workload", spec, *options)
    assert "2 s of arrivals, one seed" in answer.out
    points = json.loads(Path("o.json").read_text())["arms"]["vllm_v1"]["points"]
    assert len(points) > 1 and all(point["num_requests"] == round(2 * point["rate"]) for point in points)


def test_without_a_load_that_meets_them_the_exit_code_says_so(cli: Cli) -> None:
    answer = cli("capacity", "vllm_v1", "--slo", "ttft_p99<1ms", "--workload", HEAVY, "--seeds", "1", "--lowest", "8")
    assert answer.code == 1
    assert "even the lowest load, 8 requests/s, does not meet ttft_p99<1ms" in " ".join(answer.out.split())


# tune ---------------------------------------------------------------------------------------------------------------


def test_tuning_prints_the_config_to_use(cli: Cli) -> None:
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    command = (
        *("tune", "stall_free", "--over", "policy.chunk_size=int(64,2048,log)", "--goal", "itl_p99"),
        *("--seeds", "1", "--held-out", "1", "--workload", HEAVY, "--out", "out", "--json"),
    )
    answer = cli(*command, "three.json", "--trials", "3")
    assert (answer.code, answer.err) == (0, "")
    best = json.loads(Path("three.json").read_text())["config"]["policy"]["chunk_size"]
    text = answer.out.partition("the config to use\n")[2].partition("\n\n")[0]
    assert text == f"policy:\n  use: stall_free\n  chunk_size: {best}"
    Path("best.yaml").write_text(text)
    assert cli("run", "best.yaml", "--workload", HEAVY).code == 0
    if importlib.util.find_spec("matplotlib") and importlib.util.find_spec("jinja2"):
        page = Path("out/report.html").read_text()
        assert "Tuning of stall_free" in page and f"chunk_size: {best}" in page
        Path("out/report.html").unlink()
        assert cli("report", "out", "--figures", "paper").code == 0
        assert Path("out/report.html").read_text() == page and Path("paper/parameters.pdf").is_file()
    assert cli(*command, "four.json", "--trials", "4", "--resume").code == 0
    three, four = (json.loads(Path(name).read_text())["trials"] for name in ("three.json", "four.json"))
    assert four[:3] == three and len(four) == 4
    anew = cli(*command, "anew.json", "--trials", "3")
    assert anew.code == 0 and json.loads(Path("anew.json").read_text())["trials"] == three


# ab and run ---------------------------------------------------------------------------------------------------------


def test_an_ab_goes_on_in_its_folder(cli: Cli) -> None:
    pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    command = ("ab", "vllm_v1", "stall_free", "--seeds", "2", "--workload", SMALL, "--out", "out")
    assert cli(*command, "--json", "whole.json").code == 0
    runs = {path: path.stat().st_mtime_ns for path in Path("out").glob("runs/*/run.json")}
    gone = next(iter(runs))
    gone.unlink()
    answer = cli(*command, "--resume", "--json", "again.json")
    assert (answer.code, answer.err) == (0, "")
    assert Path("again.json").read_bytes() == Path("whole.json").read_bytes()
    assert {path for path in runs if path.stat().st_mtime_ns != runs[path]} == {gone}


# Progress -----------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True


def test_progress_counts_runs_and_tells_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bars of single runs go when they are done; nothing is shown where nobody watches."""
    from batchwright.cli.output import show_progress

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", Terminal())
    with show_progress(False, "starting") as progress:
        assert progress is not None
        progress("runs", 1, 4)
        progress("vllm_v1, rate=3", 5, 20)
        time.sleep(0.3)  # it is drawn ten times a second
        progress("vllm_v1, rate=3", 20, 20)
        progress("runs", 2, 4)
        time.sleep(0.3)
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "1/4" in shown and "2/4" in shown and "left" in shown and " 5/20" in shown
    last = shown.rpartition("2/4")
    assert "rate=3" in last[0] and "rate=3" not in last[2]
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with show_progress(False, "starting") as progress:
        assert progress is None


# Ctrl-C -------------------------------------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_is_done_and_resume_goes_on(tmp_path: Path) -> None:
    """Of a sweep, as a process: 130, the table of what there is, and afterwards only the rest is run."""
    pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    policy = tmp_path / "tell.py"
    policy.write_text(
        "import time\n"
        "from pathlib import Path\n"
        "from batchwright import hookimpl\n"
        "from batchwright_policies.vllm_v1 import VllmV1\n\n"
        "class Tell(VllmV1):\n"
        "    stationary = False\n"
        "    @hookimpl\n"
        "    def step_started(self, step):\n"
        f"        calm = Path({str(tmp_path / 'calm')!r}).exists()\n"
        "        if step.limits.max_num_seqs == 8 and step.index > 3 and not calm:\n"
        f"            Path({str(tmp_path / 'begun')!r}).touch()\n"
        "            time.sleep(0.05)\n"
    )
    command = [sys.executable, "-m", "batchwright", "sweep", f"{policy}:Tell", "--over", "max_num_seqs=4,8"]
    command += ["--workload", SMALL, "--out", "out"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 60
        while not (tmp_path / "begun").exists() and time.monotonic() < end:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "* interrupted: 1 of 2 points are done" in out
    assert [row[0] for row in rows(out, "Mean TTFT (ms)")] == ["4"]
    (tmp_path / "calm").touch()
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert [row[0] for row in rows(done.stdout, "Mean TTFT (ms)")] == ["4", "8"]
    assert rows(done.stdout, "Mean TTFT (ms)")[0] == rows(out, "Mean TTFT (ms)")[0]
