"""How capacities are searched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from batchwright.errors import ConfigError
from batchwright.lab.designs.bounds import Bound, parse_bounds, with_finished
from batchwright.lab.workload import Workload

SPAN = 64.0
"""How many times slower and faster than the workload as it is given a search goes by default; in a closed loop, with
how many times the users."""


@dataclass(frozen=True)
class CapacityPlan:
    """How capacities are searched.

    Attributes:
        bounds: what has to be met.
        seeds: of the runs at each load.
        confidence: with which a bound has to be met.
        tolerance: how much the bracket's ends may differ, as a share.
        lowest, highest: the range of loads, as speedups; in a closed loop, in users.
        duration_s: seconds for which each load is offered; None: each has as many requests as the workload.
        users: of a closed loop, where the search begins; None: an open loop.
    """

    bounds: tuple[Bound, ...]
    seeds: tuple[int, ...]
    confidence: float
    tolerance: float
    lowest: float
    highest: float
    duration_s: float | None = None
    users: int | None = None

    @property
    def unit(self) -> str:
        """Of a load, in words."""
        return "requests/s" if self.users is None else "users"

    @classmethod
    def of(
        cls,
        workload: Workload,
        slo: str | Sequence[Bound],
        seeds: Sequence[int],
        confidence: float = 0.95,
        tolerance: float = 0.05,
        lowest: float | None = None,
        highest: float | None = None,
        duration_s: float | None = None,
    ) -> CapacityPlan:
        """A plan from what a user gave; loads in requests a second, or of a closed loop in users.

        Raises:
            ConfigError: an argument is out of its range, or the workload has no rate to change.
        """
        if not 0.5 <= confidence < 1:
            raise ConfigError(f"confidence must be at least 0.5 and below 1, not {confidence!r}")
        if not 0 < tolerance < math.inf:
            raise ConfigError(f"tolerance must be above 0, not {tolerance!r}: 0.05 ends a search within 5%")
        if duration_s is not None and not 0 < duration_s < math.inf:
            raise ConfigError(f"duration must be a finite number of seconds above 0, not {duration_s!r}")
        users = workload.concurrency
        if users is not None:
            if duration_s is not None:
                raise ConfigError(
                    f"duration {duration_s:g} s: how long {users} users take follows from the answers that they get. "
                    f"Each offers {len(workload) / users:.3g} requests, at every load: take a longer workload instead"
                )
            ends = _users(users, lowest, highest)
        else:
            ends = _speedups(workload, lowest, highest)
        bounds = with_finished(parse_bounds(slo) if isinstance(slo, str) else slo)
        return cls(bounds, tuple(seeds), confidence, tolerance, *ends, duration_s, users)


def _users(users: int, lowest: float | None, highest: float | None) -> tuple[float, float]:
    low, high = 1 if lowest is None else lowest, round(SPAN * users) if highest is None else highest
    if low != int(low) or high != int(high) or not 1 <= low < high:
        raise ConfigError(
            f"the range of loads is {low:g} to {high:g} users: both are whole numbers, the lowest at least 1, and the "
            "highest above it"
        )
    return int(low), int(high)


def _speedups(workload: Workload, lowest: float | None, highest: float | None) -> tuple[float, float]:
    rate = workload.rate
    if not math.isfinite(rate):
        raise ConfigError(
            f"workload {workload.name} has no rate to raise: all its requests arrive at once; take one with arrivals, "
            "such as a trace or synthetic:rate=4, or users with --concurrency"
        )
    low, high = 1 / SPAN if lowest is None else lowest / rate, SPAN if highest is None else highest / rate
    if not 0 < low < high < math.inf:
        raise ConfigError(
            f"the range of loads is {low * rate:g} to {high * rate:g} requests/s: the lowest must be above 0, and the "
            "highest above it"
        )
    return low, high
