"""Records of a simulated run are the same, byte by byte, whether its steps are taken at once or one by one."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from batchwright import Engine, EngineConfig, Policy, Request, hookimpl
from batchwright.active_policy import is_stationary
from batchwright.lab import RunRecord, load_workload, run_arm
from batchwright.leap import Leap
from batchwright.plugins import load_plugins
from batchwright.step import Step
from toolbox import make_request

STATIONARY = sorted(name for name, policy in load_plugins().policies.items() if is_stationary(policy()))
BACKEND = "sim:llama-3.1-8b@h100"


def run(workload: str, *, leap: bool, **config: Any) -> RunRecord:
    return run_arm(EngineConfig.parse({"backend": BACKEND, **config}), load_workload(workload), leap=leap)


def both(workload: str, **config: Any) -> RunRecord:
    """The run with leaps, which is the run without them."""
    leapt, single = run(workload, leap=True, **config), run(workload, leap=False, **config)
    assert leapt.dumps() == single.dumps()
    assert leapt == single and single.num_leapt == 0
    return leapt


workloads = st.builds(
    "synthetic:rate={},n={},prompt=uniform(1,{}),output=uniform(1,{}),burstiness={},prefix={},seed={}".format,
    st.sampled_from(["2", "20", "200", "inf"]),
    st.integers(2, 40),
    st.sampled_from([4, 60, 300]),
    st.sampled_from([3, 40, 200]),
    st.sampled_from([0.2, 1, 5]),
    st.sampled_from([0, 0, 33]),
    st.integers(0, 99),
)
configs = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from([80, 200, 5000]),
        "block_size": st.sampled_from([4, 16, 16]),
        "max_num_seqs": st.sampled_from([3, 16, 256]),
        "max_num_batched_tokens": st.sampled_from([600, 8192]),
        "prefix_cache": st.fixed_dictionaries(
            {},
            optional={
                "enabled": st.booleans(),
                "visible": st.sampled_from(["computed", "scheduled"]),
                "reuse": st.sampled_from(["oldest_freed", "uncached_first"]),
                "duplicates": st.sampled_from(["newest", "oldest"]),
            },
        ),
        "detectors": st.sampled_from([{}, {"starvation_s": 0.05, "thrash_share": 0.01, "thrash_steps": 7}]),
        "backend_options": st.sampled_from([{}, {"noise": 0.2, "noise_seed": 3}]),
        "seed": st.integers(0, 3),
    }
)


@pytest.mark.parametrize("policy", STATIONARY)
def test_records_are_the_same(policy: str) -> None:
    num_leapt = num_steps = 0

    @settings(
        max_examples=8,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(workload=workloads, config=configs)
    def one(workload: str, config: dict[str, Any]) -> None:
        nonlocal num_leapt, num_steps
        found = both(workload, policy=policy, **config)
        num_leapt += found.num_leapt
        num_steps += len(found.steps)

    one()
    assert num_leapt > 0.1 * num_steps, (num_leapt, num_steps)


def test_composites_leap_if_all_their_policies_are_stationary() -> None:
    workload = "synthetic:rate=5,n=20,prompt=100,output=60"
    policy = {"admission": "sjf", "chunking": "stall_free", "preemption": "vllm_v1"}
    assert both(workload, policy=policy).num_leapt > 100
    assert both(workload, policy={**policy, "preemption": "cheapest"}).num_leapt == 0


@pytest.mark.parametrize("limits", [{"max_steps": 37}, {"max_seconds": 0.71}, {"max_steps": 60, "max_seconds": 1.3}])
def test_a_run_that_is_stopped_ends_in_the_same_step(limits: dict[str, Any]) -> None:
    config = EngineConfig.parse({"backend": BACKEND, "policy": "vllm_v1"})
    workload = load_workload("synthetic:rate=3,n=9,prompt=50,output=80")
    leapt, single = (run_arm(config, workload, leap=leap, **limits) for leap in (True, False))
    assert leapt.num_leapt > 10 and leapt.dumps() == single.dumps()
    assert leapt.stopped == next(iter(limits))


def test_a_model_with_sliding_windows_and_another_model() -> None:
    for model in ("mistral-7b", "qwen2.5-7b", "mixtral-8x7b"):
        found = both("synthetic:rate=5,n=12,prompt=200,output=60", policy="vllm_v1", backend=f"sim:{model}@h100x2")
        assert found.num_leapt > 100


def test_who_waits_without_room_does_not_keep_steps_from_being_leapt() -> None:
    found = both("synthetic:rate=inf,n=12,prompt=60,output=uniform(150,400)", policy="vllm_v1", max_num_seqs=4)
    waiting = [s for s in found.steps if s.num_waiting]
    assert found.num_leapt > 0.8 * len(found.steps) > 0.4 * len(waiting) > 100


# Who keeps steps from being leapt ---------------------------------------------------------------------------------


class Watcher:
    name = "watcher"

    def __init__(self) -> None:
        self.indices: list[int] = []


class WantsEveryStep(Watcher):
    @hookimpl
    def step_finished(self, step: Step) -> None:
        self.indices.append(step.index)


class TakesLeaps(WantsEveryStep):
    @hookimpl
    def steps_leapt(self, leap: Leap) -> None:
        assert len(leap.starts_ns) == len(leap.ends_ns) == len(leap.free_blocks) == len(leap.token_ids) == len(leap)
        assert leap.starts_ns[0] == leap.start_ns and leap.starts_ns[1:] == list(leap.ends_ns[:-1])
        self.indices += range(leap.first_index, leap.first_index + len(leap))


class Starts(Watcher):
    @hookimpl
    def step_started(self, step: Step) -> None:
        self.indices.append(step.index)


def test_an_observer_of_single_steps_is_told_of_all_of_them() -> None:
    config = EngineConfig.parse({"backend": BACKEND, "policy": "vllm_v1"})
    workload = load_workload("synthetic:rate=3,n=9,prompt=50,output=80")
    for make, leaps in ((WantsEveryStep, False), (Starts, False), (TakesLeaps, True)):
        watcher = make()
        found = run_arm(config, workload, plugins=[watcher])
        assert bool(found.num_leapt) == leaps
        assert watcher.indices == list(range(len(found.steps)))


class Decides:
    name = "decides"

    @hookimpl
    def chunking(self, step: Step, request: Request) -> None:
        return None


class CountsSteps(Policy):
    """Stationary, and told of every step it takes part in."""

    stationary = True

    @hookimpl
    def step_finished(self, step: Step) -> None:
        pass


def test_a_plugin_that_decides_and_a_policy_that_observes_steps_keep_them_single() -> None:
    workload = load_workload("synthetic:rate=3,n=9,prompt=50,output=80")
    config = EngineConfig.parse({"backend": BACKEND, "policy": "vllm_v1"})
    assert run_arm(config, workload, plugins=[Decides()]).num_leapt == 0
    assert run_arm(config, workload, policy=CountsSteps()).num_leapt == 0
    assert run_arm(EngineConfig.parse({"backend": BACKEND, "policy": "vtc"}), workload).num_leapt == 0


def test_an_engine_leaps_only_where_nothing_can_be_decided() -> None:
    with Engine(EngineConfig.parse({"backend": BACKEND, "policy": "vllm_v1"})) as engine:
        assert engine.leap() == 0  # nobody is there
        engine.add_request(make_request("a", 10, 100))
        assert engine.leap() == 0  # it waits
        engine.advance()
        assert engine.leap(max_steps=0) == 0
        assert engine.leap(max_steps=6) == 6  # that step was its prompt, and all residents decode now
        assert engine.scheduler.step.index == 6 and engine.scheduler.num_leapt == 6
        now = engine.clock.now_ns()
        assert engine.leap(until_ns=now) == 0 and engine.leap(until_ns=now + 1) == 1
        engine.add_request(make_request("b", 10, 100))
        assert engine.leap() == 0  # it could be admitted
        engine.advance()
        assert engine.leap(max_steps=2) == 2
        engine.abort("b")
        request = engine.scheduler.get("a")
        assert engine.leap(max_steps=1) == 1  # nobody waits for its room
        while engine.leap():
            pass
        assert request is not None and request.num_output_tokens == 100  # it ended with the last step
        assert request.is_finished and not engine.has_unfinished() and engine.leap() == 0


def test_where_somebody_waits_an_end_is_asked_about() -> None:
    with Engine(EngineConfig.parse({"backend": BACKEND, "policy": "vllm_v1", "max_num_seqs": 2})) as engine:
        for name, length in (("a", 9), ("b", 20), ("c", 20)):
            engine.add_request(make_request(name, 10, length))
        engine.advance()
        assert engine.leap() == 0  # they were admitted: who waits was not refused in a step like the next
        engine.advance()
        assert engine.leap() == 7 and [r.request_id for r in engine.scheduler.step.finished] == ["a"]
        assert engine.leap() == 0  # its seat is free
        engine.advance()
        assert [r.request_id for r in engine.scheduler.running] == ["b", "c"]
        assert engine.leap() > 0  # nobody waits


def test_requests_with_stop_tokens_end_where_they_would() -> None:
    tokens: list[list[int]] = []
    for leap in (False, True):
        with Engine(EngineConfig.parse({"backend": BACKEND, "policy": "vllm_v1"})) as engine:
            first = make_request("a", 10, 60, seed=7)
            engine.add_request(first)
            while engine.has_unfinished():
                engine.advance()
            stop = first.output_token_ids[33]
            assert stop not in first.output_token_ids[:33]
            again = make_request("b", 10, 60, seed=7, stop_token_ids=(stop,))
            engine.add_request(again)
            while engine.has_unfinished():
                if not leap or not engine.leap():
                    engine.advance()
            assert again.finish_reason == "stop" and again.num_output_tokens == 34
            assert bool(engine.scheduler.num_leapt) == leap
            tokens.append(list(again.output_token_ids))
    assert tokens[0] == tokens[1]


# From process to process -------------------------------------------------------------------------------------------

SCRIPT = """
import hashlib, sys
from batchwright import EngineConfig
from batchwright.lab import load_workload, run_arm
config = EngineConfig.parse({"backend": "sim:llama-3.1-8b@h100", "policy": sys.argv[1], "num_blocks": 400,
                             "backend_options": {"noise": 0.1}})
workload = load_workload("synthetic:rate=20,n=30,prompt=uniform(10,400),output=uniform(10,90),prefix=40,prefixes=3")
print(hashlib.sha256(run_arm(config, workload, leap=sys.argv[2] == "leap").dumps().encode()).hexdigest())
"""


@pytest.mark.parametrize("policy", ["vllm_v1", "priority"])
def test_records_are_the_same_in_every_process(policy: str) -> None:
    seen = set()
    for salt, leap in (("0", "leap"), ("1", "leap"), ("2", "single")):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, policy, leap],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        )
        seen.add(done.stdout)
    assert len(seen) == 1
