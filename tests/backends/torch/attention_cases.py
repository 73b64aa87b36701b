"""Attention over paged K and V, by the definition, one row and one head at a time; and problems to compare on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from batchwright_backends.torch.attention import AttentionLayer
from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kv_cache import KVCache


def attend_row(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    left: int = -1,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """One row, its last token at the last key: q [n, heads, width], keys and values [L, KV heads, width].

    ``left`` is how many tokens before itself a token sees, -1: all.
    """
    n, length = q.shape[0], keys.shape[0]
    groups = q.shape[1] // keys.shape[1]
    scores = torch.einsum("nhd,lhd->hnl", q.float(), keys.float().repeat_interleave(groups, 1)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(n)[:, None] + length - n
    seen = torch.arange(length)[None] <= at
    if left >= 0:
        seen &= torch.arange(length)[None] >= at - left
    weights = scores.masked_fill(~seen, -torch.inf).exp()
    total = weights.sum(-1) + (0.0 if sinks is None else sinks.float().exp()[:, None])
    weights = weights / total[..., None]
    return torch.einsum("hnl,lhd->nhd", weights, values.float().repeat_interleave(groups, 1)).to(q.dtype)


def layer(**changes: Any) -> AttentionLayer:
    """A layer of 4 heads over 2 KV heads, width 64."""
    return AttentionLayer(
        **{"index": 0, "num_heads": 4, "num_kv_heads": 2, "key_width": 64, "value_width": 64, "scaling": 0.1, **changes}
    )


@dataclass
class Problem:
    """A step of rows, each of ``(tokens, computed before)``, over a shuffled pool whose unused slots hold NaN."""

    rows: Sequence[tuple[int, int]]
    layer: AttentionLayer
    block_size: int
    dtype: torch.dtype = torch.float32
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        self._random = torch.Generator().manual_seed(self.seed)
        need = [-(-sum(row) // self.block_size) for row in self.rows]
        blocks = torch.randperm(sum(need) + 2, generator=self._random).tolist()
        tables = [[blocks.pop() for _ in range(n)] for n in need]
        self.inputs = StepInputs.of_rows(
            [([1] * tokens, before, table) for (tokens, before), table in zip(self.rows, tables, strict=True)],
            self.block_size,
        )
        self.cache = KVCache([self.layer], sum(need) + 2, self.block_size, self.dtype, torch.device(self.device))
        keys, values = self.cache.keys[0].flatten(0, 1), self.cache.values[0].flatten(0, 1)
        keys[:], values[:] = torch.nan, torch.nan
        self.keys, self.values = [], []
        for (tokens, before), table in zip(self.rows, tables, strict=True):
            slots = (torch.tensor(table)[:, None] * self.block_size + torch.arange(self.block_size)).flatten()
            slots = slots[: tokens + before].to(self.device)
            for pool, kept in ((keys, self.keys), (values, self.values)):
                pool[slots] = self._normal(len(slots), *pool.shape[1:])
                kept.append(pool[slots])
        # As the models hand it over: heads before tokens in memory.
        shape = self.layer.num_heads, sum(tokens for tokens, _ in self.rows), self.layer.key_width
        self.query = self._normal(*shape).transpose(0, 1)

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._random).to(self.device, self.dtype)

    def clear(self) -> None:
        """Zeros where NaN was: for kernels that gather whole blocks, which the backend clears for them."""
        for pool in (*self.cache.keys, *self.cache.values):
            pool.nan_to_num_(0.0)

    def expected(self) -> torch.Tensor:
        """[T, heads, value width]."""
        layer, starts = self.layer, self.inputs.starts.tolist()
        return torch.cat(
            [
                attend_row(
                    self.query[starts[i] : starts[i + 1]].cpu(),
                    self.keys[i].cpu(),
                    self.values[i].cpu(),
                    layer.scaling,
                    -1 if layer.window is None else layer.window - 1,
                    layer.softcap or 0.0,
                    None if layer.sinks is None else layer.sinks.cpu(),
                )
                for i in range(len(self.rows))
            ]
        )

    def by(self, kernel: AttentionKernel) -> torch.Tensor:
        """What a kernel makes of it."""
        return kernel.attend(kernel.plan(self.inputs, self.cache), self.layer, self.query, self.cache)

    def check(self, kernel: AttentionKernel, half_tolerance: float = 4e-3) -> None:
        """A kernel agrees with the definition, up to rounding."""
        tolerance = 3e-6 if self.dtype == torch.float32 else half_tolerance
        got, want = self.by(kernel).cpu(), self.expected()
        assert got.shape == want.shape and got.dtype == want.dtype
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2), (1, 8), (1, 20)]))
    heads = kv_heads * group
    key_width = draw(st.sampled_from([4, 8, 12, 16, 24]))
    drawn = AttentionLayer(
        index=0,
        num_heads=heads,
        num_kv_heads=kv_heads,
        key_width=key_width,
        value_width=draw(st.sampled_from([key_width, key_width, 6, 20])),
        scaling=draw(st.sampled_from([0.2, 1.0])),
        window=draw(st.none() | st.integers(1, 40)),
        softcap=draw(st.none() | st.sampled_from([0.5, 3.0, 50.0])),
        sinks=draw(st.none() | st.just(torch.linspace(-2.0, 2.0, heads))),
    )
    row = st.tuples(st.just(1) | st.integers(1, 70), st.just(0) | st.integers(0, 90))
    return Problem(
        rows=draw(st.lists(row, min_size=1, max_size=4)),
        layer=drawn,
        block_size=draw(st.sampled_from([1, 3, 4, 16, 32])),
        dtype=draw(st.sampled_from([torch.float32, torch.float32, torch.float16])),
        seed=draw(st.integers(0, 99)),
    )
