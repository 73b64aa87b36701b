"""Stand-ins for attention packages that need a GPU: the same signatures, every argument checked, the result computed.

Checked is what the packages check themselves, and beyond it what they trust the caller with: that lengths, tables and
maxima belong together, that a table reaches as far as its row, and that no block id leaves the pool.
"""

from __future__ import annotations

import types
from importlib.machinery import ModuleSpec
from typing import Any

import torch

from backends.torch.attention_cases import attend_row


class StandIn(types.ModuleType):
    """What the stand-ins share.

    Attributes:
        calls: of its functions, by name.
        dtypes: that it takes; the comparison with ``generate()`` in float32 adds that.
        page: block sizes are a multiple of it.
        pads: whether the last rows may be padding, as in a graph of a larger batch: one token in the last block.
    """

    page = 1
    pads = False

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)  # find_spec asks for it
        self.calls: list[str] = []
        self.dtypes = {torch.float16, torch.bfloat16}

    def check_pools(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        assert q.dtype == k.dtype == v.dtype and q.dtype in self.dtypes
        assert q.device == k.device == v.device
        assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        assert k.dim() == v.dim() == 4 and k.shape[:3] == v.shape[:3]
        assert k.shape[1] % self.page == 0
        assert q.shape[-1] == k.shape[-1] and q.shape[-1] % 8 == v.shape[-1] % 8 == 0
        assert q.shape[-2] % k.shape[2] == 0

    def check_table(self, table: torch.Tensor, lengths: torch.Tensor, k: torch.Tensor) -> None:
        assert table.dtype == lengths.dtype == torch.int32
        assert table.dim() == 2 and table.stride(-1) == 1 and lengths.is_contiguous()
        assert lengths.shape == (table.shape[0],) and table.shape[0] > 0
        padding = False
        for row, length in zip(table, lengths.tolist(), strict=True):
            used = -(-length // k.shape[1])
            padding |= self.pads and length == 1 and int(row[0]) == k.shape[0] - 1
            if padding:
                assert length == 1 and int(row[0]) == k.shape[0] - 1  # nothing real behind it
                continue
            assert 0 < length <= table.shape[1] * k.shape[1]
            assert 0 <= int(row[:used].min()) <= int(row[:used].max()) < k.shape[0] - 1  # the last block is padding
            assert len(set(row[:used].tolist())) == used

    def check_starts(self, starts: torch.Tensor, longest: int, rows: int) -> None:
        assert starts.dtype == torch.int32 and starts.shape == (rows + 1,) and starts.is_contiguous()
        assert starts[0] == 0 and bool((starts.diff() > 0).all())
        assert type(longest) is int and longest == int(starts.diff().max())

    def check_scalars(self, scale: Any, window: Any, softcap: Any) -> None:
        assert type(scale) is float and scale > 0
        assert type(window) is tuple and (window == (-1, -1) or (window[0] >= 0 and window[1] == 0))
        assert type(softcap) is float and softcap >= 0

    def row(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        length: int,
        table: Any,
        scale: float,
        left: int,
        cap: Any,
    ) -> torch.Tensor:
        keys, values = (pool[table.long()].flatten(0, 1)[:length] for pool in (k, v))
        assert q.shape[0] <= length
        return attend_row(q, keys, values, scale, left, cap)

    def rows(
        self, q: torch.Tensor, k: Any, v: Any, starts: Any, lengths: Any, table: Any, scale: Any, left: Any, cap: Any
    ) -> torch.Tensor:
        assert q.dim() == 3 and q.shape[0] == starts[-1]
        at = starts.tolist()
        parts = [
            self.row(q[at[i] : at[i + 1]], k, v, length, table[i], scale, left, cap)
            for i, length in enumerate(lengths.tolist())
        ]
        return torch.cat(parts)


class FlashAttention2Functions(StandIn):
    """flash-attn 2.8: ``flash_attn_varlen_func`` and ``flash_attn_with_kvcache``."""

    page = 256

    def __init__(self) -> None:
        super().__init__("flash_attn")

    def flash_attn_varlen_func(
        self,
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any,
        max_seqlen_q: Any,
        max_seqlen_k: Any,
        dropout_p: float = 0.0,
        softmax_scale: Any = None,
        causal: bool = False,
        window_size: Any = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Any = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Any = None,
    ) -> torch.Tensor:
        self.calls.append("varlen")
        assert (dropout_p, alibi_slopes, deterministic, return_attn_probs) == (0.0, None, False, False)
        assert causal is True
        self.check_pools(q, k, v)
        assert k.shape[-1] == v.shape[-1] <= 256
        rows = block_table.shape[0]
        self.check_starts(cu_seqlens_q, max_seqlen_q, rows)
        self.check_starts(cu_seqlens_k, max_seqlen_k, rows)
        lengths = cu_seqlens_k.diff()
        self.check_table(block_table, lengths, k)
        self.check_scalars(softmax_scale, window_size, softcap)
        return self.rows(q, k, v, cu_seqlens_q, lengths, block_table, softmax_scale, window_size[0], softcap)

    def flash_attn_with_kvcache(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        k: Any = None,
        v: Any = None,
        rotary_cos: Any = None,
        rotary_sin: Any = None,
        cache_seqlens: Any = None,
        cache_batch_idx: Any = None,
        cache_leftpad: Any = None,
        block_table: Any = None,
        softmax_scale: Any = None,
        causal: bool = False,
        window_size: Any = (-1, -1),
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        alibi_slopes: Any = None,
        num_splits: int = 0,
        return_softmax_lse: bool = False,
    ) -> torch.Tensor:
        self.calls.append("kvcache")
        # K and V of the new tokens lie in the cache already: nothing is to be appended or rotated.
        assert all(x is None for x in (k, v, rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad, alibi_slopes))
        assert causal is True and rotary_interleaved and num_splits == 0 and not return_softmax_lse
        self.check_pools(q, k_cache, v_cache)
        assert k_cache.shape[-1] == v_cache.shape[-1] <= 256
        assert q.dim() == 4 and q.shape[:2] == (block_table.shape[0], 1)
        self.check_table(block_table, cache_seqlens, k_cache)
        self.check_scalars(softmax_scale, window_size, softcap)
        lengths = cache_seqlens.tolist()
        parts = [
            self.row(q[i], k_cache, v_cache, length, block_table[i], softmax_scale, window_size[0], softcap)
            for i, length in enumerate(lengths)
        ]
        return torch.stack(parts)


class FlashAttention3Functions(StandIn):
    """The folder ``hopper`` of flash-attention, and fa3-fwd: ``flash_attn_with_kvcache``."""

    def flash_attn_with_kvcache(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        k: Any = None,
        v: Any = None,
        qv: Any = None,
        rotary_cos: Any = None,
        rotary_sin: Any = None,
        cache_seqlens: Any = None,
        cache_batch_idx: Any = None,
        cache_leftpad: Any = None,
        page_table: Any = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_k_new: Any = None,
        max_seqlen_q: Any = None,
        rotary_seqlens: Any = None,
        q_descale: Any = None,
        k_descale: Any = None,
        v_descale: Any = None,
        softmax_scale: Any = None,
        causal: bool = False,
        window_size: Any = (-1, -1),
        attention_chunk: int = 0,
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        scheduler_metadata: Any = None,
        num_splits: int = 0,
        pack_gqa: Any = None,
        sm_margin: int = 0,
        return_softmax_lse: bool = False,
    ) -> torch.Tensor:
        self.calls.append("kvcache")
        unused = (k, v, qv, rotary_cos, rotary_sin, cache_batch_idx, cache_leftpad, cu_seqlens_k_new, rotary_seqlens)
        assert all(x is None for x in (*unused, q_descale, k_descale, v_descale, scheduler_metadata, pack_gqa))
        assert (attention_chunk, num_splits, sm_margin) == (0, 0, 0)
        assert causal is True and rotary_interleaved and not return_softmax_lse
        self.check_pools(q, k_cache, v_cache)
        key_width, value_width = k_cache.shape[-1], v_cache.shape[-1]
        if key_width == value_width:
            assert key_width <= 256
        else:
            assert (128 < key_width <= 192 and 96 < value_width <= 128) or (key_width <= 64 and value_width <= 512)
        self.check_starts(cu_seqlens_q, max_seqlen_q, page_table.shape[0])
        self.check_table(page_table, cache_seqlens, k_cache)
        self.check_scalars(softmax_scale, window_size, softcap)
        left = window_size[0]
        return self.rows(q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, softmax_scale, left, softcap)


class VarlenFunctions(StandIn):
    """``torch.nn.attention.varlen`` of torch 2.13."""

    def __init__(self) -> None:
        super().__init__("torch.nn.attention.varlen")

    def varlen_attn(
        self,
        query: Any,
        key: Any,
        value: Any,
        cu_seq_q: Any,
        cu_seq_k: Any,
        max_q: Any,
        max_k: Any,
        *,
        return_aux: Any = None,
        scale: Any = None,
        window_size: Any = (-1, -1),
        enable_gqa: bool = False,
        seqused_k: Any = None,
        block_table: Any = None,
        num_splits: Any = None,
    ) -> torch.Tensor:
        self.calls.append("varlen_attn")
        assert return_aux is None and num_splits is None
        assert cu_seq_k is None  # FlashAttention 3 and 4 refuse it beside a table
        self.check_pools(query, key, value)
        assert key.shape[-1] == value.shape[-1] <= 256
        assert enable_gqa or query.shape[1] == key.shape[2]
        self.check_starts(cu_seq_q, max_q, block_table.shape[0])
        self.check_table(block_table, seqused_k, key)
        # A graph is recorded once, for the longest request that may come.
        longest = int(seqused_k.max())
        assert type(max_k) is int and (longest <= max_k <= block_table.shape[1] * key.shape[1])
        assert self.pads or max_k == longest
        # (-1, 0) is causal, and a window is causal by its right side; (-1, -1) would be neither.
        assert type(window_size) is tuple
        assert window_size == (-1, 0) or (window_size[0] >= 0 and window_size[1] == 0)
        assert type(scale) is float and scale > 0
        return self.rows(query, key, value, cu_seq_q, seqused_k, block_table, scale, window_size[0], 0.0)
