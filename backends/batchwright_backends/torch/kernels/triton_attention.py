"""Batchwright's own kernel: paged attention in Triton, over any block size, with windows, caps and sinks.

Rows of more than one token go in tiles of queries; decodes split their keys between programs. The programs themselves
are in ``triton_kernels.py``. Tested under Triton's interpreter; not yet run on a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.kernels.demand import HALF, Abilities, Demand
from batchwright_backends.torch.kernels.kernel import AttentionKernel

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer
    from batchwright_backends.torch.kv_cache import KVCache

# A decode over more keys than this is split, into at most so many parts.
SPLIT_KEYS = 256
MAX_SPLITS = 32
# Shared memory that the tiles of Q, K and V of one program may take; two tiles of K and V are in flight. GPUs of
# compute capability 8.6, 8.9 and 12 have 99 KiB for a program, others more (CUDA C++ Programming Guide, technical
# specifications by compute capability).
TILE_BYTES = 96 << 10
STAGES = 2
LEAST_TILE = 16  # a side of a matrix product of tiles
ABILITIES = Abilities(dtypes=(*HALF, torch.float32), max_width=256)


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
        starts: int32[rows + 1], as in ``StepInputs``.
        context_lens: int32[rows].
        block_tables: int32[rows, widest].
    """

    def __init__(self, inputs: StepInputs, device: torch.device) -> None:
        self._counts = np.diff(inputs.starts)
        self._longest_decode = int(inputs.context_lens[self._counts == 1].max(initial=0))
        self._device = device
        self._tiles: dict[int, list[Tiles]] = {}
        self.starts = self._to(inputs.starts)
        self.context_lens = self._to(inputs.context_lens)
        self.block_tables = self._to(inputs.block_tables)

    def tiles(self, tile_tokens: int) -> list[Tiles]:
        """The decodes, and the other rows in tiles of that many tokens."""
        if tile_tokens not in self._tiles:
            decodes = np.flatnonzero(self._counts == 1)
            others = np.flatnonzero(self._counts > 1)
            found = []
            if decodes.size:
                num_splits = min(MAX_SPLITS, -(-self._longest_decode // SPLIT_KEYS))
                found.append(Tiles(self._to(decodes), self._to(np.zeros_like(decodes)), num_splits))
            if others.size:
                num_tiles = -(-self._counts[others] // tile_tokens)
                rows = np.repeat(others, num_tiles)
                place = np.arange(rows.size) - np.repeat(np.cumsum(num_tiles) - num_tiles, num_tiles)
                found.append(Tiles(self._to(rows), self._to(place * tile_tokens), 0))
            self._tiles[tile_tokens] = found
        return self._tiles[tile_tokens]

    def _to(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(self._device)


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
    while _tile_bytes(queries, keys, key_lanes, value_lanes, itemsize) > TILE_BYTES:
        if keys > LEAST_TILE and (keys >= queries or queries == least):
            keys //= 2
        elif queries > least:
            queries //= 2
        else:
            break
    return queries, least, keys


def _tile_bytes(queries: int, keys: int, key_lanes: int, value_lanes: int, itemsize: int) -> int:
    return (queries * key_lanes + STAGES * keys * (key_lanes + value_lanes)) * itemsize


def _lanes(layer: AttentionLayer) -> tuple[int, int]:
    """Widths of K and V as the programs see them."""
    return max(LEAST_TILE, _power_of_two(layer.key_width)), max(LEAST_TILE, _power_of_two(layer.value_width))


def _too_large(demand: Demand) -> str | None:
    """Why the least tile of a layer does not fit, or None."""
    for layer in demand.layers:
        group = layer.num_heads // layer.num_kv_heads
        queries, _, keys = tile_sizes(group, *_lanes(layer), demand.dtype.itemsize)
        if _tile_bytes(queries, keys, *_lanes(layer), demand.dtype.itemsize) > TILE_BYTES:
            return (
                f"{group} query heads of width {layer.key_width} on one KV head take more than the "
                f"{TILE_BYTES >> 10} KiB of a program's tiles"
            )
    return None


class TritonAttention(AttentionKernel):
    """Any block size and head width up to 256; windows, soft caps, sinks, and V of another width than K."""

    name = title = "triton"

    def __init__(self) -> None:
        programs = importlib.import_module("batchwright_backends.torch.kernels.triton_kernels")
        self._attend_tile: Any = programs.attend_tile
        self._join_parts: Any = programs.join_parts

    @staticmethod
    def refusal(demand: Demand) -> str | None:
        """See :class:`AttentionKernel`."""
        if demand.device != "cuda":
            if not demand.is_named:
                return "it needs a GPU"
            if os.environ.get("TRITON_INTERPRET") != "1":
                return "it needs a GPU, or TRITON_INTERPRET=1 in the environment, which runs it on CPU, very slowly"
            if demand.dtype == torch.bfloat16:
                return "on CPU it needs dtype float32 or float16: Triton's interpreter cannot multiply bfloat16"
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed (CUDA builds of torch bring it; else pip install triton)"
        return ABILITIES.lacks(demand) or _too_large(demand)

    def plan(self, inputs: StepInputs, cache: KVCache) -> Plan:
        """See :class:`AttentionKernel`."""
        return Plan(inputs, cache.keys[0].device)

    def attend(self, plan: Plan, layer: AttentionLayer, query: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """See :class:`AttentionKernel`."""
        query = query if query.stride(-1) == 1 else query.contiguous()
        out = query.new_empty(query.shape[0], layer.num_heads, layer.value_width)
        group = layer.num_heads // layer.num_kv_heads
        many, one, tile_keys = tile_sizes(group, *_lanes(layer), query.element_size())
        for tiles in plan.tiles(many // group):
            is_decode = tiles.num_splits > 0
            self._call(plan, tiles, layer, query, cache, out, (one if is_decode else many, tile_keys))
        return out

    def _call(
        self,
        plan: Plan,
        tiles: Tiles,
        layer: AttentionLayer,
        query: torch.Tensor,
        cache: KVCache,
        out: torch.Tensor,
        tile: tuple[int, int],
    ) -> None:
        keys, values = cache.keys[layer.index], cache.values[layer.index]
        group = layer.num_heads // layer.num_kv_heads
        num_tiles, num_splits = tiles.rows.shape[0], tiles.num_splits
        is_split = num_splits > 1
        shape = (num_tiles, layer.num_heads, MAX_SPLITS) if is_split else (0, 0, 0)
        part_max, part_sum = (query.new_empty(shape, dtype=torch.float32) for _ in range(2))
        part_out = query.new_empty((*shape, layer.value_width), dtype=torch.float32)
        sinks = part_max if layer.sinks is None else layer.sinks
        options: dict[str, Any] = {
            "tile_keys": tile[1],
            "value_width": layer.value_width,
            "value_lanes": _lanes(layer)[1],
            "has_window": layer.window is not None,
            "has_sinks": layer.sinks is not None,
            "min_keys": SPLIT_KEYS,
            "max_splits": MAX_SPLITS,
        }
        self._attend_tile[(num_tiles, layer.num_kv_heads, max(num_splits, 1))](
            query,
            keys,
            values,
            sinks,
            out,
            part_out,
            part_max,
            part_sum,
            plan.block_tables,
            plan.starts,
            plan.context_lens,
            tiles.rows,
            tiles.firsts,
            layer.scaling,
            layer.softcap or 1.0,
            layer.window or 0,
            query.stride(0),
            query.stride(1),
            *keys.stride()[:3],
            *values.stride()[:3],
            out.stride(0),
            out.stride(1),
            plan.block_tables.stride(0),
            group=group,
            block_size=cache.block_size,
            key_width=layer.key_width,
            key_lanes=_lanes(layer)[0],
            tile_queries=tile[0],
            tile_tokens=tile[0] // group if num_splits == 0 else 1,
            has_softcap=layer.softcap is not None,
            is_split=is_split,
            num_stages=STAGES,
            enable_fp_fusion=True,
            **options,
        )
        if is_split:
            self._join_parts[(num_tiles, layer.num_heads)](
                sinks,
                out,
                part_out,
                part_max,
                part_sum,
                plan.starts,
                plan.context_lens,
                tiles.rows,
                layer.window or 0,
                out.stride(0),
                out.stride(1),
                enable_fp_fusion=True,
                **options,
            )


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
