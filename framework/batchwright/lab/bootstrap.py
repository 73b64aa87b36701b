"""A block bootstrap over the requests of a run.

Requests of one run depend on each other: who arrives close together shares a queue. So whole blocks of requests that
follow each other in order of arrival are drawn, with replacement, and the same ones in both arms. Blocks are long and
few, as batches are for means of simulations (Schmeiser, Operations Research 30, 1982): at most 30, and fewer where a
block would not hold twice the requests that are in the system at a time, for these share their steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.samples import Samples

Floats = NDArray[np.float64]

NUM_RESAMPLES = 2000
FEWER_RESAMPLES = 400
"""Enough for a variance, which is all that several seeds ask for."""

NUM_BLOCKS = 30
FEWEST_BLOCKS = 5

MIN_REQUESTS = 10
"""With fewer, blocks say nothing of how requests vary."""

_MAX_GRID = 512


def num_blocks_of(num_requests: int, in_flight: float) -> int:
    """How many blocks a run has.

    Args:
        num_requests: of the run.
        in_flight: how many of them are in the system at a time, on average.
    """
    most = num_requests / max(2 * in_flight, 1.0)
    return max(1, min(num_requests, NUM_BLOCKS, max(FEWEST_BLOCKS, int(most))))


class BlockBootstrap:
    """Draws blocks of requests once, and evaluates statistics on every draw.

    Args:
        num_requests: requests of each arm.
        seed: of the draws; a further number for each seed of an experiment.
        num_resamples: how many draws.
        num_blocks: how many blocks; by default 30, or as many as there are requests.
    """

    def __init__(
        self, num_requests: int, *seed: int, num_resamples: int = NUM_RESAMPLES, num_blocks: int | None = None
    ) -> None:
        self.num_requests = num_requests
        self.num_blocks = num_blocks if num_blocks is not None else num_blocks_of(num_requests, 0)
        rng = np.random.default_rng([*(s & 0xFFFFFFFFFFFFFFFF for s in seed or (0,)), num_requests])
        draws = rng.multinomial(self.num_blocks, np.full(self.num_blocks, 1 / self.num_blocks), size=num_resamples)
        self._weights = draws.astype(np.float64)  # [resamples, blocks]: how often each block was drawn

    def means(self, samples: Samples) -> Floats:
        """float64[resamples]: the mean in each draw; NaN where a draw has no value."""
        blocks = self._blocks(samples)
        counts = np.bincount(blocks, minlength=self.num_blocks).astype(np.float64)
        drawn: Floats = self._weights @ counts
        found: Floats = np.full(len(drawn), np.nan)
        np.divide(self._weights @ self._sums(blocks, samples), drawn, out=found, where=drawn > 0)
        return found

    def totals(self, samples: Samples) -> Floats:
        """float64[resamples]: the sum in each draw."""
        total: Floats = self._weights @ self._sums(self._blocks(samples), samples)
        return total

    def quantiles(self, samples: Samples, quantiles: Sequence[float]) -> list[Floats]:
        """float64[resamples] for each quantile, linear between ranks as numpy's; NaN where a draw has no value.

        A quantile of a draw is near that of the whole. So each is looked for among the values whose rank is near it,
        as far as any draw strays; of many such values, 512 at even ranks stand for all.
        """
        if not len(samples):
            return [np.full(len(self._weights), np.nan) for _ in quantiles]
        order = np.argsort(samples.values)
        values, blocks = samples.values[order], self._blocks(samples)[order]
        counts = np.bincount(blocks, minlength=self.num_blocks)
        num: Floats = self._weights @ counts.astype(np.float64)
        return [self._quantile(values, blocks, counts, num, q) for q in quantiles]

    def _quantile(
        self, values: Floats, blocks: NDArray[np.int64], counts: NDArray[np.int64], num: Floats, q: float
    ) -> Floats:
        """Of sorted values, of which ``blocks`` says where each belongs."""
        rank = np.maximum((num - 1) * q, 0)
        first, last = self._reach(blocks, counts, q, rank)
        width = last - first
        places = np.arange(width) if width <= _MAX_GRID else np.linspace(0, width - 1, _MAX_GRID).round().astype(int)
        cell = np.searchsorted(places, np.arange(width))  # the grid point that each value is counted with
        grid = values[first + places]
        inside = np.bincount(blocks[first:last] * len(places) + cell, minlength=self.num_blocks * len(places)).reshape(
            self.num_blocks, len(places)
        )
        below = np.bincount(blocks[:first], minlength=self.num_blocks)
        up_to: Floats = self._weights @ (np.cumsum(inside, axis=1) + below[:, None]).astype(np.float64)

        def ranked(wanted: Floats) -> Floats:
            place = (up_to <= wanted[:, None]).sum(axis=1)
            found: Floats = grid[np.minimum(place, len(grid) - 1)]
            return found

        low, part = np.floor(rank), rank % 1
        value: Floats = ranked(low) * (1 - part) + ranked(np.minimum(low + 1, num - 1)) * part
        value[num == 0] = np.nan
        return value

    def _reach(self, blocks: NDArray[np.int64], counts: NDArray[np.int64], q: float, rank: Floats) -> tuple[int, int]:
        """The ranks between which every draw's quantile lies."""
        total = len(blocks)
        middle = int(q * (total - 1))
        here = np.bincount(blocks[:middle], minlength=self.num_blocks)
        strays = np.abs(self._weights @ here.astype(np.float64) - rank).max()
        width = int(2 * strays) + 8
        while True:
            first, last = max(0, middle - width), min(total, middle + width)
            below = self._weights @ np.bincount(blocks[:first], minlength=self.num_blocks).astype(np.float64)
            above = self._weights @ np.bincount(blocks[:last], minlength=self.num_blocks).astype(np.float64)
            enough_below = first == 0 or bool((below <= np.floor(rank)).all())
            enough_above = last == total or bool((above > np.floor(rank) + 1).all())
            if enough_below and enough_above:
                return first, last
            width *= 2

    def _blocks(self, samples: Samples) -> NDArray[np.int64]:
        return samples.owners * self.num_blocks // self.num_requests

    def _sums(self, blocks: NDArray[np.int64], samples: Samples) -> Floats:
        return np.bincount(blocks, samples.values, self.num_blocks).astype(np.float64)
