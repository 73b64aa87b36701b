"""Runs one after the other, over processes and over Ray: the same records, and failures that are named."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batchwright import BackendError, BatchwrightError, ConfigError, EngineConfig, ExperimentError, PolicyError
from batchwright.errors import RefusedRequestError
from batchwright.hookspecs import hookimpl
from batchwright.lab import ab, load_workload
from batchwright.lab.executors import Executor, Task, choose_executor
from batchwright.lab.executors.processes import Processes, pack_error, unpack_error, work
from batchwright.lab.executors.serial import Serial
from batchwright.lab.experiment import Experiment, run_tasks
from batchwright.plugins import Plugins, load_plugins

SPEC = "synthetic:rate=50,n=20,prompt=uniform(20,200),output=uniform(2,12),seed=3"
LONG = "synthetic:rate=40,n=20000,prompt=200,output=200"
ARMS = {"vllm_v1": {}, "stall_free": {}, "fleet": {"policy": "vllm_v1", "replicas": 2, "router": "prefix_aware"}}

BAD = """
import os, time
from pathlib import Path
from batchwright import Policy, hookimpl
from batchwright_policies.vllm_v1 import VllmV1


class Own(Exception):
    pass


class Rules(VllmV1):
    @hookimpl
    def chunking(self, step, request):
        return -1


class Raises(VllmV1):
    @hookimpl
    def admission(self, step):
        raise Own("of a class that only this file knows")


class Dies(VllmV1):
    @hookimpl
    def step_started(self, step):
        os._exit(3)


class Tells(VllmV1):
    stationary = False

    @hookimpl
    def step_started(self, step):
        if step.index == 50:
            Path(os.environ["BATCHWRIGHT_TEST_MARKERS"], str(os.getpid())).touch()
"""


@pytest.fixture
def bad(tmp_path: Path) -> str:
    file = tmp_path / "bad.py"
    file.write_text(BAD)
    return str(file)


def tasks(*policies: str, seeds: Sequence[int] = (0,), spec: str = SPEC, **options: Any) -> list[Task]:
    load = load_workload(spec)
    return [Task(p.rpartition(":")[2], EngineConfig(policy=p), load, seed, options) for p in policies for seed in seeds]


def arms() -> dict[str, EngineConfig]:
    return {name: EngineConfig(**{"policy": name, **values}) for name, values in ARMS.items()}


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
    assert words.endswith("the other 2 are kept")
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


# What an executor refuses ------------------------------------------------------------------------------------------


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


# Errors that cross processes -----------------------------------------------------------------------------------------


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


# Ctrl-C --------------------------------------------------------------------------------------------------------------


def _press_when(markers: Path, count: int, presses: int = 1) -> threading.Thread:
    """Press Ctrl-C in this process once so many runs are under way."""

    def press() -> None:
        end = time.monotonic() + 60
        while len(list(markers.iterdir())) < count and time.monotonic() < end:
            time.sleep(0.02)
        for _ in range(presses):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_the_processes_and_keeps_what_is_done(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, presses: int
) -> None:
    markers = tmp_path / "markers"
    markers.mkdir()
    monkeypatch.setenv("BATCHWRIGHT_TEST_MARKERS", str(markers))
    todo = [*tasks("vllm_v1"), *tasks(f"{bad}:Tells", spec=LONG), *tasks("stall_free")]
    thread = _press_when(markers, 1, presses)
    found = run_tasks(todo, Processes(1))
    thread.join()
    # The first was done; the second under way; the third never began.
    assert (found.runs[0].arm, found.runs[0].stopped) == ("vllm_v1", None)
    assert found.was_interrupted and found.error() is None
    if presses == 1:
        assert [run.arm for run in found.runs] == ["vllm_v1", "Tells"]
        partial = found.runs[1]
        assert partial.stopped == "interrupted" and len(partial.steps) > 50
    for marker in markers.iterdir():
        assert not _is_running(int(marker.name)), "a process was left behind"


def test_ctrl_c_before_anything_is_done_is_raised(bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Executor):
        name = "slow"

        def run(self, tasks: Any, progress: Any = None, keep: Any = None) -> Any:
            raise NotImplementedError

    monkeypatch.setattr(Task, "run", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        Serial().run(tasks("vllm_v1"))


def test_an_experiment_knows_what_was_not_begun() -> None:
    todo = tasks("vllm_v1", "stall_free")
    done = Serial().run(todo)
    assert not Experiment(todo, done).was_interrupted
    assert Experiment(todo, done[:1]).was_interrupted


def test_a_process_ends_when_whoever_asked_is_gone(bad: str, tmp_path: Path) -> None:
    markers = tmp_path / "markers"
    markers.mkdir()
    code = (
        "from batchwright.lab.executors import Task\n"
        "from batchwright.lab.executors.processes import Processes\n"
        "from batchwright import EngineConfig\n"
        "from batchwright.lab import load_workload\n"
        f"load = load_workload({LONG!r})\n"
        f"Processes(1).run([Task('a', EngineConfig(policy={bad + ':Tells'!r}), load)])\n"
    )
    environment = {**os.environ, "BATCHWRIGHT_TEST_MARKERS": str(markers)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as parent:
        end = time.monotonic() + 60
        while not list(markers.iterdir()) and time.monotonic() < end:
            time.sleep(0.02)
        parent.kill()
        parent.wait()
    (marker,) = markers.iterdir()
    end = time.monotonic() + 30
    while _is_running(int(marker.name)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _is_running(int(marker.name))


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
