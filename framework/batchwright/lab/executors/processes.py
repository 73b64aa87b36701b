"""Runs over processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar, Self

from batchwright.errors import BackendError, BatchwrightError, PolicyError
from batchwright.lab.executors.executor import Executor, Keep, Outcome, check_sendable
from batchwright.lab.executors.installed import Installed
from batchwright.lab.executors.task import Task
from batchwright.lab.interrupts import Interrupts
from batchwright.lab.runner import Progress

GRACE_S = 10.0
"""Seconds that a run has to end after its present step, once it was asked to."""

_STOP = "stop"
_LOOK_S = 0.2
_PLAIN = (int, float, str, bool, type(None))


class Processes(Executor):
    """Several runs at a time, each in a process; a process that ends loses its own run only."""

    name: ClassVar[str] = "processes"

    def __init__(self, jobs: int | None = None) -> None:
        """Takes how many runs at a time; None: as many as this process may use cores."""
        self.jobs = jobs if jobs is not None else _num_cores()
        self._held: list[_Worker] | None = None

    def __enter__(self) -> Self:
        self._held = []
        return self

    def __exit__(self, *exc: object) -> None:
        held, self._held = self._held or [], None
        while held:
            held.pop().end()

    def run(self, tasks: Sequence[Task], progress: Progress | None = None, keep: Keep | None = None) -> list[Outcome]:
        """See :class:`Executor`."""
        check_sendable(tasks, self.name)
        shift = _Shift(tasks, progress, keep, self._held if self._held is not None else [])
        try:
            with Interrupts() as interrupts:
                try:
                    shift.work(min(self.jobs, len(tasks)), interrupts)
                finally:
                    if self._held is None or shift.was_stopped or shift.is_busy:
                        shift.close()
        except KeyboardInterrupt:  # pressed again
            shift.was_stopped = True
            shift.close()
        if shift.was_stopped and not any(outcome.run for outcome in shift.outcomes.values()):
            raise KeyboardInterrupt
        return [shift.outcomes[place] for place in sorted(shift.outcomes)]


class _Worker:
    """One process, and what it is at."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share the locks of threads that it does not have
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=work, args=(theirs,), daemon=True)
        with _ignoring_interrupts():
            self.process.start()
        theirs.close()
        self.place: int | None = None

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self.connection.close()
        if self.place is not None:
            self.process.terminate()
        self.process.join(GRACE_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class _Shift:
    """The work on one list of tasks.

    Attributes:
        outcomes: so far, by the task's place in the list.
        was_stopped: Ctrl-C was pressed.
    """

    def __init__(
        self, tasks: Sequence[Task], progress: Progress | None, keep: Keep | None, workers: list[_Worker]
    ) -> None:
        self._tasks = tasks
        self._keep = keep
        self._waiting = deque(range(len(tasks)))
        self._progress = progress
        self._workers = workers
        self.outcomes: dict[int, Outcome] = {}
        self.was_stopped = False

    def work(self, jobs: int, interrupts: Interrupts) -> None:
        """Until all is done, or nothing more comes after Ctrl-C."""
        give_up = float("inf")
        while self._waiting or self.is_busy:
            if interrupts.asked and not self.was_stopped:
                self.was_stopped = True
                self._waiting.clear()
                give_up = time.monotonic() + GRACE_S
                self._ask_to_stop()
            if time.monotonic() > give_up:
                return
            self._fill(jobs)
            busy = {worker.connection: worker for worker in self._workers if worker.place is not None}
            for connection in wait(list(busy), _LOOK_S):
                self._hear(busy[connection])  # type: ignore[index]

    @property
    def is_busy(self) -> bool:
        """Whether a process is at work."""
        return any(worker.place is not None for worker in self._workers)

    def _fill(self, jobs: int) -> None:
        """Give every process something to do."""
        while self._waiting:
            worker = next((worker for worker in self._workers if worker.place is None), None)
            if worker is None:
                if len(self._workers) == jobs:
                    return
                worker = _Worker()
                self._workers.append(worker)
            worker.place = self._waiting.popleft()
            with suppress(OSError):  # it has ended, which is heard of
                worker.connection.send((worker.place, self._tasks[worker.place]))

    def _ask_to_stop(self) -> None:
        for worker in self._workers:
            if worker.place is not None:
                with suppress(OSError):
                    worker.connection.send(_STOP)

    def _hear(self, worker: _Worker) -> None:
        place = worker.place
        assert place is not None
        task = self._tasks[place]
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            worker.connection.close()
            self._workers.remove(worker)
            self._take(place, Outcome(task, error=_ended(worker.process.exitcode)))
            return
        if kind == "progress":
            if self._progress is not None:
                self._progress(task.title, *value)
            return
        worker.place = None
        if kind == "done":
            self._take(place, Outcome(task, run=value))
        elif kind == "failed":
            self._take(place, Outcome(task, error=unpack_error(*value)))

    def _take(self, place: int, outcome: Outcome) -> None:
        self.outcomes[place] = self._keep(outcome) if self._keep is not None else outcome

    def close(self) -> None:
        """End all processes."""
        while self._workers:
            self._workers[-1].end()
            self._workers.pop()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ended(exit_code: int | None) -> BackendError:
    how = f"signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"exit code {exit_code}"
    return BackendError(
        f"the process that ran it ended by itself ({how}): for want of memory, perhaps; use fewer jobs, or run it alone"
    )


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes that are started meanwhile ignore Ctrl-C from their first instruction on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# In the other process -------------------------------------------------------------------------------------------


def work(connection: Connection) -> None:
    """Run what comes, until nothing more does."""
    signal.signal(signal.SIGINT, lambda *_: None)  # between runs; a run takes Ctrl-C as it always does
    installed = Installed()
    while True:
        try:
            message = connection.recv()
            if message == _STOP:  # it came when the run was over
                continue
            _, task = message
            connection.send(_answer(task, connection, installed))
        except (EOFError, OSError):  # whoever asked is gone
            return


def _answer(task: Task, connection: Connection, installed: Installed) -> tuple[str, Any]:
    try:
        return "done", task.run(_Reporter(connection), installed)
    except KeyboardInterrupt:
        return "stopped", None
    except Exception as error:
        return "failed", pack_error(error)


class _Reporter:
    """Tells how far a run is, and ends it when it is asked to."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __call__(self, arm: str, done: int, total: int) -> None:
        """As ``Progress``."""
        try:
            self._connection.send(("progress", (done, total)))
            asked = self._connection.poll() and self._connection.recv() == _STOP
        except (EOFError, OSError):
            asked = True
        if asked:
            signal.raise_signal(signal.SIGINT)


def pack_error(error: Exception) -> tuple[bytes | None, str]:
    """An error as bytes, where that can be, and in words."""
    error.add_note("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, PolicyError) and not isinstance(error.value, _PLAIN):
        error.value = repr(error.value)
    words = f"{type(error).__name__}: {error}"
    try:
        return pickle.dumps(error), words
    except Exception:
        return None, words


def unpack_error(packed: bytes | None, words: str) -> Exception:
    """The error again, or one that says the same where its class is not known here."""
    if packed is not None:
        with suppress(Exception):
            error = pickle.loads(packed)
            if isinstance(error, Exception):
                return error
    return BatchwrightError(words)
