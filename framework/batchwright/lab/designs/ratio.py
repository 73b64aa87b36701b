"""How many times the capacity of one arm is that of another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchwright.lab.designs.margin import mean_margin

if TYPE_CHECKING:
    from batchwright.lab.designs.capacity import ArmCapacity


@dataclass(frozen=True, slots=True)
class Ratio:
    """An arm's capacity over the first arm's.

    Attributes:
        arm, base: names.
        ratio: the geometric mean over seeds.
        low, high: its interval.
        num_seeds: seeds in which both capacities were found. With one, the interval is that of the brackets alone.
    """

    arm: str
    base: str
    ratio: float
    low: float
    high: float
    num_seeds: int

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


def ratio_of(base: ArmCapacity, arm: ArmCapacity, confidence: float) -> Ratio | None:
    """The ratio of two capacities, paired by seed; None where no seed has both.

    Of each seed the capacity lies in a bracket. The interval is Student's t of the logarithms of the ratios of the
    brackets' middles, two-sided, and then wider by what the brackets leave open: half their widths, on average.
    """
    logs: list[float] = []
    open_by: list[float] = []
    for seed, (low, high) in arm.by_seed.items():
        base_low, base_high = base.by_seed.get(seed, (None, None))
        if low is None or high is None or base_low is None or base_high is None:
            continue
        logs.append((math.log(low * high) - math.log(base_low * base_high)) / 2)
        open_by.append((math.log(high / low) + math.log(base_high / base_low)) / 2)
    if not logs:
        return None
    mean = math.fsum(logs) / len(logs)
    margin = mean_margin(logs, (1 + confidence) / 2) + math.fsum(open_by) / len(open_by)
    return Ratio(arm.arm, base.arm, math.exp(mean), math.exp(mean - margin), math.exp(mean + margin), len(logs))
