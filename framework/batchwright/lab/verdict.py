"""Is one arm better than another in one metric? In words, with the size of the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.bootstrap import FEWER_RESAMPLES, MIN_REQUESTS, NUM_RESAMPLES, BlockBootstrap
from batchwright.lab.evidence import Evidence
from batchwright.lab.family import Family
from batchwright.lab.interval import Interval, interval_of_draws, interval_of_seeds
from batchwright.lab.metrics import METRICS, QUANTILES, Metric

NO_DIFFERENCE = "no difference"
NOT_SHOWN = "no difference shown"
BETTER = "better"
WORSE = "worse"
NOT_TESTED = "not tested"
UNDEFINED = "undefined"

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One metric of one arm against the first arm.

    Attributes:
        arm: which arm.
        metric: name of the metric.
        base, value: of the first arm, and of this one; of several seeds the mean. None: undefined there.
        difference: ``value - base``.
        interval: of the difference; None where there is none.
        words: ``no difference`` (the same in every request), ``better`` or ``worse`` (the interval leaves out 0),
            ``no difference shown`` (it holds 0, or requests or seeds are too few), ``not tested`` (one number of a
            single run: it differs, and there is no interval), ``undefined`` (in one arm at least).
        num_seeds: pairs of runs that it comes from.
    """

    arm: str
    metric: str
    base: float | int | None
    value: float | int | None
    difference: float | None
    interval: Interval | None
    words: str
    num_seeds: int = 1

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
            "level": self.interval and self.interval.level,
            "num_seeds": self.num_seeds,
            "verdict": self.words,
        }


