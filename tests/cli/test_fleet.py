"""Fleets and runs beside each other, from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL, TIGHT, Cli

Write = Callable[[str, str], Path]

BAD = """
from batchwright import hookimpl
from batchwright_policies.vllm_v1 import VllmV1

class Bad(VllmV1):
    "Breaks a rule."

    @hookimpl
    def chunking(self, step, request):
        return -1
"""


def test_routers_are_arms(cli: Cli) -> None:
    args = ["rr=vllm_v1", "pa=vllm_v1", "--set", "replicas=3", "--arm-set", "pa.router=prefix_aware:load_weight=2"]
    answer = cli("ab", *args, "--workload", SMALL, "--json", "out.json")
    assert answer.code == 0, answer.err
    result = json.loads(Path("out.json").read_text())
    routers = [run["settings"]["router"] for run in result["runs"]]
    assert routers == [{"use": "round_robin"}, {"use": "prefix_aware", "load_weight": 2.0, "cache_threshold": 0.3}]
    assert [run["settings"]["replicas"] for run in result["runs"]] == [3, 3]
    assert {r["replica"] for r in result["runs"][0]["requests"]} == {0, 1, 2}
    assert [len(result["replicas"][arm]) for arm in ("rr", "pa")] == [3, 3]
    assert "replicas of rr" in answer.out and "router prefix_aware" in " ".join(answer.out.split())
    assert all(len(line) <= 80 for line in answer.out.splitlines())


def test_one_setting_of_a_router(cli: Cli, write: Write) -> None:
    write("fleet.yaml", "policy: vllm_v1\nreplicas: 2\nrouter: {use: random, choices: 2}\n")
    sets = ["--set", "router.choices=1"]
    assert cli("run", "fleet.yaml", "--workload", SMALL, "--json", "out.json", "--quiet").code == 0
    assert _router() == {"use": "random", "choices": 2}
    assert cli("run", "--config", "fleet.yaml", *sets, "--workload", SMALL, "--json", "out.json", "--quiet").code == 0
    assert _router() == {"use": "random", "choices": 1}
    args = ["--config", "fleet.yaml", "--set", "router=prefix_aware"]
    assert cli("run", *args, "--workload", SMALL, "--json", "out.json", "--quiet").code == 0
    assert _router() == {"use": "prefix_aware", "load_weight": 1.0, "cache_threshold": 0.3}
    shown = cli("config", "show", "fleet.yaml", "--with-backend").out
    assert "replicas" in shown and "use: random, choices: 2" in " ".join(shown.split())


def _router() -> object:
    return json.loads(Path("out.json").read_text())["runs"][0]["settings"]["router"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--set", "replicas=2", "--backend", "cpu:smollm2-135m"], "runs in real time"),
        (["--set", "replicas=0"], "replicas is 0"),
        (["--set", "router=rand"], "did you mean 'random'?"),
        (["--set", "router.choices=2"], "router: use must name a router"),
        (["--set", "router=random:choices=0"], "'choices' is 0"),
        (["--set", "replicas=2", "--record", "x.jsonl"], "--record x.jsonl: it holds the decisions of one engine"),
        (["--set", "replicas=2", "--explain", "x.jsonl"], "leave --explain out, or set replicas=1"),
    ],
)
def test_what_cannot_be_a_fleet(cli: Cli, args: list[str], words: str) -> None:
    answer = cli("run", "vllm_v1", "--workload", SMALL, *args)
    assert answer.code == 2
    assert words in answer.error


def test_commands_that_show_one_engine_say_so(cli: Cli) -> None:
    answer = cli("diff", "vllm_v1", "lpm", "--workload", SMALL, "--set", "replicas=2")
    assert answer.code == 2 and "an Engine is one" in answer.error


def test_routers_are_listed_and_told_about(cli: Cli) -> None:
    out = cli("policies").out
    rows = {line.split()[0] for line in out.splitlines() if line[:1].strip()}
    assert {"router", "round_robin", "least_outstanding", "random", "prefix_aware"} <= rows
    whole = cli("policies", "prefix_aware").out
    assert "Mooncake" in whole and "load_weight" in whole and "hooks: routing" in whole and "declares" not in whole
    card = cli("policies", "--card", "prefix_aware")
    assert card.code == 0 and "prefix_aware.py:" in card.out and "KVCache" not in card.err
    assert "routers: least_outstanding, prefix_aware, random, round_robin" in " ".join(cli("plugins").out.split())


def test_a_router_in_a_file_is_told_about(cli: Cli, write: Write) -> None:
    write(
        "mine.py",
        """
        from batchwright import Router, hookimpl

        class Last(Router):
            "The last replica."

            @hookimpl
            def routing(self, fleet):
                return len(fleet) - 1
        """,
    )
    assert "The last replica." in cli("policies", "mine.py:Last").out
    answer = cli(
        "run", "vllm_v1", "--set", "replicas=2", "--set", "router=mine.py:Last", "--workload", SMALL, "--json", "o"
    )
    assert answer.code == 0
    assert {r["replica"] for r in json.loads(Path("o").read_text())["runs"][0]["requests"]} == {1}
    answer = cli("policies", "mine.py:Lost")
    assert answer.code == 2 and "has no policy class 'Lost'" in answer.error


# Runs beside each other ---------------------------------------------------------------------------------------------


def test_jobs_give_the_same_bytes(cli: Cli) -> None:
    arms = ["vllm_v1", "stall_free", "four=vllm_v1"]
    args = ["--workload", TIGHT, "--set", "num_blocks=60", "--arm-set", "four.replicas=4", "--quiet"]
    for name, more in (("one", []), ("two", ["--jobs", "2"])):
        assert cli("ab", *arms, *args, *more, "--json", f"{name}.json").code == 0
    assert Path("one.json").read_bytes() == Path("two.json").read_bytes()


def test_an_arm_that_fails_is_named_after_the_report_of_the_others(cli: Cli, write: Write) -> None:
    write("bad.py", BAD)
    args = ["vllm_v1", "mine=bad.py:Bad", "stall_free", "--workload", SMALL, "--seed", "3"]
    answer = cli("ab", *args, "--json", "out.json")
    assert answer.code == 1
    assert answer.err.startswith(
        "error: 1 of 3 runs failed: arm mine, seed 3: PolicyError: policy 'Bad', hook 'chunking'"
    )
    assert len(answer.err.splitlines()) == 1
    assert "vllm_v1" in answer.out and "stall_free" in answer.out and "Mean TTFT" in answer.out
    assert [run["arm"] for run in json.loads(Path("out.json").read_text())["runs"]] == ["vllm_v1", "stall_free"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--jobs", "0"], "jobs must be a whole number of at least 1, not 0"),
        (["--executor", "threads"], "choices: processes, ray, serial"),
        (["--executor", "serial", "--jobs", "2"], "one after the other"),
        (["--jobs", "2", "--backend", "cpu:smollm2-135m"], "runs in real time"),
        (
            ["--agree", "--jobs", "2", "--backend", "sim:llama-3.1-8b@h100,cpu:smollm2-135m"],
            "leave --jobs and --executor out",
        ),
    ],
)
def test_jobs_that_cannot_be(cli: Cli, args: list[str], words: str) -> None:
    answer = cli("ab", "vllm_v1", "stall_free", "--workload", SMALL, *args)
    assert answer.code == 2
    assert words in answer.error


def test_ctrl_c_reports_what_the_processes_had_done(tmp_path: Path) -> None:
    marker = tmp_path / "begun"
    (tmp_path / "tell.py").write_text(
        "from pathlib import Path\n"
        "from batchwright import hookimpl\n"
        "from batchwright_policies.prefill_first import PrefillFirst\n\n"
        "class Tell(PrefillFirst):\n"
        "    @hookimpl\n"
        "    def step_started(self, step):\n"
        "        if step.index >= 50:\n"
        f"            Path({str(marker)!r}).touch()\n"
    )
    long = "synthetic:rate=40,n=8000,prompt=200,output=200"
    args = ["ab", "tell.py:Tell", "stall_free", "vllm_v1", "--jobs", "2", "--workload", long, "--json", "out.json"]
    command = [sys.executable, "-m", "batchwright", *args]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        end = time.monotonic() + 60
        while not marker.exists() and time.monotonic() < end:
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everybody gets it
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err == ""
    assert "interrupted" in out and "Finished" in out
    runs = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert "tell.py:Tell" in {run["arm"] for run in runs} and {run["stopped"] for run in runs} == {"interrupted"}
