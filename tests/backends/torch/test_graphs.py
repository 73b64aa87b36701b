"""Steps of decodes as graphs, on a GPU played on CPU: sizes, and that the tokens are the same."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from backends.torch.conftest import VOCABULARY
from backends.torch.driver import Driver
from backends.torch.graphing import Make, MakeKernel, on_gpu, replays
from backends.torch.test_equality import NUM_TOKENS, check, prompts
from batchwright_backends.torch.graphs import graph_sizes
from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.runner import Runner


@pytest.mark.parametrize("most", [1, 2, 3, 7, 8, 9, 12, 20, 100, 129, 256, 300, 1000])
def test_every_batch_has_a_size_and_little_padding(most: int) -> None:
    sizes = graph_sizes(most)
    assert sizes == sorted(set(sizes)) and sizes[-1] == most
    for n in range(1, most + 1):
        size = min(s for s in sizes if s >= n)
        assert size - n <= max(7, n // 8), n


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("flash_attn 3", "llama"),
        ("flash_attn 3", "gemma2"),
        ("flash_attn 2", "mistral"),
        ("varlen", "gpt2"),
        ("triton", "gpt_oss"),
    ],
)
def test_same_tokens_as_generate(
    title: str, name: str, make_kernel: MakeKernel, make_plain: Make, load_reference: Make
) -> None:
    """Prompts in chunks, mixed batches and decodes of every size; K and V of others are left alone."""
    few = title == "triton"  # its interpreter is slow
    settings = {"block_size": 256, "num_blocks": 8} if title == "flash_attn 2" else {"max_model_len": 32 if few else 64}
    backend = make_plain(name, **settings)
    sizes = [3] if few else [1, 2, 4, 5]
    kernel = make_kernel(title)
    device = on_gpu(backend, kernel, sizes)
    if few:  # warm-up and recording of three rows under two KV heads, for as many parts as 32 keys may need
        attend: Any = kernel
        assert attend._attend_tile.grids == [(3, 2, 2)] * 6 and attend._join_parts.grids == [(3, 4)] * 6
    driver = Driver(backend)
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts((3, 20)) if few else prompts())]
    num_tokens = 3 if few else NUM_TOKENS
    driver.run(requests, 1 if few else 3, chunk=None if few else 7, stagger=0 if few else 2)
    driver.run(requests, num_tokens, stagger=0)
    check(driver, load_reference(name), requests, num_tokens)
    used = replays(device, sizes)
    assert len(used) < driver.num_steps  # prompts and mixed batches run as they are
    assert set(used) >= ({3} if few else {1, 5})  # two rows in the graph of three


@pytest.mark.parametrize("most", [12, 20])
def test_f7_every_size_runs(most: int, make_kernel: MakeKernel, make_plain: Make) -> None:
    """Scenario F7: every batch from ``most`` down to 1 runs in the next size up, with the logits of none."""
    backend = make_plain("llama", num_blocks=400, max_model_len=32)
    kernel = make_kernel("flash_attn 3")
    sizes = graph_sizes(most)
    device = on_gpu(backend, kernel, sizes)
    runner: Runner = backend.runner
    rng = random.Random(most)
    lengths = [rng.randrange(1, 12) for _ in range(most)]
    tables = [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(most)]
    rng.shuffle(tables)
    tokens = [[rng.randrange(VOCABULARY) for _ in range(n + 1)] for n in lengths]
    runner.logits(StepInputs.of_rows([(t[:-1], 0, b) for t, b in zip(tokens, tables, strict=True)], 4))
    for n in range(most, 0, -1):
        rows = [([t[-1]], len(t) - 1, b) for t, b in zip(tokens[:n], tables, strict=False)]
        got = runner.logits(StepInputs.of_rows(rows, 4)).clone()
        graphs, runner.graphs = runner.graphs, None
        want = runner.logits(StepInputs.of_rows(rows, 4))
        runner.graphs = graphs
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    assert replays(device, sizes) == [min(s for s in sizes if s >= n) for n in range(most, 0, -1)]
