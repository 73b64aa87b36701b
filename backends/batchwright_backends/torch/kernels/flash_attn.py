"""flash-attn 2 on CUDA: its kernels read the block tables themselves, so nothing is gathered.

Interface as of flash-attn 2.7 to 2.8 (https://github.com/Dao-AILab/flash-attention, ``flash_attn_interface.py``): paged
K and V are [blocks, block size, KV heads, width] with a block size that is a multiple of 256; the causal mask is
aligned to the last key. Tested against a stand-in that checks and computes the same; not yet run on a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from batchwright_backends.torch.inputs import StepInputs, StepTensors
from batchwright_backends.torch.kernels.demand import HALF, Abilities, Demand
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kernels.rows import Rows, last_contiguous, sums, window_size

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer
    from batchwright_backends.torch.kv_cache import KVCache

PAGE = 256
LEAST_GENERATION = 8
ABILITIES = Abilities(
    dtypes=HALF, block_multiple=PAGE, width_multiple=8, max_width=256, unequal_widths=False, sinks=False
)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a step that go into one call.

    Attributes:
        tokens: int64, places of their tokens among the step's; None: all of them.
        rows: their arrays.
        key_starts: int32[rows + 1], sums of the context lengths; None: the rows have one token each.
    """

    tokens: torch.Tensor | None
    rows: Rows
    key_starts: torch.Tensor | None


class FlashAttention2(AttentionKernel):
    """Rows of one token go through ``flash_attn_with_kvcache``, which splits their keys; the others through varlen."""

    name = "flash_attn"
    title = "flash_attn 2"
    default_block_size = PAGE
    not_captured = None

    def __init__(self) -> None:
        flash_attn = importlib.import_module("flash_attn")
        self._varlen: Callable[..., torch.Tensor] = flash_attn.flash_attn_varlen_func
        self._with_kvcache: Callable[..., torch.Tensor] = flash_attn.flash_attn_with_kvcache

    @staticmethod
    def refusal(demand: Demand) -> str | None:
        """See :class:`AttentionKernel`."""
        if demand.generation is None or demand.generation < LEAST_GENERATION:
            return "it needs an NVIDIA GPU of compute capability 8.0 (Ampere) or newer"
        if importlib.util.find_spec("flash_attn") is None:
            return "flash-attn 2 is not installed (pip install 'batchwright[flash-attn]')"
        return ABILITIES.lacks(demand)

    def plan(self, inputs: StepInputs, cache: KVCache) -> list[Part]:
        """See :class:`AttentionKernel`."""
        single = np.diff(inputs.starts) == 1
        device = cache.keys[0].device
        return [_part(inputs, rows, device) for rows in (single, ~single) if rows.any()]

    def plan_decodes(self, tensors: StepTensors, max_keys: int) -> list[Part]:
        """See :class:`AttentionKernel`."""
        return [Part(tokens=None, rows=Rows.of_decodes(tensors, max_keys), key_starts=None)]

    def attend(self, plan: list[Part], layer: AttentionLayer, query: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """See :class:`AttentionKernel`."""
        if len(plan) == 1:
            return self._call(plan[0], layer, query, cache)
        out = query.new_empty(query.shape[0], layer.num_heads, layer.value_width)
        for part in plan:
            assert part.tokens is not None
            out.index_copy_(0, part.tokens, self._call(part, layer, query.index_select(0, part.tokens), cache))
        return out

    def _call(self, part: Part, layer: AttentionLayer, query: torch.Tensor, cache: KVCache) -> torch.Tensor:
        rows = part.rows
        common: dict[str, Any] = {
            "softmax_scale": layer.scaling,
            "causal": True,
            "window_size": window_size(layer, everything=-1),
            "softcap": layer.softcap or 0.0,
            "block_table": rows.block_table,
        }
        query, keys, values = last_contiguous(query), cache.keys[layer.index], cache.values[layer.index]
        if rows.max_tokens == 1:
            q = query.unsqueeze(1)
            return self._with_kvcache(q, keys, values, cache_seqlens=rows.context_lens, **common).squeeze(1)
        return self._varlen(
            query,
            keys,
            values,
            cu_seqlens_q=rows.starts,
            cu_seqlens_k=part.key_starts,
            max_seqlen_q=rows.max_tokens,
            max_seqlen_k=rows.max_keys,
            **common,
        )


def _part(inputs: StepInputs, chosen: NDArray[np.bool_], device: torch.device) -> Part:
    everything = bool(chosen.all())
    rows = Rows.of(inputs, device, None if everything else chosen)
    places = None if everything else np.flatnonzero(np.repeat(chosen, np.diff(inputs.starts)))
    return Part(
        tokens=None if places is None else inputs.put(places, device, np.int64),
        rows=rows,
        key_starts=None if rows.max_tokens == 1 else inputs.put(sums(inputs.context_lens[chosen]), device),
    )
