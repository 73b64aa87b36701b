"""Policies that take too long are ended, and nobody else is; vLLM is not needed for it."""

from __future__ import annotations

import threading
import time
from types import FrameType

import pytest

from batchwright_backends.vllm.watchdog import PolicyTimeoutError, Watchdog


class Slow:
    """A policy, as far as a watchdog is concerned."""

    def admission(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass


def test_a_policy_that_takes_too_long_is_ended() -> None:
    policy = Slow()
    watchdog = Watchdog(0.02, [policy])
    with pytest.raises(PolicyTimeoutError), watchdog:
        policy.admission(60)
    assert watchdog.num_timeouts == 1


def test_one_that_returns_in_time_is_not() -> None:
    policy = Slow()
    watchdog = Watchdog(60, [policy])
    with watchdog:
        policy.admission(0.01)
    watchdog.look()
    assert watchdog.num_timeouts == 0


def test_what_comes_too_late_for_the_policy_strikes_nobody() -> None:
    """It returns between the look at it and what that leads to."""
    looked_at = threading.Event()

    class Late(Watchdog):
        def _in_policy(self, frame: FrameType | None) -> bool:
            looked_at.set()
            time.sleep(0.2)  # the other thread leaves the block, if it can
            return True

    watchdog = Late(0.01, [Slow()])
    with watchdog:
        time.sleep(0.02)
        looked_at.wait(60)
    Slow().admission(0.3)  # somebody else's code
    assert watchdog.num_timeouts == 1
    with watchdog:
        pass
