"""The processes of the other ranks, as rank 0 holds them: started, told of steps, watched, and ended with it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any

from batchwright.errors import BackendError
from batchwright_backends.torch.wire import Report, Start

# Seconds that a rank which failed is waited for to say why.
GRACE_S = 3.0
# Seconds that processes get to end by themselves.
END_S = 5.0


@dataclass
class Worker:
    """One rank's process.

    Attributes:
        rank: its own.
        process: that runs it.
        connection: to it.
        handle: the socket below the connection.
        errors: what it writes to stdout and stderr.
        said: the words of its reports so far.
        cause: why it failed; None: it has not.
        ended: it will say nothing more.
    """

    rank: int
    process: subprocess.Popen[bytes]
    connection: Connection
    handle: socket.socket
    errors: IO[bytes]
    said: set[str] = field(default_factory=set)
    cause: str | None = None
    ended: bool = False

    @classmethod
    def start(cls, start: Start) -> Worker:
        """Start the process, and tell it what it is."""
        ends: Any = Pipe()
        ours, theirs = ends
        handle = socket.socket(fileno=os.dup(ours.fileno()))
        # A worker that stands still must not hold rank 0 for ever in the write of a long step.
        timeout = struct.pack("ll", int(start.timeout_s), int(start.timeout_s % 1 * 1e6))
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the worker
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "batchwright_backends.torch.worker", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            pass_fds=[theirs.fileno()],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "OMP_NUM_THREADS": str(start.num_threads),
            },
        )
        theirs.close()
        ours.send(start)
        return cls(start.rank, process, ours, handle, errors)

    @property
    def has_failed(self) -> bool:
        """Whether it will run no further step."""
        return self.cause is not None or self.ended

    def describe_end(self) -> str | None:
        """None while it runs, or in a clause why it does not."""
        if self.cause is not None or not self.ended:
            return self.cause
        try:
            code = self.process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return f"its process ended with {how}{f' ({lines[-1]})' if lines and code >= 0 else ''}"


class Workers:
    """The ranks from 1 on.

    Args:
        starts: what each is told first.
        on_failure: called once, in another thread, when one has failed.

    Attributes:
        ranks: the workers, rank 1 first.
        size: number of ranks, rank 0 included.
    """

    def __init__(self, starts: Sequence[Start], on_failure: Callable[[], None] | None = None) -> None:
        self.size = len(starts) + 1
        self.ranks: list[Worker] = []
        self._changed = threading.Condition()
        # Also when the interpreter ends without a call of ``end``.
        self._end = weakref.finalize(self, _end, self.ranks)
        try:
            for start in starts:
                worker = Worker.start(start)
                self.ranks.append(worker)
                name = f"batchwright-rank-{worker.rank}"
                arguments = (worker, self._changed, on_failure)
                threading.Thread(target=_listen, args=arguments, name=name, daemon=True).start()
        except BaseException:
            self.end()
            raise

    def wait_for(self, word: str, timeout_s: float | None = None) -> None:
        """Return when every worker has said it.

        Raises:
            BackendError: one ended instead, or did not say it in time; the message names rank and cause.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while missing := [w for w in self.ranks if word not in w.said]:
                if any(w.has_failed for w in self.ranks):
                    break
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            else:
                return
        failure = self.failure()
        raise BackendError(
            failure
            or f"tensor-parallel rank {missing[0].rank} of {self.size} did not come to be {word!r} in {timeout_s:g} s"
        )

    def tell(self, message: bytes) -> None:
        """Send bytes to every worker.

        Raises:
            OSError: one does not take them.
        """
        for worker in self.ranks:
            worker.connection.send_bytes(message)

    def failure(self, patience_s: float = 0.0) -> str | None:
        """None, or in a sentence which rank failed and why; waits so long for one to say it.

        Ranks fail one after another, as collectives lose their partners: the first that has a reason of its own counts.
        """
        with self._changed:
            self._changed.wait_for(lambda: any(w.has_failed for w in self.ranks), patience_s)
        causes = [(w.rank, cause) for w in self.ranks if (cause := w.describe_end()) is not None]
        if not causes:
            return None
        rank, cause = next(((r, c) for r, c in causes if not is_lost_partner(c)), causes[0])
        return f"tensor-parallel rank {rank} of {self.size} failed: {cause}"

    def end(self) -> None:
        """End all processes; calling it twice is no fault."""
        self._end()

    def kill(self) -> None:
        """End all processes that are in the middle of a step, and so cannot leave by themselves."""
        for worker in self.ranks:
            worker.process.kill()
        self.end()


def is_lost_partner(text: str) -> bool:
    """Whether an error of a collective says no more than that another rank is gone or silent."""
    words = ("closed by peer", "connection reset", "timed out", "broken pipe", "nccl", "gloo")
    return any(word in text.lower() for word in words)


def _listen(worker: Worker, changed: threading.Condition, on_failure: Callable[[], None] | None) -> None:
    """Take a worker's reports until it ends. Runs in a thread of its own, and holds nothing that ends the worker."""
    while not worker.ended:
        try:
            report = worker.connection.recv()
        except (EOFError, OSError):
            report = None
        with changed:
            first = not worker.has_failed
            if isinstance(report, Report):
                worker.said.add(report.word)
                worker.cause = report.cause if report.word == "failed" else None
            else:
                worker.ended = True
            changed.notify_all()
        if first and worker.has_failed and on_failure is not None:
            on_failure()


def _end(ranks: list[Worker]) -> None:
    for worker in ranks:
        # Closing alone would not reach the worker, as long as a thread here reads from the connection.
        with contextlib.suppress(OSError):
            worker.handle.shutdown(socket.SHUT_RDWR)
    until = time.monotonic() + END_S
    for worker in ranks:
        try:
            worker.process.wait(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()
        worker.handle.close()
        worker.errors.close()
