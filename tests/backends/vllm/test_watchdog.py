"""Policies that take too long are ended, and nobody else is; vLLM is not needed for it."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from batchwright.errors import place_of
from batchwright_backends.vllm.watchdog import PolicyTimeoutError, Watchdog, _Handlers


class Slow:
    """A policy, as far as a watchdog is concerned."""

    def admission(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass


def test_a_policy_that_takes_too_long_is_ended() -> None:
    policy = Slow()
    watchdog = Watchdog(0.02, [policy])
    with pytest.raises(PolicyTimeoutError) as caught, watchdog:
        policy.admission(60)
    assert watchdog.num_timeouts == 1
    assert place_of(caught.value).startswith(" (test_watchdog.py, line ")  # where it was, and not who ended it


def test_one_that_returns_in_time_is_not() -> None:
    policy = Slow()
    watchdog = Watchdog(60, [policy])
    with watchdog:
        policy.admission(0.01)
    watchdog.look()
    assert watchdog.num_timeouts == 0


def elsewhere(work: Callable[[], None]) -> None:
    """Run it in another thread than the main one."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(work).result()


def test_another_thread_is_watched_as_well() -> None:
    elsewhere(test_a_policy_that_takes_too_long_is_ended)
    elsewhere(test_one_that_returns_in_time_is_not)


def test_what_comes_too_late_for_the_policy_strikes_nobody() -> None:
    """It returns between the look at it and what that leads to."""
    looked_at = threading.Event()

    class Late(Watchdog):
        def _in_policy(self, frame: FrameType | None) -> bool:
            looked_at.set()
            time.sleep(0.2)  # the other thread leaves the block, if it can
            return True

    def work() -> None:
        watchdog = Late(0.01, [Slow()])
        with watchdog:
            time.sleep(0.02)
            looked_at.wait(60)
        Slow().admission(0.3)  # somebody else's code
        assert watchdog.num_timeouts == 1
        with watchdog:
            pass

    elsewhere(work)


class Returns:
    """It spends its time within C, without a call, and returns from there."""

    def admission(self, big: np.ndarray) -> np.ndarray:
        return big @ big


CORE = """
def work(policy, big):
    policy.admission(big)
    done = 0
    for _ in range(5000):
        done += 1
    return done
"""


def test_nobody_is_ended_behind_a_policy_that_was_late_and_has_returned(caplog: pytest.LogCaptureFixture) -> None:
    """What asked it goes on: an exception just there would leave half of what it changes. That it was late is said."""
    core: dict[str, Any] = {"__name__": "batchwright.pretend"}
    exec(compile(CORE, "pretend.py", "exec"), core)
    watchdog, big = Watchdog(0.005, [Returns()]), np.ones((700, 700))
    for _ in range(7):
        with caplog.at_level("WARNING", "vllm.batchwright"), watchdog:
            assert core["work"](Returns(), big) == 5000
    assert (watchdog.num_timeouts, watchdog.num_held) == (0, 7)
    assert caplog.text.count("longer than max_policy_ms (5)") == 5


def test_what_a_policy_asks_of_the_scheduler_is_not_cut_short() -> None:
    """It is ended when it is back in its own code, however long it stays elsewhere in between."""
    core: dict[str, Any] = {"__name__": "batchwright.pretend", "counted": []}
    exec("def count():\n    for i in range(20): pass\n    counted.append(i)\n", core)

    class Asks:
        def admission(self) -> int:
            num = 0
            while True:
                core["count"]()
                num += 1

    watchdog = Watchdog(0.02, [Asks()])
    with pytest.raises(PolicyTimeoutError) as caught, watchdog:
        Asks().admission()
    assert watchdog.num_timeouts == 1
    struck = [frame for frame in caught.traceback if Path(frame.path).name != "watchdog.py"][-1]
    assert struck.name == "admission" and set(core["counted"]) == {19}


def next_free() -> int:
    """The signal that would be taken next."""
    used = {number for number in signal.valid_signals() if callable(signal.getsignal(number))}
    return next(number for number in range(signal.SIGRTMAX, signal.SIGRTMIN, -1) if number not in used)


def test_a_handler_of_somebody_else_is_left_alone() -> None:
    mine = next_free()
    before = signal.signal(mine, lambda *_: None)
    try:
        theirs = signal.getsignal(mine)
        taken = _Handlers()._claim()
        assert taken not in (mine, None) and signal.getsignal(mine) is theirs
    finally:
        signal.signal(mine, before)
    assert taken is not None
    signal.signal(taken, signal.SIG_DFL)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says which signals are handled in C")
def test_so_is_one_that_a_library_in_c_has_set() -> None:
    mine = next_free()
    handle = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda _: None)
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(mine, handle)
    try:
        taken = _Handlers()._claim()
        assert taken not in (mine, None) and signal.getsignal(mine) == signal.SIG_DFL
    finally:
        libc.signal(mine, None)
    assert taken is not None
    signal.signal(taken, signal.SIG_DFL)
