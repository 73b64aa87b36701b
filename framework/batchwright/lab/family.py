"""Many metrics are tested at once: how strict each test is, so that all together are seldom wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from batchwright.errors import ConfigError, did_you_mean
from batchwright.lab.metrics import METRICS, Metric
from batchwright.lab.shown import shown_metrics

LEVEL = 0.95
"""How sure all intervals of a comparison are together."""

PRIMARY = (
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_itl_ms",
    "p99_itl_ms",
    "output_throughput",
    "request_goodput",
)
"""Metrics that a comparison is mainly about, unless others are declared."""

_SHARE = 0.5
"""Of the risk of a false verdict, given to the primary metrics."""


@dataclass(frozen=True)
class Family:
    """The tests of one comparison, held to one level together.

    The risk of any false ``better`` or ``worse`` in a table is at most ``1 - level``: it is shared out, half of it
    among the primary metrics and half among all others that are shown, in equal parts for each metric of each arm
    (Bonferroni; with weights, as Rosenthal and Rubin, Journal of Educational Psychology 76, 1984). Step-down
    procedures, such as Holm's, would find a little more, but have no intervals to go with it; here all intervals hold
    at once.

    Attributes:
        level: of all intervals of a comparison together, such as 0.95.
        primary: names of the metrics that were declared, before looking, to be what it is about.

    Raises:
        ConfigError: the level is out of its range.
    """

    level: float = LEVEL
    primary: tuple[str, ...] = PRIMARY

    def __post_init__(self) -> None:
        if not 0.5 <= self.level < 1:
            raise ConfigError(f"the level of the intervals must be at least 0.5 and below 1, not {self.level!r}")

    def check(self, metrics: Mapping[str, Metric] = METRICS) -> None:
        """Whether the primary metrics are among these, by name.

        Raises:
            ConfigError: there is no such metric, or it is better neither way.
        """
        for name in self.primary:
            if name not in metrics:
                raise ConfigError(f"there is no metric {name!r} to be a primary one; {did_you_mean(name, metrics)}")
            if metrics[name].better is None:
                raise ConfigError(f"{name} is better neither way: it cannot be a primary metric")

    @classmethod
    def parse(cls, level: float | None = None, primary: str | None = None) -> Family:
        """From a command line: a level, and names with commas between them.

        Raises:
            ConfigError: as the class.
        """
        names = PRIMARY if primary is None else tuple(name.strip() for name in primary.split(",") if name.strip())
        return cls(LEVEL if level is None else level, names)

    def levels(
        self, tested: Collection[str], num_arms: int = 1, metrics: Mapping[str, Metric] = METRICS
    ) -> dict[str, float]:
        """The level of the interval of each metric.

        Args:
            tested: metrics that can get an interval.
            num_arms: arms that are compared with the first.
            metrics: all, by name: those that tables do not show have the level of the others, and no part of the risk.
        """
        shown = {metric.name for metric in shown_metrics(metrics)}
        primary = [name for name in tested if name in self.primary]
        others = [name for name in tested if name not in self.primary and name in shown]
        risk = (1 - self.level) / max(num_arms, 1)
        share = _SHARE if others else 1.0
        found = {name: 1 - risk * share / len(primary) for name in primary}
        share = 1 - _SHARE if primary else 1.0
        other = 1 - risk * share / max(len(others), 1)
        return {name: found.get(name, other) for name in tested}


def share_of(level: float) -> str:
    """A level in percent, with as many decimals as it takes not to say 100%."""
    decimals = 0 if round(100 * level, 6).is_integer() else 1
    while float(f"{100 * level:.{decimals}f}") >= 100:
        decimals += 1
    return f"{100 * level:.{decimals}f}%"
