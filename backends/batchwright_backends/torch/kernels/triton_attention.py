"""Batchwright's own kernel: paged attention in Triton, over any block size, with windows, caps and sinks.

Rows of more than one token go in tiles of queries; decodes split their keys between programs. The programs themselves
are in ``triton_kernels.py``. Tested under Triton's interpreter; not yet run on a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

import torch

from batchwright_backends.torch.inputs import StepInputs, StepTensors
from batchwright_backends.torch.kernels import triton_tiles
from batchwright_backends.torch.kernels.demand import HALF, Abilities, Demand
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kernels.rows import last_contiguous
from batchwright_backends.torch.kernels.triton_tiles import DecodePlan, Plan, Tiles

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer
    from batchwright_backends.torch.kv_cache import KVCache

LEAST_GENERATION = 8  # older GPUs have neither bfloat16 nor the shared memory that the tiles take
ABILITIES = Abilities(dtypes=(*HALF, torch.float32), max_width=256)


class TritonAttention(AttentionKernel):
    """Any block size and head width up to 256; windows, soft caps, sinks, and V of another width than K."""

    name = title = "triton"
    not_captured = None

    def __init__(self) -> None:
        programs = importlib.import_module("batchwright_backends.torch.kernels.triton_kernels")
        self._attend_tile: Any = programs.attend_tile
        self._join_parts: Any = programs.join_parts

    @staticmethod
    def refusal(demand: Demand) -> str | None:
        """See :class:`AttentionKernel`."""
        if demand.device == "cuda":
            if demand.generation is None or demand.generation < LEAST_GENERATION:
                return "it needs an NVIDIA GPU of compute capability 8.0 (Ampere) or newer"
        elif not demand.is_named:
            return "it needs a GPU"
        elif os.environ.get("TRITON_INTERPRET") != "1":
            return "it needs a GPU, or TRITON_INTERPRET=1 in the environment, which runs it on CPU, very slowly"
        elif demand.dtype == torch.bfloat16:
            return "on CPU it needs dtype float32 or float16: Triton's interpreter cannot multiply bfloat16"
        if importlib.util.find_spec("triton") is None:
            return "triton is not installed (CUDA builds of torch bring it; else pip install triton)"
        return ABILITIES.lacks(demand) or _too_large(demand)

    def plan(self, inputs: StepInputs, cache: KVCache) -> Plan:
        """See :class:`AttentionKernel`."""
        return Plan(inputs, cache.keys[0].device)

    def plan_decodes(self, tensors: StepTensors, max_keys: int) -> DecodePlan:
        """See :class:`AttentionKernel`."""
        return DecodePlan(tensors, max_keys)

    def attend(
        self, plan: Plan | DecodePlan, layer: AttentionLayer, query: torch.Tensor, cache: KVCache
    ) -> torch.Tensor:
        """See :class:`AttentionKernel`."""
        query = last_contiguous(query)
        out = query.new_empty(query.shape[0], layer.num_heads, layer.value_width)
        group = layer.num_heads // layer.num_kv_heads
        many, one, tile_keys = triton_tiles.tile_sizes(group, *triton_tiles.lanes_of(layer), query.element_size())
        for tiles in plan.tiles(many // group):
            is_decode = tiles.num_splits > 0
            self._call(plan, tiles, layer, query, cache, out, (one if is_decode else many, tile_keys))
        return out

    def _call(
        self,
        plan: Plan | DecodePlan,
        tiles: Tiles,
        layer: AttentionLayer,
        query: torch.Tensor,
        cache: KVCache,
        out: torch.Tensor,
        tile: tuple[int, int],
    ) -> None:
        keys, values = cache.keys[layer.index], cache.values[layer.index]
        group, step = layer.num_heads // layer.num_kv_heads, plan.tensors
        num_tiles, num_splits = tiles.rows.shape[0], tiles.num_splits
        is_split = num_splits > 1
        shape = (num_tiles, layer.num_heads, triton_tiles.MAX_SPLITS) if is_split else (0, 0, 0)
        part_max, part_sum = (query.new_empty(shape, dtype=torch.float32) for _ in range(2))
        part_out = query.new_empty((*shape, layer.value_width), dtype=torch.float32)
        sinks = part_max if layer.sinks is None else layer.sinks
        options: dict[str, Any] = {
            "tile_keys": tile[1],
            "value_width": layer.value_width,
            "value_lanes": triton_tiles.lanes_of(layer)[1],
            "has_window": layer.window is not None,
            "has_sinks": layer.sinks is not None,
            "min_keys": triton_tiles.SPLIT_KEYS,
            "max_splits": triton_tiles.MAX_SPLITS,
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
            step.block_tables,
            step.starts,
            step.context_lens,
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
            step.block_tables.stride(0),
            group=group,
            block_size=cache.block_size,
            key_width=layer.key_width,
            key_lanes=triton_tiles.lanes_of(layer)[0],
            tile_queries=tile[0],
            tile_tokens=tile[0] // group if num_splits == 0 else 1,
            has_softcap=layer.softcap is not None,
            is_split=is_split,
            num_stages=triton_tiles.STAGES,
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
                step.starts,
                step.context_lens,
                tiles.rows,
                layer.window or 0,
                out.stride(0),
                out.stride(1),
                enable_fp_fusion=True,
                **options,
            )


def _too_large(demand: Demand) -> str | None:
    """Why the least tile of a layer does not fit, or None."""
    for layer in demand.layers:
        group = layer.num_heads // layer.num_kv_heads
        queries, _, keys = triton_tiles.tile_sizes(group, *triton_tiles.lanes_of(layer), demand.dtype.itemsize)
        if (
            triton_tiles.tile_bytes(queries, keys, *triton_tiles.lanes_of(layer), demand.dtype.itemsize)
            > triton_tiles.TILE_BYTES
        ):
            return (
                f"{group} query heads of width {layer.key_width} on one KV head take more than the "
                f"{triton_tiles.TILE_BYTES >> 10} KiB of a program's tiles"
            )
    return None
