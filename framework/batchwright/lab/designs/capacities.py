"""What a search of capacities found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from batchwright.errors import ConfigError
from batchwright.lab.designs.answer import Answer
from batchwright.lab.designs.capacity_closing import closing_lines
from batchwright.lab.designs.capacity_plan import CapacityPlan
from batchwright.lab.designs.ratio import Ratio
from batchwright.version import RECORD_VERSION


@dataclass(frozen=True)
class LoadPoint:
    """What an arm did at one load.

    Attributes:
        speedup: of the load: arrivals are so many times as fast as in the workload as it was given; 1 in a closed loop.
        rate: requests a second on average, as they were offered; in a closed loop, as they finished.
        met: whether every bound is met with confidence.
        values: of each bound, by its text, the values by seed.
        edges: of each bound the end of the interval of the mean that counts; None where it is undefined.
        limited_by: texts of the bounds that are not met.
        num_overloaded: of the seeds: in how many a backlog built up that was not worked off.
        num_requests: offered in each run, on average.
        concurrency: users of a closed loop; None: an open one.
    """

    speedup: float
    rate: float
    met: bool
    values: Mapping[str, tuple[float | None, ...]]
    edges: Mapping[str, float | None]
    limited_by: tuple[str, ...]
    num_overloaded: int
    num_requests: float
    concurrency: int | None = None

    @property
    def load(self) -> float:
        """What was varied: requests a second, or users of a closed loop."""
        return self.rate if self.concurrency is None else self.concurrency


@dataclass(frozen=True)
class ArmCapacity:
    """The capacity of one arm.

    Attributes:
        arm: its name.
        points: the loads that were tried with all seeds, in order of rate.
        low: the highest load that meets the bounds, below every one that does not; None: none does.
        high: the lowest load that does not; None: all do.
        by_seed: of each seed alone, the speedups between which it stops meeting the bounds, in a closed loop the
            numbers of users; an end that was not found is None.
        contradictions: loads above ``high`` that do meet them.
        is_done: whether the search came to its end.
        error: what the arm failed with; None: it did not.
    """

    arm: str
    points: tuple[LoadPoint, ...]
    low: LoadPoint | None
    high: LoadPoint | None
    by_seed: Mapping[int, tuple[float | None, float | None]] = field(default_factory=dict)
    contradictions: tuple[LoadPoint, ...] = ()
    is_done: bool = True
    error: Exception | None = None

    @property
    def rate(self) -> float | None:
        """Requests a second at ``low``; None where no load meets the bounds."""
        return self.low.rate if self.low is not None else None

    @property
    def load(self) -> float | None:
        """What was varied at ``low``: requests a second, or users; None where no load meets the bounds."""
        return self.low.load if self.low is not None else None


@dataclass(frozen=True)
class Capacities(Answer):
    """Capacities of several arms under one kind of load.

    Attributes:
        arms: the capacities; the first is what others are compared with.
        ratios: seed by seed, of the other arms' edges to the first one's, where both were found.
        plan: how they were searched.
        workload: name of it.
        base_rate: requests a second of the workload as it was given; None in a closed loop.
        has_slo: whether any request has objectives of its own.
        num_runs, num_found: how many runs it took, and how many of them were in a folder already.
    """

    arms: tuple[ArmCapacity, ...]
    ratios: tuple[Ratio, ...]
    plan: CapacityPlan
    workload: str
    base_rate: float | None
    has_slo: bool
    num_runs: int
    num_found: int = 0

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return any(not arm.is_done and arm.error is None for arm in self.arms)

    def of(self, arm: str) -> ArmCapacity:
        """The capacity of an arm.

        Raises:
            ConfigError: there is no such arm.
        """
        for found in self.arms:
            if found.arm == arm:
                return found
        raise ConfigError(f"there is no arm {arm!r}; arms: {', '.join(found.arm for found in self.arms)}")

    def error(self) -> Exception | None:
        """What to raise for arms that failed: the first one's error; None: none did."""
        return next((arm.error for arm in self.arms if arm.error is not None), None)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; the same runs give the same bytes."""
        return {
            "record_version": RECORD_VERSION,
            "design": "capacity",
            "slo": [bound.text for bound in self.plan.bounds],
            "bounds": [bound.to_json() for bound in self.plan.bounds],
            "seeds": list(self.plan.seeds),
            "confidence": self.plan.confidence,
            "tolerance": self.plan.tolerance,
            "lowest": self.plan.lowest,
            "highest": self.plan.highest,
            "duration_s": self.plan.duration_s,
            "unit": self.plan.unit,
            "workload": self.workload,
            "base_rate": self.base_rate,
            "arms": {arm.arm: _arm_to_json(arm) for arm in self.arms},
            "ratios": [ratio.to_json() for ratio in self.ratios],
            "closing": list(closing_lines(self)),
        }


def _arm_to_json(arm: ArmCapacity) -> dict[str, Any]:
    return {
        "rate": arm.rate,
        "load": arm.load,
        "low": arm.low and _point_to_json(arm.low),
        "high": arm.high and _point_to_json(arm.high),
        "by_seed": {str(seed): list(ends) for seed, ends in arm.by_seed.items()},
        "contradictions": [point.load for point in arm.contradictions],
        "is_done": arm.is_done,
        "error": None if arm.error is None else f"{type(arm.error).__name__}: {arm.error}",
        "points": [_point_to_json(point) for point in arm.points],
    }


def _point_to_json(point: LoadPoint) -> dict[str, Any]:
    return {
        "speedup": point.speedup,
        "rate": point.rate,
        "concurrency": point.concurrency,
        "load": point.load,
        "num_requests": point.num_requests,
        "met": point.met,
        "values": {text: list(values) for text, values in point.values.items()},
        "edges": dict(point.edges),
        "limited_by": list(point.limited_by),
        "num_overloaded": point.num_overloaded,
    }
