"""``--noise``: chance in a simulator's step times, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

from batchwright.cli.arms import make_arms
from batchwright.cli.options import EngineOptions

from .conftest import Cli

LOAD = ["--workload", "synthetic:rate=5,n=12,prompt=50,output=30"]


def durations(path: str) -> list[list[float]]:
    runs = json.loads(Path(path).read_text())["runs"]
    return [[s["end_s"] - s["start_s"] for s in run["steps"]] for run in runs]


def test_each_arm_draws_its_own_noise_and_the_same_again(cli: Cli) -> None:
    for name in ("one.json", "two.json"):
        answer = cli("ab", "a=vllm_v1", "b=vllm_v1", "--noise", "0.1", *LOAD, "--json", name)
        assert answer.code == 0
        assert "leapt" in answer.out and "backend_options.noise_seed" in answer.out
    a, b = durations("one.json")
    assert durations("two.json") == [a, b] and a != b
    assert len({round(d, 5) for d in a}) > 5


def test_noise_keeps_the_other_options_of_the_backend() -> None:
    options = EngineOptions(set_=["backend_options.host_step_s=0.001"], noise=0.2)
    arms = make_arms(["vllm_v1", "stall_free"], options)
    assert [arm.config.backend_options for arm in arms] == [
        {"host_step_s": 0.001, "noise": 0.2, "noise_seed": number} for number in range(2)
    ]
    assert arms[0].origins["backend_options.noise"] == "--noise"


def test_noise_out_of_range(cli: Cli) -> None:
    answer = cli("run", "vllm_v1", "--noise=-1", *LOAD)
    assert answer.code == 2 and "noise = -1.0" in answer.error
