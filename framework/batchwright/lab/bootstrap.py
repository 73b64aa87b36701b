"""Intervals of differences between two arms, by a paired block bootstrap over requests.

Requests of one run depend on each other: who arrives close together shares a queue. So whole blocks of requests that
follow each other in order of arrival are drawn, with replacement, and the same ones in both arms. Blocks are long and
few, as batches are for means of simulations (Schmeiser, Operations Research 30, 1982: 10 to 30). Percentile intervals
over so few draws are too narrow; they are widened as Student's t is (Hesterberg, The American Statistician 69, 2015:
the expanded percentile interval).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.samples import Samples

Floats = NDArray[np.float64]

NUM_RESAMPLES = 2000
NUM_BLOCKS = 30
LEVEL = 0.99
"""Of each interval. A table shows about twenty verdicts, so one of 95% would be wrong once in every table."""

MIN_REQUESTS = 10
"""With fewer, a percentile interval is far too narrow to carry a verdict."""

_MAX_GRID = 4096


@dataclass(frozen=True, slots=True)
class Interval:
    """Of a difference, other - base.

    Attributes:
        low, high: of the difference.
        relative_low, relative_high: of the difference as a share of base's value; None where that can be 0.
    """

    low: float
    high: float
    relative_low: float | None
    relative_high: float | None


class PairedBootstrap:
    """Draws blocks of requests once, and evaluates statistics on every draw.

    Args:
        num_requests: requests of each arm.
        seed: of the draws.
    """

    def __init__(self, num_requests: int, seed: int = 0) -> None:
        self.num_requests = num_requests
        self.num_blocks = max(1, min(num_requests, NUM_BLOCKS))
        rng = np.random.default_rng([seed, num_requests])
        draws = rng.multinomial(self.num_blocks, np.full(self.num_blocks, 1 / self.num_blocks), size=NUM_RESAMPLES)
        self._weights = draws.astype(np.float64)  # [resamples, blocks]: how often each block was drawn

    def mean_interval(self, base: Samples, other: Samples) -> Interval | None:
        """Interval of mean(other) - mean(base); None where it cannot be told."""
        return self._interval(self._means(base), self._means(other))

    def total_interval(self, base: Samples, other: Samples) -> Interval | None:
        """Interval of sum(other) - sum(base)."""
        return self._interval(self._weights @ self._sums(base), self._weights @ self._sums(other))

    def quantile_intervals(self, base: Samples, other: Samples, quantiles: tuple[float, ...]) -> list[Interval | None]:
        """Interval of the difference of each quantile, other - base."""
        grid = _grid(base, other)
        pairs = zip(self._quantiles(base, grid, quantiles), self._quantiles(other, grid, quantiles), strict=True)
        return [self._interval(a, b) for a, b in pairs]

    def _interval(self, base: Floats, other: Floats) -> Interval | None:
        defined = np.isfinite(base) & np.isfinite(other)
        base, other = base[defined], other[defined]
        if self.num_requests < MIN_REQUESTS or len(base) < 0.99 * NUM_RESAMPLES:
            return None
        tail = expanded_tail(self.num_blocks)
        differences: Floats = other - base
        low, high = np.quantile(differences, [tail, 1 - tail]).tolist()
        if not (base > 0).all():
            return Interval(low, high, None, None)
        relative_low, relative_high = np.quantile(differences / base, [tail, 1 - tail]).tolist()
        return Interval(low, high, relative_low, relative_high)

    def _blocks(self, samples: Samples) -> NDArray[np.int64]:
        return samples.owners * self.num_blocks // self.num_requests

    def _sums(self, samples: Samples) -> Floats:
        return np.bincount(self._blocks(samples), samples.values, self.num_blocks).astype(np.float64)

    def _means(self, samples: Samples) -> Floats:
        counts = np.bincount(self._blocks(samples), minlength=self.num_blocks).astype(np.float64)
        drawn: Floats = self._weights @ counts
        means: Floats = np.full(NUM_RESAMPLES, np.nan)
        np.divide(self._weights @ self._sums(samples), drawn, out=means, where=drawn > 0)
        return means

    def _quantiles(self, samples: Samples, grid: Floats, quantiles: tuple[float, ...]) -> Iterator[Floats]:
        """float64[resamples] for each quantile, linear between ranks as numpy's."""
        width = len(grid)
        cells = self._blocks(samples) * width + np.searchsorted(grid, samples.values)
        counts = np.bincount(cells, minlength=self.num_blocks * width).reshape(self.num_blocks, width)
        below: Floats = self._weights @ np.cumsum(counts, axis=1).astype(np.float64)  # values up to each grid point
        num: Floats = below[:, -1].copy()
        # One search for all draws: each row is lifted above the row before it.
        lift = np.arange(NUM_RESAMPLES) * (float(num.max()) + 1)
        below += lift[:, None]
        first = np.arange(NUM_RESAMPLES) * width

        def ranked(rank: Floats) -> Floats:
            places = np.searchsorted(below.ravel(), rank + lift, side="right") - first
            values: Floats = grid[np.minimum(places, width - 1)]
            return values

        for q in quantiles:
            rank = np.maximum((num - 1) * q, 0)
            low, part = np.floor(rank), rank % 1
            value = ranked(low) * (1 - part) + ranked(np.minimum(low + 1, num - 1)) * part
            value[num == 0] = np.nan
            yield value


def expanded_tail(num_blocks: int) -> float:
    """The share to cut at each end so that percentiles of so few blocks cover as Student's t would.

    Phi(-sqrt(n / (n - 1)) t), with t of n - 1 degrees of freedom by its expansion in z (Abramowitz and Stegun, 26.7.5).
    """
    freedom = max(num_blocks - 1, 1)
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    t = (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
    return NormalDist().cdf(-math.sqrt((freedom + 1) / freedom) * t)


def _grid(base: Samples, other: Samples) -> Floats:
    """Values that stand for all: every one where they are few, else some at even ranks, and more in the upper tail."""
    pooled = np.sort(np.concatenate([base.values, other.values]))
    values = pooled[np.concatenate([[True], pooled[1:] != pooled[:-1]])] if len(pooled) else np.zeros(1)
    if len(values) <= _MAX_GRID:
        return values
    shares = [
        np.linspace(0, 1, _MAX_GRID // 2),
        np.linspace(0.85, 1, _MAX_GRID // 4),
        np.linspace(0.985, 1, _MAX_GRID // 4),
    ]
    ranks = np.unique(np.rint(np.concatenate(shares) * (len(pooled) - 1)).astype(np.int64))
    return np.unique(pooled[ranks])
