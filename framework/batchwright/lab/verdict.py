"""Is one arm better than another in one metric? In words, with the size of the difference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchwright.lab.bootstrap import Interval, PairedBootstrap
from batchwright.lab.metrics import METRICS, PERCENTILES, Metric
from batchwright.lab.run_record import RunRecord
from batchwright.lab.samples import LATENCIES, Samples, latency_samples, met_slo
from batchwright.lab.summary import Summary

NO_DIFFERENCE = "no difference"
NOT_SHOWN = "no difference shown"
BETTER = "better"
WORSE = "worse"
NOT_TESTED = "not tested"
UNDEFINED = "undefined"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One metric of one arm against the first arm.

    Attributes:
        arm: which arm.
        metric: name of the metric.
        base, value: of the first arm, and of this one; None: undefined there.
        difference: ``value - base``.
        interval: of the difference; None where there is none.
        words: ``no difference`` (the same in every request), ``better`` or ``worse`` (the interval leaves out 0),
            ``no difference shown`` (it holds 0, or requests are too few), ``not tested`` (one number a run: it differs,
            and there is no interval), ``undefined`` (in one arm at least).
    """

    arm: str
    metric: str
    base: float | int | None
    value: float | int | None
    difference: float | None
    interval: Interval | None
    words: str

    @property
    def relative(self) -> float | None:
        """The difference as a share of the first arm's value; None where that is 0 or undefined."""
        return self.difference / abs(self.base) if self.difference is not None and self.base else None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "arm": self.arm,
            "metric": self.metric,
            "base": self.base,
            "value": self.value,
            "difference": self.difference,
            "low": self.interval and self.interval.low,
            "high": self.interval and self.interval.high,
            "relative_low": self.interval and self.interval.relative_low,
            "relative_high": self.interval and self.interval.relative_high,
            "verdict": self.words,
        }


class Judge:
    """Compares arms with the first one; draws the bootstrap's blocks once for all of them.

    Args:
        base: the first arm.
        summary: of it.
        seed: of the bootstrap.
    """

    def __init__(self, base: RunRecord, summary: Summary, seed: int = 0) -> None:
        self._summary = summary
        self._samples = _samples(base)
        self._bootstrap = PairedBootstrap(len(base.requests), seed)

    def verdicts(self, run: RunRecord, summary: Summary) -> list[Verdict]:
        """A verdict on each metric, in the order of ``METRICS``."""
        samples = _samples(run)
        tested = dict(self._intervals(samples))
        return [self._verdict(run.arm, metric, summary, tested) for metric in METRICS.values()]

    def _verdict(
        self, arm: str, metric: Metric, summary: Summary, tested: dict[str, tuple[bool, Interval | None]]
    ) -> Verdict:
        base, value = self._summary[metric.name], summary[metric.name]
        if base is None or value is None:
            words = NO_DIFFERENCE if base is value else UNDEFINED
            return Verdict(arm, metric.name, base, value, None, None, words)
        same, interval = tested.get(metric.name, (base == value, None))
        if same:
            return Verdict(arm, metric.name, base, value, value - base, None, NO_DIFFERENCE)
        if metric.name not in tested or metric.better is None:
            words = NOT_TESTED
        elif interval is None or interval.low <= 0 <= interval.high:
            words = NOT_SHOWN
        else:
            words = BETTER if (interval.low > 0) == (metric.better == "higher") else WORSE
        return Verdict(arm, metric.name, base, value, value - base, interval, words)

    def _intervals(self, samples: dict[str, Samples]) -> Iterator[tuple[str, tuple[bool, Interval | None]]]:
        """For each metric that can be tested: whether it is the same in every request, and else the interval."""
        quantiles = {"median": 0.5, **{f"p{p}": p / 100 for p in PERCENTILES}}
        for latency in LATENCIES:
            base, other = self._samples[latency], samples[latency]
            if not len(base) or not len(other):
                continue
            if _same(base, other):
                for kind in ("mean", *quantiles):
                    yield f"{kind}_{latency}_ms", (True, None)
                continue
            yield f"mean_{latency}_ms", (False, self._bootstrap.mean_interval(base, other))
            found = self._bootstrap.quantile_intervals(base, other, tuple(quantiles.values()))
            for kind, interval in zip(quantiles, found, strict=True):
                yield f"{kind}_{latency}_ms", (False, interval)
        base, other = self._samples["goodput"], samples["goodput"]
        yield "request_goodput", (_same(base, other), self._bootstrap.total_interval(base, other))


def _same(base: Samples, other: Samples) -> bool:
    return np.array_equal(base.values, other.values) and np.array_equal(base.owners, other.owners)


def _samples(run: RunRecord) -> dict[str, Samples]:
    met = np.array([met_slo(r) for r in run.requests], dtype=np.float64)
    rates = met / run.duration_s if run.duration_ns else met
    return {**latency_samples(run), "goodput": Samples(rates, np.arange(len(met), dtype=np.int64))}
