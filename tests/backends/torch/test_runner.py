"""The parts of a step on a GPU, played on CPU and on ``meta`` tensors: nothing waits, and the tokens are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from backends.torch.conftest import config_of
from backends.torch.driver import Driver
from backends.torch.recording import RecordingDevice
from backends.torch.test_equality import NUM_TOKENS, check, prompts
from batchwright.batch import Batch
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright_backends.torch import probe
from batchwright_backends.torch.attention import ATTENTION, AttentionLayer
from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.kernels.flash_attn import FlashAttention2
from batchwright_backends.torch.kernels.flash_attn3 import FlashAttention3
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kernels.varlen import VarlenAttention
from batchwright_backends.torch.kv_cache import KVCache
from batchwright_backends.torch.runner import Runner, spare_the_padding_check

Make = Callable[..., Any]


def play(backend: Any) -> RecordingDevice:
    """Put a backend on a played GPU."""
    device = RecordingDevice()
    old = backend.runner
    backend.runner = Runner(old.model, old.layers, old.kernel, old.cache, device)
    return device


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_same_tokens_through_the_buffers(name: str, make_plain: Make, load_reference: Make) -> None:
    backend = make_plain(name)
    play(backend)
    driver = Driver(backend)
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, NUM_TOKENS, chunk=7, stagger=2)
    check(driver, load_reference(name), requests)


def test_submit_waits_for_nothing_and_collect_for_its_own_step(make_plain: Make) -> None:
    backend = make_plain("llama")
    device = play(backend)
    driver = Driver(backend)
    request = driver.request("a", prompts()[0])
    request.block_table = list(range(8))
    handles = []
    for step in range(4):
        before = len(device.log)
        handles.append(backend.submit(Batch(step, backend.capacity().block_size, [request], [1])))
        request.num_computed += 1
        # Only for the copy of two steps ago, whose buffer is filled anew; at the end of the step is a mark.
        waits = [entry[1] for entry in device.log[before:] if entry[0] == "wait"]
        assert waits == ([] if step < 2 else [2 * (step - 2)])
        assert device.log[-1] == ("mark",) and device.count("mark") == 2 * (step + 1)
    for step, handle in enumerate(handles):
        backend.collect(handle)
        assert device.log[-1] == ("wait", 2 * step + 1)


def test_tokens_are_copied_before_the_mark(make_plain: Make) -> None:
    backend = make_plain("llama")
    device = play(backend)
    driver = Driver(backend)
    driver.step([(driver.request("a", prompts()[0]), 5)])
    assert [entry[0] for entry in device.log] == ["mark", "to host", "to host", "mark", "wait"]


def test_steps_submitted_ahead_do_not_count_their_wait(make_plain: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two steps submitted at 0 and collected at 10 and 15, the second took 5."""
    backend = make_plain("llama")
    times = iter([0, 1, 10, 15])
    monkeypatch.setattr(backend.clock, "now_ns", lambda: next(times))
    driver = Driver(backend)
    a, b = driver.request("a", [3, 4]), driver.request("b", [5])
    a.block_table, b.block_table = [0], [1]
    handles = [backend.submit(Batch(i, 4, [r], [1])) for i, r in enumerate((a, b))]
    assert [backend.collect(handle).elapsed_ns for handle in handles] == [10, 5]


class Untouched(AttentionKernel):
    """A kernel without a result."""

    name = title = "untouched"
    not_captured = None

    @staticmethod
    def refusal(demand: Any) -> None:
        return None

    def plan(self, inputs: StepInputs, cache: KVCache) -> Any:
        return inputs.tensors(cache.keys[0].device)

    def attend(self, plan: Any, layer: AttentionLayer, query: torch.Tensor, cache: KVCache) -> torch.Tensor:
        return query.new_empty(query.shape[0], layer.num_heads, layer.value_width)


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 0.7, "top_k": 300, "top_p": 0.4},
    {"temperature": 1.2, "top_p": 0.9, "min_p": 0.1},
]


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "olmo2"])
@pytest.mark.parametrize("num_tokens", [1, 6])
def test_no_part_of_a_step_reads_from_the_device(name: str, num_tokens: int) -> None:
    """On ``meta`` tensors there is nothing to read: whatever waits for a value fails."""
    from transformers import AutoModelForCausalLM

    meta = torch.device("meta")
    with meta:
        model: Any = AutoModelForCausalLM.from_config(config_of(name), attn_implementation=ATTENTION)
    model.eval()
    spare_the_padding_check(model)
    layers = probe.run(model, 4)
    cache = KVCache(list(layers.values()), 20, 4, torch.float32, meta)
    runner = Runner(model, layers, Untouched(), cache, RecordingDevice(meta))
    for options in ([{}], OPTIONS[:1], OPTIONS[1:2], OPTIONS[2:3], OPTIONS):
        requests = [Request(f"r{i}", [1, 2, 3, 4, 5, 6], SamplingParams(**o)) for i, o in enumerate(options)]
        for i, request in enumerate(requests):
            request.block_table, request.num_computed = [2 * i, 2 * i + 1], 6 - num_tokens
        sampled = runner.run(Batch(0, 4, requests, [num_tokens] * len(requests)))
        assert sampled.tokens is not None and sampled.tokens.shape == (len(requests),)
    with pytest.raises((RuntimeError, NotImplementedError)):
        bool(torch.ones(1, device=meta).any())  # what is looked for does fail


@pytest.mark.parametrize("kind", [FlashAttention2, FlashAttention3, VarlenAttention])
def test_no_plan_reads_from_the_device(kind: type[AttentionKernel]) -> None:
    meta = torch.device("meta")
    layer = AttentionLayer(0, 4, 2, 8, 8, 1.0)
    cache = KVCache([layer], 20, 4, torch.float32, meta)
    rows = [([1], 5, [0, 1]), ([2, 3], 4, [2, 3]), ([4], 0, [5])]
    for chosen in (rows, rows[:1], rows[1:2]):
        kind.plan(object.__new__(kind), StepInputs.of_rows(chosen, 4), cache)


def test_fresh_blocks() -> None:
    cache = KVCache([AttentionLayer(0, 1, 1, 8, 8, 1.0)], 8, 4, torch.float32, torch.device("cpu"))

    def fresh(*slots: int) -> list[int] | None:
        found = cache.fresh_blocks(np.array(slots, dtype=np.int64))
        return None if found is None else found.tolist()

    assert fresh(5, 6) is None  # in the middle of a block
    assert fresh(4, 5, 6, 7) is None  # opened and filled
    assert fresh(4, 5, 6, 7, 12, 13) == [3]
    assert fresh(20, 4, 9) == [1, 5]
    for pool in cache._pools.values():
        pool.fill_(7.0)
    cache.clear(torch.tensor([1, 5]))
    assert [bool((cache.keys[0][i] == 0).all()) for i in range(9)] == [i in (1, 5) for i in range(9)]
    assert [bool((cache.values[0][i] == 0).all()) for i in range(9)] == [i in (1, 5) for i in range(9)]
