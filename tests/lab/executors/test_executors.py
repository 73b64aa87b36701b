"""Runs beside each other: the same records whoever makes them."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from batchwright import BackendError, ConfigError, EngineConfig, ExperimentError, PolicyError
from batchwright.lab import ab, load_workload
from batchwright.lab.executors import Task, choose_executor
from batchwright.lab.executors.processes import Processes, work
from batchwright.lab.executors.serial import Serial
from batchwright.lab.experiment import run_tasks
from batchwright.plugins import Plugins, load_plugins
from lab.executors.jobs import ARMS, SPEC, arms, tasks

ABSENT = importlib.util.find_spec("ray") is None
EXECUTORS = [
    "processes",
    pytest.param("ray", marks=pytest.mark.skipif(ABSENT, reason="the extra 'ray' is not installed")),
]


@pytest.mark.filterwarnings("default")  # Ray has warnings of its own
@pytest.mark.parametrize("name", EXECUTORS)
def test_records_are_the_same_bytes_whoever_runs_them(name: str) -> None:
    load = load_workload(SPEC)
    told: list[tuple[str, int, int]] = []
    here = json.dumps(ab(arms(), load, seed=5).to_json())
    there = json.dumps(ab(arms(), load, seed=5, executor=name, jobs=2, progress=lambda *a: told.append(a)).to_json())
    assert there == here
    assert {(arm, 20, 20) for arm in ARMS} <= set(told)


def test_tasks_are_arms_times_seeds() -> None:
    found = run_tasks(tasks("vllm_v1", "stall_free", seeds=(0, 1)), Serial())
    assert [(o.task.arm, o.task.seed) for o in found.outcomes] == [
        (a, s) for a in ("vllm_v1", "stall_free") for s in (0, 1)
    ]
    hashes = [o.run.offered[0].prompt_hash for o in found.outcomes if o.run is not None]
    assert hashes[0] == hashes[2] != hashes[1] == hashes[3]
    assert found.error() is None and not found.was_interrupted


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["serial", *EXECUTORS])
def test_a_run_that_fails_is_named_and_stops_no_other(name: str, bad: str) -> None:
    todo = [*tasks("vllm_v1"), *tasks(f"{bad}:Rules", f"{bad}:Raises", seeds=(4,)), *tasks("stall_free")]
    found = run_tasks(todo, choose_executor(name, None if name == "serial" else 2))
    assert [run.arm for run in found.runs] == ["vllm_v1", "stall_free"]
    error = found.error()
    assert isinstance(error, ExperimentError)
    words = str(error)
    assert words.startswith(
        "2 of 4 runs failed: arm Rules, seed 4: PolicyError: policy 'Rules', hook 'chunking', step 0"
    )
    assert "arm Raises, seed 4: PolicyError" in words and "of a class that only this file knows" in words
    assert words.endswith("the other 2 went well")
    assert [run.arm for run in error.runs] == ["vllm_v1", "stall_free"]
    first = error.errors[0]
    assert isinstance(first, PolicyError) and (first.rule, first.value, first.hook) == ("range", -1, "chunking")
    if name != "serial":
        assert any("Traceback" in note and "chunk" in note for note in first.__notes__)


def test_plugins_are_loaded_once_for_all_runs_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking for them takes as long as many a run."""
    loaded: list[tuple[str, ...]] = []

    def load(names: Sequence[str] = ()) -> Plugins:
        loaded.append(tuple(names))
        return load_plugins(names)

    monkeypatch.setattr("batchwright.lab.executors.installed.load_plugins", load)
    for module in ("engine", "lab.runner", "lab.ab", "resolve"):
        monkeypatch.setattr(f"batchwright.{module}.load_plugins", None, raising=False)
    todo = [*tasks("vllm_v1", "stall_free", seeds=(0, 1)), *tasks("vllm_v1", seeds=(2,))]
    executor = Serial()
    for part in (todo[:2], todo[2:]):
        assert all(outcome.run is not None for outcome in executor.run(part))
    assert loaded == [()]
    sent: list[tuple[str, Any]] = []
    messages: list[Any] = [(place, task) for place, task in enumerate(todo[:3])]

    class Pipe:
        def recv(self) -> Any:
            if not messages:
                raise EOFError
            return messages.pop(0)

        def poll(self) -> bool:
            return False

        def send(self, message: tuple[str, Any]) -> None:
            sent.append(message)

    before = signal.getsignal(signal.SIGINT)
    try:
        work(Pipe())  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGINT, before)
    assert [kind for kind, _ in sent if kind != "progress"] == ["done"] * 3 and loaded == [(), ()]


def test_where_all_fail_alike_the_error_is_raised_as_it_is() -> None:
    todo = [
        Task(task.arm, task.config.model_copy(update={"max_model_len": 10**9}), task.workload)
        for task in tasks("vllm_v1", "stall_free")
    ]
    error = run_tasks(todo, Serial()).error()
    assert isinstance(error, ConfigError) and "1000000000" in str(error) and "arm" not in str(error)


def test_processes_are_held_for_several_calls(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search calls again and again: processes are started once. One that died is replaced."""
    from batchwright.lab.executors import processes

    made: list[Any] = []

    class Counted(processes._Worker):
        def __init__(self) -> None:
            super().__init__()
            made.append(self.process)

    monkeypatch.setattr(processes, "_Worker", Counted)
    with Processes(1) as executor:
        first = run_tasks(tasks("vllm_v1"), executor).runs
        assert run_tasks(tasks("vllm_v1"), executor).runs == first and len(made) == 1
        assert run_tasks(tasks(f"{bad}:Dies"), executor).error() is not None
        assert run_tasks(tasks("vllm_v1"), executor).runs == first and len(made) == 2
        assert made[1].is_alive()
    assert not any(process.is_alive() for process in made)
    run_tasks(tasks("vllm_v1"), executor)
    assert len(made) == 3 and not made[2].is_alive()


def test_a_process_that_dies_loses_its_own_run_only(bad: str) -> None:
    found = run_tasks([*tasks("vllm_v1"), *tasks(f"{bad}:Dies"), *tasks("stall_free", seeds=(0, 1))], Processes(1))
    assert [run.arm for run in found.runs] == ["vllm_v1", "stall_free", "stall_free"]
    (error,) = [o.error for o in found.outcomes if o.error is not None]
    assert isinstance(error, BackendError) and "exit code 3" in str(error)


def test_ab_raises_what_holds_the_other_arms(bad: str) -> None:
    from batchwright.lab import compare

    configs = {"a": EngineConfig(policy="vllm_v1"), "bad": EngineConfig(policy=f"{bad}:Rules"), "b": EngineConfig()}
    with pytest.raises(ExperimentError) as caught:
        ab(configs, load_workload(SPEC))
    assert [run.arm for run in compare(caught.value.runs).runs] == ["a", "b"]
