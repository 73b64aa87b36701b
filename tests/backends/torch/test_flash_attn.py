"""The flash-attn kernel against a stand-in that checks every argument and computes what flash-attn computes."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from backends.torch.conftest import ARCHITECTURES
from backends.torch.driver import Driver, reference
from backends.torch.test_equality import NUM_TOKENS, prompts
from batchwright_backends.torch.attention import AttentionLayer
from batchwright_backends.torch.kernels import choice
from batchwright_backends.torch.kernels.flash_attn import FlashAttention

Make = Callable[..., Any]


def attend_row(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, window: tuple[int, int], softcap: float
) -> torch.Tensor:
    """One row, the causal mask aligned to the last key: q [n, heads, width], keys and values [L, KV heads, width]."""
    n, length = q.shape[0], keys.shape[0]
    groups = q.shape[1] // keys.shape[1]
    scores = torch.einsum("nhd,lhd->hnl", q, keys.repeat_interleave(groups, 1)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    at = torch.arange(n)[:, None] + length - n
    seen = torch.arange(length)[None] <= at
    if window != (-1, -1):
        assert window[1] == 0
        seen &= torch.arange(length)[None] >= at - window[0]
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hnl,lhd->nhd", weights, values.repeat_interleave(groups, 1))


class StandIn(types.ModuleType):
    """The two functions of flash-attn 2.7 that are called, with their checks."""

    def __init__(self) -> None:
        super().__init__("flash_attn")
        self.calls: list[str] = []

    def _check(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> None:
        table = options["block_table"]
        assert set(options) == {"softmax_scale", "causal", "window_size", "softcap", "block_table"}
        assert options["causal"] is True and isinstance(options["softcap"], float)
        assert k.dim() == v.dim() == 4 and k.shape == v.shape and k.shape[1] % 256 == 0
        assert q.dtype == k.dtype == v.dtype
        assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        assert table.dtype == torch.int32 and table.dim() == 2 and table.is_contiguous()

    def _row(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, length: int, table: Any, o: Any) -> torch.Tensor:
        keys, values = (pool[table.long()].flatten(0, 1)[:length] for pool in (k, v))
        return attend_row(q, keys, values, o["softmax_scale"], o["window_size"], o["softcap"])

    def flash_attn_varlen_func(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        **options: Any,
    ) -> torch.Tensor:
        self._check(q, k, v, options)
        self.calls.append("varlen")
        rows = options["block_table"].shape[0]
        for starts, longest in ((cu_seqlens_q, max_seqlen_q), (cu_seqlens_k, max_seqlen_k)):
            assert starts.dtype == torch.int32 and starts.shape == (rows + 1,) and starts[0] == 0
            assert type(longest) is int and longest == int(starts.diff().max())
        assert q.dim() == 3 and q.shape[0] == cu_seqlens_q[-1]
        starts = cu_seqlens_q.tolist()
        lengths = cu_seqlens_k.diff().tolist()
        return torch.cat(
            [
                self._row(q[starts[i] : starts[i + 1]], k, v, lengths[i], options["block_table"][i], options)
                for i in range(rows)
            ]
        )

    def flash_attn_with_kvcache(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        *,
        cache_seqlens: torch.Tensor,
        **options: Any,
    ) -> torch.Tensor:
        self._check(q, k_cache, v_cache, options)
        self.calls.append("kvcache")
        rows = options["block_table"].shape[0]
        assert q.dim() == 4 and q.shape[:2] == (rows, 1)
        assert cache_seqlens.dtype == torch.int32 and cache_seqlens.shape == (rows,)
        lengths = cache_seqlens.tolist()
        return torch.stack(
            [self._row(q[i], k_cache, v_cache, lengths[i], options["block_table"][i], options) for i in range(rows)]
        )


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    module = StandIn()
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    return module


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_same_tokens_as_generate(name: str, stand_in: StandIn, make_backend: Make, load_reference: Make) -> None:
    backend = make_backend(name, block_size=256, num_blocks=8)
    backend.kernel = FlashAttention()
    driver = Driver(backend)
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, NUM_TOKENS, chunk=7, stagger=2)
    for request in requests:
        assert request.output_token_ids == reference(load_reference(name), request.prompt_token_ids, NUM_TOKENS)
    mixed = ["kvcache", "varlen"] * 3  # rows of one token apart from the others, in each of the three layers
    assert any(stand_in.calls[i : i + 6] == mixed for i in range(len(stand_in.calls)))


def layer(**changes: Any) -> AttentionLayer:
    return AttentionLayer(
        **{"index": 0, "num_heads": 4, "num_kv_heads": 2, "key_width": 64, "value_width": 64, "scaling": 0.1, **changes}
    )


def test_what_rules_it_out(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in, "__spec__", object(), raising=False)  # find_spec asks for it
    cuda, half = torch.device("cuda"), torch.bfloat16
    refusal = FlashAttention.refusal
    assert refusal(cuda, half, None, [layer()]) is None
    assert refusal(cuda, half, 512, [layer()]) is None
    for reason, why in (
        (refusal(torch.device("cpu"), half, None, [layer()]), "CUDA device"),
        (refusal(cuda, torch.float32, None, [layer()]), "not float32"),
        (refusal(cuda, half, 16, [layer()]), "multiple of 256, not 16"),
        (refusal(cuda, half, None, [layer(value_width=32)]), "one width"),
        (refusal(cuda, half, None, [layer(key_width=20, value_width=20)]), "multiple of 8"),
        (refusal(cuda, half, None, [layer(key_width=512, value_width=512)]), "up to 256"),
    ):
        assert reason is not None and why in reason
    assert choice.choose("auto", cuda, half, None, [layer()]).name == "flash_attn"
    assert choice.choose("auto", cuda, half, 16, [layer()]).name == "sdpa"
    assert choice.choose("sdpa", cuda, half, None, [layer()]).name == "sdpa"
