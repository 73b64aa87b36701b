"""Ends a policy that takes too long, from outside, as if it had raised."""

from __future__ import annotations

import ctypes
import inspect
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any

_LOOKS = 5
"""How often it looks within the time that a policy has."""


class PolicyTimeoutError(Exception):
    """Raised in a policy that took too long."""


class Watchdog:
    """Watches one thread while policies of a scheduler may run in it.

    A thread of its own looks a few times within the time allowed. It raises ``PolicyTimeoutError`` in the watched one
    only while that executes the policy's code, or what the policy called that is not the scheduler's: whatever the core
    changes is changed whole. A policy within one long call into C cannot be ended before that returns.

    Args:
        most_s: seconds from entering to being ended.
        policies: whose code it is.
    """

    def __init__(self, most_s: float, policies: Iterable[object]) -> None:
        self.num_timeouts = 0
        self._most_s = most_s
        self._files = {file for policy in policies for file in _files(policy)}
        self._thread_id: int | None = None
        self._since: float | None = None
        self._num_over = 0  # timeouts of blocks that have ended
        self._deciding = threading.Lock()
        threading.Thread(target=_look, args=(weakref.ref(self), most_s / _LOOKS), daemon=True, name="policies").start()

    def __enter__(self) -> None:
        self._thread_id = threading.get_ident()
        self._since = time.monotonic()

    def __exit__(self, *exc: object) -> None:
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

    def look(self) -> None:
        """End the policy if it has taken too long."""
        with self._deciding:  # it cannot leave the block meanwhile
            since, thread_id = self._since, self._thread_id
            if since is None or thread_id is None or time.monotonic() - since <= self._most_s:
                return
            frame = sys._current_frames().get(thread_id)
            # Nothing else runs between this look and what it leads to, unless this thread is made to wait just here.
            if frame is not None and self._in_policy(frame):
                raised = ctypes.py_object(PolicyTimeoutError)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), raised)
                self.num_timeouts += 1
                self._since = time.monotonic()  # one that catches it is told again

    def _in_policy(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_filename in self._files:
                return True
            if frame.f_globals.get("__name__", "").partition(".")[0] == "batchwright":
                return False
            frame = frame.f_back
        return False


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
    while True:
        time.sleep(interval_s)
        one = watchdog()
        if one is None:
            return
        one.look()
        del one
