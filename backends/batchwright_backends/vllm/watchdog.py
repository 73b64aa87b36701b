"""Ends a policy that takes too long, from outside, as if it had raised."""

from __future__ import annotations

import ctypes
import inspect
import logging
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

logger = logging.getLogger("vllm.batchwright")

_LOOKS = 5
"""How often it looks within the time that a policy has."""

_AGAIN_S = 0.001
"""When it looks again at one that is late: it may be in the scheduler's code just when it is looked at."""

_WARNED = 5
"""So many late policies that were not ended are logged."""

_OWN = ("batchwright", "batchwright_backends", "vllm")
"""Packages whose code is ended nowhere, whoever called it: what they change is changed whole."""


class PolicyTimeoutError(Exception):
    """Raised in a policy that took too long."""


class Watchdog:
    """Watches one thread while policies of a scheduler may run in it.

    A thread of its own looks a few times within the time allowed, and more often at one that is late.
    ``PolicyTimeoutError`` is raised in the watched one only while that executes the policy's code, or what the policy
    called that is neither the scheduler's nor vLLM's. A policy within one long call into C cannot be ended before that
    returns; where it returns at once itself, it was late, and what it decided holds.

    In the main thread, in which vLLM runs its scheduler, that is certain: it is asked to run a handler of a signal
    (which nobody sends), and the handler sees where it is. In another thread the exception can only be left for it: a
    policy that returns out of C just then is followed by its exception.

    Args:
        most_s: seconds from entering to being ended.
        policies: whose code it is.

    Attributes:
        num_timeouts: policies that were ended.
        num_held: blocks that took too long all the same: nothing in them could be ended, and what was decided holds.
    """

    def __init__(self, most_s: float, policies: Iterable[object]) -> None:
        self.num_timeouts = self.num_held = 0
        self._most_s = most_s
        self._files = {file for policy in policies for file in _files(policy)}
        self._thread_id: int | None = None
        self._since: float | None = None
        self._num_over = 0  # timeouts of blocks that have ended
        self._deciding = threading.Lock()
        _handlers.take(self)
        threading.Thread(target=_look, args=(weakref.ref(self), most_s / _LOOKS), daemon=True, name="policies").start()

    def __enter__(self) -> None:
        self._thread_id = threading.get_ident()
        self._since = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        if self.is_late:
            self._note_held()
        if _handlers.serve(self._thread_id):
            self._since = None
            return
        while True:
            try:
                with self._deciding:
                    self._since = None
                    if self._num_over != self.num_timeouts:  # what was not raised yet would be, in whoever runs next
                        self._num_over = self.num_timeouts
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread_id or 0), None)
            except PolicyTimeoutError:  # just now: the policy had returned
                continue
            return

    def _note_held(self) -> None:
        self.num_held += 1
        if self.num_held <= _WARNED:
            logger.warning(
                "a step took longer than max_policy_ms (%g), in code that cannot be ended, as one long call into C: "
                "what the policy decided holds; make that call shorter, or raise max_policy_ms",
                1000 * self._most_s,
            )

    def look(self) -> None:
        """End the policy if it has taken too long."""
        if _handlers.serve(self._thread_id):
            if self.is_late:
                _handlers.call()
            return
        with self._deciding:  # it cannot leave the block meanwhile
            thread_id = self._thread_id
            if thread_id is None or not self.is_late:
                return
            # Nothing else runs between this look and what it leads to, unless this thread is made to wait just here.
            if self._in_policy(sys._current_frames().get(thread_id)):
                raised = ctypes.py_object(PolicyTimeoutError)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), raised)
                self._count()

    def strike(self, frame: FrameType | None) -> None:
        """In the watched thread, which is just there: end the policy, if it is what runs and has taken too long.

        Raises:
            PolicyTimeoutError: it is ended.
        """
        if self.is_late and self._in_policy(frame):
            self._count()
            raise PolicyTimeoutError

    @property
    def is_late(self) -> bool:
        """Whether what runs in the block has taken too long."""
        since = self._since
        return since is not None and time.monotonic() - since > self._most_s

    def _count(self) -> None:
        self.num_timeouts += 1
        self._since = time.monotonic()  # one that catches it is told again

    def _in_policy(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_filename in self._files:
                return True
            if frame.f_globals.get("__name__", "").partition(".")[0] in _OWN:
                return False
            frame = frame.f_back
        return False


class _Handlers:
    """One signal's handler in the main thread, for all watchdogs of it.

    No signal is sent: nothing that the system does is cut short by it, and nobody else's handlers are touched.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._watchdogs: tuple[weakref.ref[Watchdog], ...] = ()

    def take(self, watchdog: Watchdog) -> None:
        """One more; a signal that nobody handles is taken with the first, if this is the main thread."""
        self._watchdogs = (*(one for one in self._watchdogs if one() is not None), weakref.ref(watchdog))
        if self._number is None and threading.current_thread() is threading.main_thread():
            self._number = self._claim()

    def _claim(self) -> int | None:
        first, last = getattr(signal, "SIGRTMIN", 1), getattr(signal, "SIGRTMAX", 0)  # not everywhere
        caught = _caught()
        for number in range(last, first, -1):
            if signal.getsignal(number) == signal.SIG_DFL and not caught >> (number - 1) & 1:
                try:
                    signal.signal(number, self._handle)
                except (ValueError, OSError):  # not here
                    return None
                return number
        return None

    def serve(self, thread_id: int | None) -> bool:
        """Whether they are run in that thread."""
        return self._number is not None and thread_id == threading.main_thread().ident

    def call(self) -> None:
        """Have the main thread run them, in the midst of what it does."""
        ctypes.pythonapi.PyErr_SetInterruptEx(self._number)

    def _handle(self, _: int, frame: FrameType | None) -> None:
        for one in self._watchdogs:
            watchdog = one()
            if watchdog is not None and self.serve(watchdog._thread_id):
                watchdog.strike(frame)


_handlers = _Handlers()


def _caught() -> int:
    """Signals that somebody handles, a bit each: of handlers that a library in C has set, Python knows nothing."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:  # not Linux
        return 0
    return next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)


def _files(policy: object) -> Iterable[str]:
    """Where the code of a policy stands, without that of the framework's base classes."""
    for cls in type(policy).__mro__:
        if cls is not object and cls.__module__.partition(".")[0] != "batchwright":
            try:
                yield inspect.getfile(cls)
            except (TypeError, OSError):  # made by hand: its functions know
                continue
        for member in vars(cls).values():
            function: Any = inspect.unwrap(member) if callable(member) else None
            code = getattr(function, "__code__", None)
            if code is not None and getattr(function, "__module__", "").partition(".")[0] != "batchwright":
                yield code.co_filename


def _look(watchdog: weakref.ref[Watchdog], interval_s: float) -> None:
    wait_s = interval_s
    while True:
        time.sleep(wait_s)
        one = watchdog()
        if one is None:
            return
        one.look()
        wait_s = min(interval_s, _AGAIN_S) if one.is_late else interval_s
        del one
