"""Intervals of differences between two arms, by a paired block bootstrap over requests.

Requests of one run depend on each other: who arrives close together shares a queue. So whole blocks of requests that
follow each other in order of arrival are drawn, with replacement, and the same ones in both arms (Kuensch, Annals of
Statistics 17, 1989, for blocks; Efron, Annals of Statistics 7, 1979, for the bootstrap and its percentile interval).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.samples import Samples

Floats = NDArray[np.float64]

NUM_RESAMPLES = 1000
LEVEL = 0.99
"""Of each interval. A table shows about twenty verdicts, so one of 95% would be wrong once in every table."""

MIN_REQUESTS = 10
"""With fewer, a percentile interval is far too narrow to carry a verdict."""

_MAX_GRID = 4096


class PairedBootstrap:
    """Draws blocks of requests once, and evaluates statistics on every draw.

    Args:
        num_requests: requests of each arm.
        seed: of the draws.
    """

    def __init__(self, num_requests: int, seed: int = 0) -> None:
        self.num_requests = num_requests
        self.num_blocks = max(1, min(num_requests, max(20, math.isqrt(num_requests))))
        rng = np.random.default_rng([seed, num_requests])
        draws = rng.multinomial(self.num_blocks, np.full(self.num_blocks, 1 / self.num_blocks), size=NUM_RESAMPLES)
        self._weights = draws.astype(np.float64)  # [resamples, blocks]: how often each block was drawn

    def mean_interval(self, base: Samples, other: Samples) -> tuple[float, float] | None:
        """Interval of mean(other) - mean(base); None where it cannot be told."""
        return self._interval(self._means(other) - self._means(base))

    def total_interval(self, base: Samples, other: Samples) -> tuple[float, float] | None:
        """Interval of sum(other) - sum(base)."""
        return self._interval(self._weights @ (self._sums(other) - self._sums(base)))

    def quantile_intervals(
        self, base: Samples, other: Samples, quantiles: tuple[float, ...]
    ) -> list[tuple[float, float] | None]:
        """Interval of the difference of each quantile, other - base."""
        grid = _grid(base, other)
        pairs = zip(self._quantiles(base, grid, quantiles), self._quantiles(other, grid, quantiles), strict=True)
        return [self._interval(b - a) for a, b in pairs]

    def _interval(self, differences: Floats) -> tuple[float, float] | None:
        differences = differences[np.isfinite(differences)]
        if self.num_requests < MIN_REQUESTS or len(differences) < 0.99 * NUM_RESAMPLES:
            return None
        low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)

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
        below = np.cumsum(self._weights @ counts.astype(np.float64), axis=1)  # values up to each grid point
        num = below[:, -1:]

        def ranked(rank: Floats) -> Floats:
            places: NDArray[np.int64] = np.minimum((below <= rank).sum(axis=1), width - 1)
            return grid[places]

        for q in quantiles:
            rank = np.maximum((num - 1) * q, 0)
            low, part = np.floor(rank), (rank % 1)[:, 0]
            value = ranked(low) * (1 - part) + ranked(np.minimum(low + 1, num - 1)) * part
            value[num[:, 0] == 0] = np.nan
            yield value


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
