"""How many times the load of one arm another carries, seed by seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchwright.lab.designs.margin import mean_margin

if TYPE_CHECKING:
    from batchwright.lab.designs.capacities import ArmCapacity


@dataclass(frozen=True, slots=True)
class Ratio:
    """An arm's edge over the first arm's. The edge of a seed is where its one run stops meeting the objectives.

    Attributes:
        arm, base: names.
        ratio: the geometric mean over seeds.
        low, high: its interval.
        num_seeds: seeds in which both edges were found. With one, the interval is that of the brackets alone.
        edge, base_edge: geometric means of the two arms' edges over these seeds, in requests a second or users: their
            quotient is the ratio.
    """

    arm: str
    base: str
    ratio: float
    low: float
    high: float
    num_seeds: int
    edge: float
    base_edge: float

    @property
    def verdict(self) -> str:
        """``more``, ``less`` or ``no difference shown``."""
        return "more" if self.low > 1 else "less" if self.high < 1 else "no difference shown"

    def words(self, unit: str, confidence: float, num_seeds: int) -> str:
        """What it says, and of what it is.

        Args:
            unit: of loads.
            confidence: of the interval.
            num_seeds: of the search, those without an edge among them.
        """
        of = f" of {num_seeds}: in the others an arm has no edge within the range" if self.num_seeds < num_seeds else ""
        said = f"{self.arm} carries {self.ratio:.3g} times the load of {self.base} [{self.low:.3g}, {self.high:.3g}]"
        edges = f"edges at {self.edge:,.4g} and {self.base_edge:,.4g} {unit}"
        if self.num_seeds == 1:
            return f"{said}, {edges}; the interval is that of the brackets alone, from one seed{of}"
        return f"{said}: {self.verdict} ({confidence:.0%} interval over {self.num_seeds} seeds{of}; mean {edges})"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


def ratio_of(base: ArmCapacity, arm: ArmCapacity, confidence: float, unit: float) -> Ratio | None:
    """The ratio of two arms' edges, paired by seed; None where no seed has both.

    Of each seed the edge lies in a bracket. The interval is Student's t of the logarithms of the ratios of the
    brackets' middles, two-sided, and then wider by what the brackets leave open: half their widths, on average.

    Args:
        base, arm: what was found of them.
        confidence: of the interval.
        unit: what a bracket's ends are multiplied by for requests a second, or users.
    """
    logs: list[float] = []
    base_logs: list[float] = []
    open_by: list[float] = []
    for seed, (low, high) in arm.by_seed.items():
        base_low, base_high = base.by_seed.get(seed, (None, None))
        if low is None or high is None or base_low is None or base_high is None:
            continue
        base_logs.append(math.log(base_low * base_high) / 2)
        logs.append(math.log(low * high) / 2 - base_logs[-1])
        open_by.append((math.log(high / low) + math.log(base_high / base_low)) / 2)
    if not logs:
        return None
    mean, base_edge = math.fsum(logs) / len(logs), unit * math.exp(math.fsum(base_logs) / len(base_logs))
    margin = mean_margin(logs, (1 + confidence) / 2) + math.fsum(open_by) / len(open_by)
    return Ratio(
        arm=arm.arm,
        base=base.arm,
        ratio=math.exp(mean),
        low=math.exp(mean - margin),
        high=math.exp(mean + margin),
        num_seeds=len(logs),
        edge=base_edge * math.exp(mean),
        base_edge=base_edge,
    )


def about_edges(confidence: float) -> str:
    """How the edges of ratios and the capacities of a table differ, in words."""
    return (
        "an edge is where the one run of a seed stops meeting the objectives; a capacity is usually lower, since there "
        f"the mean over all seeds has to meet them with {confidence:.0%} confidence"
    )
