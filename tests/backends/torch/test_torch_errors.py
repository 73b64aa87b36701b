"""Memory that runs out: the error says doing what, beside what, and which setting to lower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from backends.torch.driver import Driver
from batchwright.errors import BackendError
from batchwright_backends.torch import loading, memory, probe, sizing
from batchwright_backends.torch.torch_errors import is_out_of_memory, torch_errors

Make = Callable[..., Any]

CUDA = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore of it")
CPU = RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: 8589934592 bytes")
ERRORS = [CUDA, CPU, RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate"), MemoryError()]


def raising(error: Exception) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize("error", ERRORS, ids=["cuda", "cpu", "windows", "python"])
def test_a_step(error: Exception, make_plain: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = make_plain("llama", num_blocks=64)
    driver = Driver(backend)
    monkeypatch.setattr(backend.runner.kernel, "attend", raising(error))
    with pytest.raises(BackendError) as caught:
        driver.step([(driver.request("a", [1, 2, 3]), 3)])
    weights = memory.size_text(loading.weight_bytes(backend.model))
    text = str(caught.value)
    assert text.startswith(
        f"memory ran out while running step 0 of 3 tokens in 1 requests, beside weights ({weights}) and KV cache "
        "(97.5 KiB): "  # 65 blocks of 4 tokens, 3 layers, K and V of 2 heads of 8 float32
    )
    assert "\n" not in text and (str(error).splitlines() or ["no message"])[0] in text
    assert text.endswith(
        "lower max_num_batched_tokens or max_num_seqs, or give the KV cache less (num_blocks, "
        "backend_options.kv_cache_gib or backend_options.memory_fraction)"
    )
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [CUDA, CPU], ids=["cuda", "cpu"])
@pytest.mark.parametrize("where", ["weights", "forward"])
def test_a_load(where: str, error: Exception, make_backend: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "weights":
        monkeypatch.setattr(loading.AutoModelForCausalLM, "from_pretrained", raising(error))
    else:
        monkeypatch.setattr(probe.Probe, "attend", raising(error))
    with pytest.raises(
        BackendError,
        match=r"^memory ran out while loading cpu:\S*llama\d: .*; choose a smaller model, or a "
        r"smaller backend_options.dtype",
    ):
        make_backend("llama")


def test_a_pool(make_backend: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing.KVCache, "__init__", raising(CUDA))
    with pytest.raises(
        BackendError,
        match=r"^memory ran out while taking 96.0 KiB for a KV cache of 64 blocks, beside "
        r"weights \(.* KiB\): CUDA out of memory.*; lower num_blocks, backend_options",
    ):
        make_backend("llama", num_blocks=64)


def test_a_warm_up(make_plain: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_plain("llama").model
    sizing.largest_step(model, 300, 40, 256)
    monkeypatch.setattr(probe.Probe, "attend", raising(CUDA))
    with pytest.raises(
        BackendError,
        match=r"^memory ran out while running a step of max_num_batched_tokens \(300\) in which max_num_seqs \(40\) "
        r"sample, beside weights \(.*"
        r"; lower max_num_batched_tokens or max_num_seqs",
    ):
        sizing.largest_step(model, 300, 40, 256)


def test_other_errors_are_passed_on_whole() -> None:
    with (
        pytest.raises(BackendError, match=r"^trying failed in torch, RuntimeError: shapes\ndiffer$"),
        torch_errors("trying", "x"),
    ):
        raise RuntimeError("shapes\ndiffer")
    with pytest.raises(KeyError), torch_errors("trying", "x"):
        raise KeyError
    assert not is_out_of_memory(RuntimeError("shapes differ"))
