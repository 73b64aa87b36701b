"""The tokens that a simulated model samples: a function of a request's seed and a place in its output, nothing else.

So batching, preemption and the policy change no token, and two requests with different seeds share no text by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from batchwright.errors import ConfigError

# Odd 64-bit constants: the fractional parts of the golden ratio and of sqrt(2) keep (seed, index) pairs apart, and the
# two multipliers are those of David Stafford's mix 13, which spreads every input bit over every output bit.
_SEED, _INDEX = 0x9E3779B97F4A7C15, 0x6A09E667F3BCC909
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = 2**64 - 1
_NP_SEED, _NP_INDEX, _NP_MIX_1, _NP_MIX_2 = (np.uint64(c) for c in (_SEED, _INDEX, _MIX_1, _MIX_2))
_NP_27, _NP_30, _NP_32 = (np.uint64(c) for c in (27, 30, 32))
_STEPS = np.arange(1024, dtype=np.uint64) * _NP_INDEX
_AHEAD, _MOST_KEPT = 128, 1024
_FEW = 12  # rows up to which Python's integers are faster than a dozen numpy calls


class TokenDraw:
    """Draws token ids of a vocabulary, never one that ends a text.

    They come from the widest range of ids without such a token, which is the vocabulary but for some ids at its edge:
    one addition a draw.

    Args:
        vocab_size: token ids are in ``range(vocab_size)``.
        eos_token_ids: ids that are never drawn.

    Raises:
        ConfigError: nothing is left to draw.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int] = ()) -> None:
        fences = [-1, *sorted({e for e in eos_token_ids if 0 <= e < vocab_size}), vocab_size]
        self._count, self._low = max((high - low - 1, low + 1) for low, high in pairwise(fences))
        if self._count < 1:
            raise ConfigError(f"a vocabulary of {vocab_size} tokens has none beside those that end a text")
        self._np_count, self._np_low = np.uint64(self._count), np.uint64(self._low)

    def draw(self, seeds: NDArray[np.uint64], output_indices: NDArray[np.int64]) -> list[int]:
        """One token id for each row.

        Args:
            seeds: uint64[m], of the requests.
            output_indices: int64[m], places in their outputs, from 0.
        """
        if len(seeds) <= _FEW:
            rows = zip(seeds.tolist(), output_indices.tolist(), strict=True)
            return [self.draw_one(seed, index) for seed, index in rows]
        tokens: list[int] = self._draw(self.places(seeds, output_indices)).tolist()
        return tokens

    def draw_ahead(
        self, seeds: NDArray[np.uint64], output_indices: NDArray[np.int64], num_steps: int
    ) -> NDArray[np.uint32]:
        """uint32[num_steps, m]: the token ids of each row in this step and in those after it.

        Args:
            seeds: uint64[m], of the requests.
            output_indices: int64[m], places in their outputs in the first of the steps, from 0.
            num_steps: at least 1.
        """
        return self.draw_places(self.places(seeds, output_indices), 0, num_steps)

    def places(self, seeds: NDArray[np.uint64], output_indices: NDArray[np.int64]) -> NDArray[np.uint64]:
        """uint64[m]: what the draws of these rows begin with, for ``draw_places``."""
        places: NDArray[np.uint64] = seeds * _NP_SEED
        places += output_indices.view(np.uint64) * _NP_INDEX
        return places

    def draw_places(self, places: NDArray[np.uint64], further: int, num_steps: int) -> NDArray[np.uint32]:
        """uint32[num_steps, m]: ``draw_ahead`` of rows that are so many steps further than ``places`` was made for."""
        steps = _STEPS[further : further + num_steps]
        if len(steps) < num_steps:
            steps = np.arange(further, further + num_steps, dtype=np.uint64) * _NP_INDEX
        return self._draw(places + steps[:, None]).astype(np.uint32)

    def _draw(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Tokens of places, which are lost."""
        x ^= x >> _NP_30
        x *= _NP_MIX_1
        x ^= x >> _NP_27
        x *= _NP_MIX_2
        x >>= _NP_32  # the high half is the better mixed one
        x *= self._np_count
        x >>= _NP_32
        x += self._np_low
        return x

    def draw_one(self, seed: int, output_index: int) -> int:
        """The token id of one row."""
        return ((mixed(seed, output_index) >> 32) * self._count >> 32) + self._low


class ComingTokens:
    """Tokens of requests that go on, drawn many at once and handed out as their steps come."""

    def __init__(self, draw: TokenDraw) -> None:
        self._draw = draw
        self._drawn: dict[int, tuple[int, list[int]]] = {}  # by seed: a place in the output, and the tokens from it on

    def of(self, seed: int, output_index: int) -> tuple[int, list[int]]:
        """Tokens of a request's output: a place up to this one, and tokens from there on, this place's among them."""
        found = self._drawn.get(seed)
        if found is None or not found[0] <= output_index < found[0] + len(found[1]):
            if len(self._drawn) >= _MOST_KEPT:  # most of them have ended
                self._drawn.clear()
            seeds, places = np.array([seed], dtype=np.uint64), np.array([output_index], dtype=np.int64)
            found = output_index, self._draw.draw_ahead(seeds, places, _AHEAD)[:, 0].tolist()
            self._drawn[seed] = found
        return found


def mixed(seed: int, index: int) -> int:
    """64 bits that follow from a seed and a place, and look like chance."""
    x = (seed * _SEED + index * _INDEX) & _WORD
    x = ((x ^ (x >> 30)) * _MIX_1) & _WORD
    return ((x ^ (x >> 27)) * _MIX_2) & _WORD
