"""Conditions that no decision may depend on: global chance, real time, addresses of objects."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np

_CLOCKS = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")


@contextmanager
def global_chance(salt: int) -> Iterator[None]:
    """Python's and numpy's global generators in a state that follows from the salt; afterwards as before."""
    python, legacy = random.getstate(), np.random.get_state()
    random.seed(f"salt {salt}")
    np.random.seed(salt % 2**32)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


@contextmanager
def other_clocks() -> Iterator[None]:
    """Real clocks that say another time and run a thousand times as fast."""

    def other(clock: Callable[[], float]) -> Callable[[], float]:
        return lambda: clock() * 1000 + 12345

    patches = [patch.object(time, name, other(getattr(time, name))) for name in _CLOCKS]
    for p in patches:
        p.start()
    try:
        yield
    finally:
        for p in patches:
            p.stop()


def other_addresses(salt: int) -> list[object]:
    """Objects that fill holes of the heap, so that those made next lie elsewhere; keep them meanwhile."""
    rng = random.Random(f"addresses {salt}")
    junk: list[object] = [bytearray(rng.randrange(64, 512)) for _ in range(300)]
    rng.shuffle(junk)
    return junk[: len(junk) // 2]
