"""Decodes that go on together: each of their steps follows from the first."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from batchwright.batch import Riders, Row
from batchwright_backends.sim.cost import CostModel
from batchwright_backends.sim.load import AttentionLoad
from batchwright_backends.sim.tokens import TokenDraw

_FIRST, _MOST = 4, 32
"""Steps whose tokens are drawn ahead at first, and at most, unless more are asked for."""


_MORE = 2
"""Steps beyond those asked for: what cuts a stretch is most often a newcomer, beside whom they go on."""


class Ride:
    """What the steps of some decodes that go on together take and give.

    Args:
        riders: those of one batch.
        cost: what says how long a step takes.
        draw: what says which tokens come.

    Attributes:
        who: the same in every batch in which they ride.
        num: how many they are.
    """

    def __init__(self, riders: Riders, cost: CostModel, draw: TokenDraw) -> None:
        self.who, self._start = riders.who, riders.when
        self.num = len(riders)
        contexts = riders.context_lens
        listed = contexts.tolist()
        self._kv_tokens, self._kv_max = sum(listed), max(listed)
        self._num_computed = contexts - 1 if cost.shape.num_sliding_layers else None
        self._places = draw.places(riders.seeds, riders.output_indices)
        self._cost, self._draw = cost, draw
        self._drawn: NDArray[np.uint32] = np.zeros((0, self.num), dtype=np.uint32)
        self._drawn_from = self._start

    def seconds(self, when: int) -> float:
        """Seconds of the step in which they stand at ``when`` and nobody else runs."""
        further, num = when - self._start, self.num
        if self._num_computed is not None:  # what a window cuts is another matter in each step
            ones = np.ones(num, dtype=np.int32)
            return self._cost.step_s(self._cost.load(self._num_computed + further, ones, num, num))
        return self._cost.decode_s(num, self._kv_tokens + further * num, self._kv_max + further)

    def attention(self, when: int) -> AttentionLoad:
        """What attention reads for them in the step in which they stand at ``when``."""
        further = when - self._start
        return AttentionLoad(self._kv_tokens + further * self.num, self._kv_max + further)

    def tokens(self, when: int) -> list[int]:
        """Their tokens in the step in which they stand at ``when``.

        More are drawn than are asked for, twice as many each time: many at once cost little more than a few.
        """
        place = when - self._drawn_from
        if not 0 <= place < len(self._drawn):
            self._draw_from(when, min(2 * len(self._drawn), _MOST) or _FIRST)
            place = 0
        tokens: list[int] = self._drawn[place].tolist()
        return tokens

    def tokens_ahead(self, when: int, num_steps: int) -> NDArray[np.uint32]:
        """uint32[steps, rows]: tokens of the steps from ``when`` on."""
        place = when - self._drawn_from
        if not 0 <= place <= len(self._drawn) - num_steps:
            self._draw_from(when, num_steps + _MORE)
            place = 0
        return self._drawn[place : place + num_steps]

    def _draw_from(self, when: int, num_steps: int) -> None:
        self._drawn = self._draw.draw_places(self._places, when - self._start, num_steps)
        self._drawn_from = when


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
