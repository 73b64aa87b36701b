"""flash-attn 2 on CUDA: its kernels read the block tables themselves, so nothing is gathered.

Interface as of flash-attn 2.7 (https://github.com/Dao-AILab/flash-attention, ``flash_attn_interface.py``): paged K and
V are [blocks, block size, KV heads, width] with a block size that is a multiple of 256; the causal mask is aligned to
the last key. Tested against a stand-in that checks and computes the same; not yet run on a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.kernels.kernel import AttentionKernel

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer
    from batchwright_backends.torch.kv_cache import KVCache

PAGE = 256
MAX_WIDTH = 256


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a step that go into one call.

    Attributes:
        tokens: int64, places of their tokens among the step's; None: all of them.
        starts: int32[rows + 1], as ``StepInputs.starts`` for these rows.
        key_starts: int32[rows + 1], sums of the context lengths.
        context_lens: int32[rows].
        block_table: int32[rows, widest].
        max_tokens: of a row.
        max_keys: of a row.
    """

    tokens: torch.Tensor | None
    starts: torch.Tensor
    key_starts: torch.Tensor
    context_lens: torch.Tensor
    block_table: torch.Tensor
    max_tokens: int
    max_keys: int


class FlashAttention(AttentionKernel):
    """Rows of one token go through ``flash_attn_with_kvcache``, which splits their keys; the others through varlen."""

    name = "flash_attn"
    default_block_size = PAGE

    def __init__(self) -> None:
        flash_attn = importlib.import_module("flash_attn")
        self._varlen: Callable[..., torch.Tensor] = flash_attn.flash_attn_varlen_func
        self._with_kvcache: Callable[..., torch.Tensor] = flash_attn.flash_attn_with_kvcache

    @staticmethod
    def refusal(
        device: torch.device, dtype: torch.dtype, block_size: int | None, layers: Sequence[AttentionLayer]
    ) -> str | None:
        """See :class:`AttentionKernel`."""
        if device.type != "cuda":
            return "it needs a CUDA device"
        if importlib.util.find_spec("flash_attn") is None:
            return "it is not installed (pip install 'batchwright[flash-attn]')"
        if dtype not in (torch.float16, torch.bfloat16):
            return f"it needs dtype float16 or bfloat16, not {str(dtype).removeprefix('torch.')}"
        if block_size is not None and block_size % PAGE:
            return f"it needs a block_size that is a multiple of {PAGE}, not {block_size}"
        if any(layer.key_width != layer.value_width for layer in layers):
            return "it needs K and V of one width"
        if any(layer.key_width % 8 or layer.key_width > MAX_WIDTH for layer in layers):
            return f"it needs a head width that is a multiple of 8, up to {MAX_WIDTH}"
        return None

    def plan(self, inputs: StepInputs, cache: KVCache) -> list[Part]:
        """See :class:`AttentionKernel`."""
        single = np.diff(inputs.starts) == 1
        device = cache.keys[0].device
        return [_part(inputs, rows, device) for rows in (single, ~single) if rows.any()]

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
        common: dict[str, Any] = {
            "softmax_scale": layer.scaling,
            "causal": True,
            # A window here is what lies to the left of the token, without itself.
            "window_size": (-1, -1) if layer.window is None else (layer.window - 1, 0),
            "softcap": layer.softcap or 0.0,
            "block_table": part.block_table,
        }
        keys, values = cache.keys[layer.index], cache.values[layer.index]
        if part.max_tokens == 1:
            q = query.unsqueeze(1)
            return self._with_kvcache(q, keys, values, cache_seqlens=part.context_lens, **common).squeeze(1)
        return self._varlen(
            query.contiguous(),
            keys,
            values,
            cu_seqlens_q=part.starts,
            cu_seqlens_k=part.key_starts,
            max_seqlen_q=part.max_tokens,
            max_seqlen_k=part.max_keys,
            **common,
        )


def _part(inputs: StepInputs, rows: NDArray[np.bool_], device: torch.device) -> Part:
    counts, lens = np.diff(inputs.starts)[rows], inputs.context_lens[rows]

    def to(array: NDArray[Any], dtype: type) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=dtype)).to(device)

    return Part(
        tokens=None if rows.all() else to(np.flatnonzero(np.repeat(rows, np.diff(inputs.starts))), np.int64),
        starts=to(np.concatenate(([0], np.cumsum(counts))), np.int32),
        key_starts=to(np.concatenate(([0], np.cumsum(lens))), np.int32),
        context_lens=to(lens, np.int32),
        block_table=to(inputs.block_tables[rows], np.int32),
        max_tokens=int(counts.max()),
        max_keys=int(lens.max()),
    )
