"""How late this process is to look at what has arrived."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable

import numpy as np

TICK_S = 0.02


class LagMeter:
    """Wakes up often, and notes how much later than it wanted: what else waits here waits as long.

    Args:
        on_tick: called each time.
    """

    def __init__(self, on_tick: Callable[[], None]) -> None:
        self._on_tick = on_tick
        self._lags_ns = array("q")

    async def run(self) -> None:
        """Until it is cancelled."""
        wanted = time.perf_counter_ns()
        while True:
            wanted = max(wanted, time.perf_counter_ns()) + round(TICK_S * 1e9)
            await asyncio.sleep((wanted - time.perf_counter_ns()) / 1e9)
            self._lags_ns.append(max(0, time.perf_counter_ns() - wanted))
            self._on_tick()

    def p99_s(self) -> float:
        """The lag that one in a hundred exceeds, in seconds; 0 where it never woke."""
        return float(np.percentile(np.frombuffer(self._lags_ns, dtype=np.int64), 99)) / 1e9 if self._lags_ns else 0.0
