"""Tests of what defines a policy, and the check that they can fail: with FIFO in its place each of them must."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from batchwright import Policy
from batchwright_policies.prefill_first import PrefillFirst

Make = Callable[..., Policy]


def fifo(**params: Any) -> Policy:
    """The default policy, whatever parameters are asked for."""
    return PrefillFirst()


def defines(policy: type[Policy], *, instead: Make = fifo) -> Callable[[Callable[[Make], None]], Callable[..., None]]:
    """Mark a test of a policy's defining property; it takes what makes the policy.

    It is run twice: with the policy, and with ``instead`` in its place, where it must fail.
    """

    def decorate(test: Callable[[Make], None]) -> Callable[..., None]:
        def itself() -> None:
            test(policy)

        def replaced() -> None:
            with pytest.raises(AssertionError):
                test(instead)

        def both(run: Callable[[], None]) -> None:
            run()

        both.__name__, both.__doc__, both.__module__ = test.__name__, test.__doc__, test.__module__
        cases = [pytest.param(partial(itself), id="itself"), pytest.param(partial(replaced), id="replaced")]
        return pytest.mark.parametrize("run", cases)(both)

    return decorate
