"""What an executor refuses, and errors that cross processes."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest

from batchwright import BatchwrightError, ConfigError, EngineConfig, ExperimentError, PolicyError
from batchwright.errors import RefusedRequestError
from batchwright.hookspecs import hookimpl
from batchwright.lab import ab, load_workload
from batchwright.lab.executors import Task, choose_executor
from batchwright.lab.executors.processes import Processes, pack_error, unpack_error
from batchwright.lab.experiment import run_tasks
from lab.executors.jobs import SPEC, arms

# What an executor refuses -----------------------------------------------------------------------------------------


def test_executors_are_chosen_by_name_and_jobs() -> None:
    for name, jobs, expected in (
        (None, None, "serial"),
        (None, 1, "serial"),
        (None, 2, "processes"),
        ("processes", None, "processes"),
        ("serial", 1, "serial"),
    ):
        assert choose_executor(name, jobs).name == expected
    for name, jobs, words in (
        ("proceses", 2, "did you mean 'processes'"),
        (None, 0, "jobs must be a whole number of at least 1, not 0"),
        ("serial", 3, "'serial' runs one after the other, and jobs is 3"),
    ):
        with pytest.raises(ConfigError, match=words):
            choose_executor(name, jobs)


def test_without_ray_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'batchwright\[ray\]', or use executor 'processes'"):
        choose_executor("ray")


def test_what_cannot_leave_the_process_is_refused() -> None:
    class Observer:
        @hookimpl
        def step_finished(self, step: Any) -> None:
            pass

    with pytest.raises(ConfigError, match="arm vllm_v1, seed 0: plugins are objects of this process"):
        ab(arms(), load_workload(SPEC), jobs=2, plugins=[Observer()])


def test_a_real_clock_is_not_shared() -> None:
    todo = [Task("a", EngineConfig(backend="cpu:smollm2-135m"), load_workload(SPEC))]
    with pytest.raises(
        ConfigError, match="arm a, seed 0: cpu:smollm2-135m runs in real time, and runs beside each other"
    ):
        run_tasks(todo, Processes(2))


# Errors that cross processes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted({c.__name__ for c in BatchwrightError.__subclasses__()}))
def test_errors_of_our_own_are_the_same_on_the_other_side(kind: str) -> None:
    import batchwright.errors

    cls = getattr(batchwright.errors, kind)
    made: BatchwrightError
    if kind == "PolicyError":
        made = PolicyError("m", plugin="p", hook="h", step=3, rule="r", value=[1])
    elif kind == "ExperimentError":
        made = ExperimentError("m", [], [ValueError("x")])
    else:
        made = cls("m")
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is cls and str(again) == str(made)
    assert {k: repr(v) for k, v in vars(again).items()} == {k: repr(v) for k, v in vars(made).items()}
    refused = pickle.loads(pickle.dumps(RefusedRequestError("m", "why")))
    assert refused.reason == "why"


def test_an_error_of_a_class_that_is_not_known_here_says_the_same() -> None:
    class Local(Exception):
        pass

    packed, words = pack_error(Local("dear me"))
    assert str(unpack_error(packed, words)) == "Local: dear me"
    assert isinstance(unpack_error(packed, words), BatchwrightError)
    value = PolicyError("m", plugin="p", hook="h", step=3, rule="r", value=Local("x"))
    again = unpack_error(*pack_error(value))
    assert isinstance(again, PolicyError) and again.value == "Local('x')"
    assert isinstance(unpack_error(b"no pickle", "words"), BatchwrightError)