class Judge:
    """Compares arms with the first one; draws the bootstrap's blocks once for all of them.

    Args:
        base: the first arm's runs, by seed.
        family: how strict each test is.
        num_arms: arms that will be compared with the first.
        seed: of the bootstrap.
        metrics: to judge, by name.
    """

    def __init__(
        self,
        base: Mapping[int, Evidence],
        family: Family,
        num_arms: int = 1,
        seed: int = 0,
        metrics: Mapping[str, Metric] = METRICS,
    ) -> None:
        self._base = base
        self._metrics = metrics
        self._family = family
        self._num_arms = num_arms
        self._seed = seed
        self._drawn: dict[tuple[int, int, int], dict[str, Floats]] = {}

    def verdicts(self, arm: str, runs: Mapping[int, Evidence]) -> list[Verdict]:
        """A verdict on each metric, in their order.

        Args:
            arm: its name.
            runs: by seed; each has a run of the first arm to be paired with. Seeds that gave the very same runs as
                another count once.
        """
        pairs = _distinct([(self._base[seed], run) for seed, run in runs.items()])
        several = len(pairs) > 1
        draws = [self._draws(base, other, several) for base, other in pairs]
        tested = self._tested(pairs, several)
        levels = self._family.levels(tested, self._num_arms, self._metrics)
        return [self._verdict(arm, metric, pairs, draws, levels.get(metric.name)) for metric in self._metrics.values()]

    def _verdict(
        self,
        arm: str,
        metric: Metric,
        pairs: Sequence[tuple[Evidence, Evidence]],
        draws: Sequence[tuple[dict[str, Floats], dict[str, Floats]]],
        level: float | None,
    ) -> Verdict:
        name = metric.name
        known = [
            place
            for place, (base, other) in enumerate(pairs)
            if base.summary[name] is not None and other.summary[name] is not None
        ]
        one, two = ([pair[which].summary[name] for pair in pairs] for which in (0, 1))
        if not known:
            words = NO_DIFFERENCE if one == two else UNDEFINED
            return Verdict(arm, name, _mean(one), _mean(two), None, None, words, len(pairs))
        base, value = _mean([one[k] for k in known]), _mean([two[k] for k in known])
        assert base is not None and value is not None
        same = all(_same(name, *pairs[k]) for k in known)
        found = None if same or level is None else self._interval(name, pairs, draws, known, level)
        words = NO_DIFFERENCE if same else _words(metric, found, level is not None)
        return Verdict(arm, name, base, value, value - base, found, words, len(known))

    def _interval(
        self,
        name: str,
        pairs: Sequence[tuple[Evidence, Evidence]],
        draws: Sequence[tuple[dict[str, Floats], dict[str, Floats]]],
        known: Sequence[int],
        level: float,
    ) -> Interval | None:
        one, two = ([_number(pairs[k][which], name) for k in known] for which in (0, 1))
        drawn = [(draws[k][0][name], draws[k][1][name]) for k in known if name in draws[k][0] and name in draws[k][1]]
        num_blocks = min(_num_blocks(*pairs[k]) for k in known)
        if len(known) == 1:
            return interval_of_draws(drawn[0], num_blocks, level, one[0], two[0]) if drawn else None
        return interval_of_seeds(one, two, drawn if len(drawn) == len(known) else None, num_blocks, level)

    def _tested(self, pairs: Sequence[tuple[Evidence, Evidence]], several: bool) -> list[str]:
        """Metrics that can get an interval: those that are better one way; of single runs, with a value a request."""
        return [
            name
            for name, metric in self._metrics.items()
            if metric.better is not None
            and any(base.summary[name] is not None and (several or name in base.samples_of) for base, _ in pairs)
        ]

    def _draws(self, base: Evidence, other: Evidence, several: bool) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Every tested statistic of both runs, on the same draws of blocks."""
        if base.num_requests < MIN_REQUESTS:
            return {}, {}
        num = FEWER_RESAMPLES if several else NUM_RESAMPLES
        num_blocks = _num_blocks(base, other)
        seeds = (self._seed, base.seed) if several else (self._seed,)
        blocks = BlockBootstrap(base.num_requests, *seeds, num_resamples=num, num_blocks=num_blocks)
        key = base.seed, num, num_blocks
        if key not in self._drawn:
            self._drawn[key] = _statistics(base, blocks)
        return self._drawn[key], _statistics(other, blocks)


def _statistics(run: Evidence, blocks: BlockBootstrap) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    for sampled in run.sampled:
        names, samples = sampled.names, sampled.samples
        if "total" in names:
            found[names["total"]] = blocks.totals(samples)
        if "mean" in names:
            found[names["mean"]] = blocks.means(samples)
        kinds = [kind for kind in QUANTILES if kind in names]
        drawn = blocks.quantiles(samples, [QUANTILES[kind] for kind in kinds]) if kinds else []
        found |= {names[kind]: values for kind, values in zip(kinds, drawn, strict=True)}
    return found


def _num_blocks(base: Evidence, other: Evidence) -> int:
    return min(base.num_blocks, other.num_blocks)


def _words(metric: Metric, interval: Interval | None, is_tested: bool) -> str:
    if not is_tested:
        return NOT_TESTED
    if interval is None or interval.low <= 0 <= interval.high:
        return NOT_SHOWN
    return BETTER if (interval.low > 0) == (metric.better == "higher") else WORSE


def _distinct(pairs: Sequence[tuple[Evidence, Evidence]]) -> list[tuple[Evidence, Evidence]]:
    """Without pairs that repeat an earlier one: nothing varied with their seed, and they tell nothing new."""
    found = {(base.fingerprint, other.fingerprint): (base, other) for base, other in reversed(pairs)}
    return list(reversed(found.values()))


def _same(name: str, base: Evidence, other: Evidence) -> bool:
    one, two = base.samples_of.get(name), other.samples_of.get(name)
    if one is None or two is None:
        return bool(base.summary[name] == other.summary[name])
    return np.array_equal(one.values, two.values) and np.array_equal(one.owners, two.owners)


def _number(run: Evidence, name: str) -> float:
    value = run.summary[name]
    assert value is not None
    return value


def _mean(values: Sequence[float | int | None]) -> float | int | None:
    known = [v for v in values if v is not None]
    if len(known) < 2:
        return known[0] if known else None
    return fmean(known)
