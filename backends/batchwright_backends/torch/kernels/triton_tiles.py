"""How a step is cut into tiles for the Triton kernel, and how large these are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from batchwright_backends.torch.inputs import StepInputs, StepTensors

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer

# A decode over more keys than this is split, into at most so many parts.
SPLIT_KEYS = 256
MAX_SPLITS = 32
# Shared memory that the tiles of Q, K and V of one program may take; two tiles of K and V are in flight. GPUs of
# compute capability 8.6, 8.9 and 12 have 99 KiB for a program, others more (CUDA C++ Programming Guide, technical
# specifications by compute capability).
TILE_BYTES = 96 << 10
STAGES = 2
LEAST_TILE = 16  # a side of a matrix product of tiles


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of one call.

    Attributes:
        rows: int32[tiles].
        firsts: int32[tiles], place of a tile's first token in its row.
        num_splits: programs that share the keys of a tile; 0: each tile is done by one, which writes the result.
    """

    rows: torch.Tensor
    firsts: torch.Tensor
    num_splits: int


class Plan:
    """Arrays of a step, and its tiles, made for each tile size when a layer first asks.

    Attributes:
        tensors: of the step.
    """

    def __init__(self, inputs: StepInputs, device: torch.device) -> None:
        self.tensors = inputs.tensors(device)
        self._inputs = inputs
        self._counts = np.diff(inputs.starts)
        self._longest_decode = int(inputs.context_lens[self._counts == 1].max(initial=0))
        self._device = device
        self._tiles: dict[int, list[Tiles]] = {}

    def tiles(self, tile_tokens: int) -> list[Tiles]:
        """The decodes, and the other rows in tiles of that many tokens."""
        if tile_tokens not in self._tiles:
            decodes = np.flatnonzero(self._counts == 1)
            others = np.flatnonzero(self._counts > 1)
            found = []
            if decodes.size:
                num_splits = splits_of(self._longest_decode)
                found.append(Tiles(self._to(decodes), self._to(np.zeros_like(decodes)), num_splits))
            if others.size:
                num_tiles = -(-self._counts[others] // tile_tokens)
                rows = np.repeat(others, num_tiles)
                place = np.arange(rows.size) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)
                found.append(Tiles(self._to(rows), self._to(place * tile_tokens), 0))
            self._tiles[tile_tokens] = found
        return self._tiles[tile_tokens]

    def _to(self, array: NDArray[Any]) -> torch.Tensor:
        return self._inputs.put(array, self._device, np.int32)


class DecodePlan:
    """Tiles of one token a row, whatever the lengths are: for as many parts as the longest row may need.

    Attributes:
        tensors: of the step.
    """

    def __init__(self, tensors: StepTensors, max_keys: int) -> None:
        self.tensors = tensors
        rows = torch.arange(len(tensors.context_lens), dtype=torch.int32, device=tensors.context_lens.device)
        self._all = [Tiles(rows, torch.zeros_like(rows), splits_of(max_keys))]

    def tiles(self, tile_tokens: int) -> list[Tiles]:
        """See :class:`Plan`."""
        return self._all


def splits_of(num_keys: int) -> int:
    """Programs that share a decode over so many keys."""
    return min(MAX_SPLITS, -(-num_keys // SPLIT_KEYS))


def tile_sizes(group: int, key_lanes: int, value_lanes: int, itemsize: int) -> tuple[int, int, int]:
    """Queries of a tile of many tokens and of a decode, and keys of a tile; powers of two.

    Args:
        group: query heads that share a KV head.
        key_lanes: width of K, rounded up to a power of two.
        value_lanes: the same of V.
        itemsize: bytes of an element.
    """
    least = max(LEAST_TILE, _power_of_two(group))
    queries, keys = max(64, least), 64
    while tile_bytes(queries, keys, key_lanes, value_lanes, itemsize) > TILE_BYTES:
        if keys > LEAST_TILE and (keys >= queries or queries == least):
            keys //= 2
        elif queries > least:
            queries //= 2
        else:
            break
    return queries, least, keys


def tile_bytes(queries: int, keys: int, key_lanes: int, value_lanes: int, itemsize: int) -> int:
    """Shared memory of a program with such tiles."""
    return (queries * key_lanes + STAGES * keys * (key_lanes + value_lanes)) * itemsize


def lanes_of(layer: AttentionLayer) -> tuple[int, int]:
    """Widths of K and V as the programs see them."""
    return max(LEAST_TILE, _power_of_two(layer.key_width)), max(LEAST_TILE, _power_of_two(layer.value_width))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
