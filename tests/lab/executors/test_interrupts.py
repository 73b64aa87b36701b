"""Ctrl-C, and processes that nobody waits for any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from batchwright.lab.executors import Executor, Task
from batchwright.lab.executors.processes import Processes
from batchwright.lab.executors.serial import Serial
from batchwright.lab.experiment import Experiment, run_tasks
from lab.executors.jobs import LONG, tasks


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
