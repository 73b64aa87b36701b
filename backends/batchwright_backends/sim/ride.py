"""Decodes that go on together: each of their steps follows from the first."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from batchwright.batch import Riders, Row
from batchwright_backends.sim.cost import CostModel
from batchwright_backends.sim.load import AttentionLoad
from batchwright_backends.sim.tokens import ComingTokens, TokenDraw

_FIRST, _MOST = 4, 32
"""Steps that are worked out ahead at first, and at most."""
_FEW = 64
"""Rows up to which their tokens are kept one by one."""


class Ride:
    """What the steps of some decodes that go on together take and give.

    Args:
        riders: those of one batch.
        cost: what says how long a step takes.
        draw: what says which tokens come.
        coming: keeps those of each request that were drawn already.

    Attributes:
        who: the same in every batch in which they ride.
        num: how many they are.
    """

    def __init__(self, riders: Riders, cost: CostModel, draw: TokenDraw, coming: ComingTokens) -> None:
        self.who, self._start = riders.who, riders.when
        self.num = len(riders)
        self._kv_tokens, self._kv_max = riders.num_tokens, riders.most_tokens
        self._num_computed = riders.context_lens - 1 if cost.shape.num_sliding_layers else None
        self._places: NDArray[np.uint64] | None = None
        self._cost, self._draw, self._coming = cost, draw, coming
        # Of few: of each some tokens, and where in them the token of step 0 would be; and up to which step they go.
        self._columns: list[tuple[list[int], int]] = []
        self._drawn_to = -1
        # Of the steps from ``_ahead_from`` on, and from ``_tokens_from`` on.
        self._seconds: list[float] = []
        self._ahead_from = self._tokens_from = self._start
        self._tokens: list[list[int]] = []

    def seconds(self, when: int, num_steps: int) -> Iterable[float]:
        """Seconds of the steps from the one in which they stand at ``when`` on, while nobody else runs."""
        further, num = when - self._start, self.num
        if self._num_computed is not None:  # what a window cuts is another matter in each step
            ones = np.ones(num, dtype=np.int32)
            steps = range(further, further + num_steps)
            return (self._cost.step_s(self._cost.load(self._num_computed + step, ones, num, num)) for step in steps)
        return self._cost.decodes_s(num, self._kv_tokens + further * num, self._kv_max + further, num_steps)

    def attention(self, when: int) -> AttentionLoad:
        """What attention reads for them in the step in which they stand at ``when``."""
        further = when - self._start
        return AttentionLoad(self._kv_tokens + further * self.num, self._kv_max + further)

    def second(self, when: int) -> float:
        """Seconds of the step in which they stand at ``when``, if nobody else runs in it.

        More steps are worked out than are asked for, twice as many each time: many at once cost little more than a few.
        """
        place = when - self._ahead_from
        if not 0 <= place < len(self._seconds):
            self._seconds = list(self.seconds(when, min(2 * len(self._seconds), _MOST) or _FIRST))
            self._ahead_from, place = when, 0
        return self._seconds[place]

    def step(self, riders: Riders) -> tuple[list[int], float]:
        """Their tokens in the step of a batch, and its seconds if nobody else runs in it; the list stays as it is."""
        when = riders.when
        seconds = self.second(when)
        if self.num < _FEW:
            return self._tokens_of_few(riders), seconds
        place = when - self._tokens_from
        if not 0 <= place < len(self._tokens):
            num_steps = min(2 * len(self._tokens), _MOST) or _FIRST
            self._tokens = self.tokens_ahead(riders, num_steps).tolist()
            self._tokens_from, place = when, 0
        return self._tokens[place], seconds

    def _tokens_of_few(self, riders: Riders) -> list[int]:
        """Drawn one request after the other, each far ahead: they outlast the coming and going of others."""
        when = riders.when
        if when >= self._drawn_to:
            found = [(index, *self._coming.of(seed, index)) for seed, index in riders.draws()]
            self._columns = [(tokens, index - first - when) for index, first, tokens in found]
            self._drawn_to = when + min(len(tokens) - index + first for index, first, tokens in found)
        return [tokens[place + when] for tokens, place in self._columns]

    def tokens_ahead(self, riders: Riders, num_steps: int) -> NDArray[np.uint32]:
        """uint32[steps, rows]: tokens of the steps from that of a batch on."""
        further = riders.when - self._start
        if self._places is None:
            self._places = self._draw.places(riders.seeds, riders.output_indices - further)
        return self._draw.draw_places(self._places, further, num_steps)


def attention_of(rows: Iterable[Row], tile: int, riders: AttentionLoad | None) -> AttentionLoad:
    """What attention reads and computes for a few rows, and for decodes that ride before them.

    The same as :func:`~batchwright_backends.sim.load.attention_load` of all of them, without arrays.
    """
    kv_tokens, kv_max = (riders.kv_tokens, riders.kv_max) if riders is not None else (0, 0)
    twice_area = chunk_kv = 0
    for row in rows:
        num = row.num_scheduled
        context = row.num_computed + num
        kv_tokens += context
        if context > kv_max:
            kv_max = context
        if num > 1:
            twice_area += max(num, tile) * (2 * row.num_computed + num + 1)
            chunk_kv += context
    return AttentionLoad(kv_tokens, kv_max, twice_area / 2, chunk_kv)
