"""Greedy tokens over a paged cache equal those of ``model.generate()``."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from backends.torch.conftest import ARCHITECTURES, FEW, VOCABULARY
from backends.torch.driver import Driver, reference, reference_logits
from batchwright.request import Request

NUM_TOKENS = 12
LENGTHS = (5, 23, 1, 38, 12)

WINDOWED = ("qwen2", "mistral", "gemma2", "gemma3_text", "phi3", "mixtral", "cohere2", "gpt_oss")

Make = Callable[..., Any]


def prompts(lengths: Sequence[int] = LENGTHS, seed: int = 1) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCABULARY) for _ in range(n)] for n in lengths]


def check(driver: Driver, model: Any, requests: Sequence[Request], num_tokens: int = NUM_TOKENS) -> None:
    """Tokens are those of generate(), and so are the logits, to far less than what would change a token."""
    for request in requests:
        assert request.output_token_ids == reference(model, request.prompt_token_ids, num_tokens), request.request_id
        want = reference_logits(model, request._tokens, request.num_prompt_tokens)
        got = torch.stack(driver.logits[request.request_id])
        error = (got - want).abs().max().item()
        best = want.topk(2).values
        margin = (best[:, 0] - best[:, 1]).min().item()
        assert error < 1e-3 * want.std().item(), (request.request_id, error)
        assert error < 0.1 * margin, "the test hangs on rounding: choose another seed"


@pytest.mark.parametrize("chunk", [1, 7, 16, None], ids=["chunk-1", "chunk-7", "chunk-16", "whole"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_chunked_prompts_and_mixed_batches(
    name: str, chunk: int | None, make_backend: Make, load_reference: Make
) -> None:
    driver = Driver(make_backend(name))
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, NUM_TOKENS, chunk, stagger=2)
    check(driver, load_reference(name), requests)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_shared_prefix_and_recompute_after_eviction(name: str, make_backend: Make, load_reference: Make) -> None:
    driver = Driver(make_backend(name))
    first, second, third = prompts((30, 9, 14), seed=2)
    a = driver.request("a", first)
    b = driver.request("b", first[:21] + second)
    c = driver.request("c", first)
    d = driver.request("d", third)
    driver.run([a, d], 4, chunk=16, stagger=1)
    assert driver.share(a, b) == 5 and driver.share(a, c) == 7
    driver.run([a, b, c, d], 7)
    driver.evict(a)  # the blocks that b and c share stay
    driver.evict(d)
    for pool in (*driver.backend.runner.cache.keys, *driver.backend.runner.cache.values):
        pool[driver.free] = torch.nan  # whoever gets a block must not see what lay in it
    driver.run([b, c, a, d], NUM_TOKENS, chunk=8)
    check(driver, load_reference(name), [a, b, c, d])


@pytest.mark.parametrize(
    ("name", "seed"), [*((name, 0) for name in ARCHITECTURES), *((name, seed) for name in FEW for seed in (1, 2))]
)
def test_any_schedule(name: str, seed: int, make_backend: Make, load_reference: Make) -> None:
    """Random rows, chunks, prefix hits and evictions at every step."""
    rng = random.Random(seed)
    driver = Driver(make_backend(name, block_size=rng.choice([1, 3, 16]), num_blocks=400), seed=seed)
    common = prompts((20,), seed=3 + seed)[0]
    requests = [
        driver.request(f"r{i}", common[: rng.randrange(20)] + p) for i, p in enumerate(prompts((7, 18, 1, 33), seed))
    ]
    while pending := [r for r in requests if r.num_output_tokens < NUM_TOKENS]:
        rows = []
        for request in rng.sample(pending, rng.randint(1, len(pending))):
            if request.block_table and rng.random() < 0.06:
                driver.evict(request)
            source = rng.choice(requests)
            if not request.block_table and source is not request:
                driver.share(source, request)
            rows.append((request, rng.randint(1, request.num_pending)))
        driver.step(rows)
    check(driver, load_reference(name), requests)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *((name, {"window": None}) for name in WINDOWED),
        ("gemma2", {"softcap": None}),
        ("gpt_oss", {"sinks": None}),
        ("llama", {"scaling": 0.2}),
        ("granite", {"scaling": 8**-0.5}),
    ],
)
def test_what_a_layer_asks_for_matters(
    name: str, change: dict[str, Any], make_backend: Make, load_reference: Make
) -> None:
    """A negative control: without the window, the cap, the sinks or the scaling the tokens are others."""
    backend = make_backend(name, passes=[])
    backend.runner.layers = {module: replace(layer, **change) for module, layer in backend.runner.layers.items()}
    driver = Driver(backend)
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, NUM_TOKENS)
    model = load_reference(name)
    assert any(r.output_token_ids != reference(model, r.prompt_token_ids, NUM_TOKENS) for r in requests)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_the_layers_are(name: str, make_backend: Make) -> None:
    layers = list(make_backend(name).runner.layers.values())
    assert [layer.index for layer in layers] == [0, 1, 2]
    windows = {"qwen2": [None, 9, 9], "mistral": [9, 9, 9], "phi3": [9, 9, 9], "mixtral": [9, 9, 9]}
    by_layer = [9, None, 9] if name in WINDOWED else [None] * 3
    assert [layer.window for layer in layers] == windows.get(name, by_layer)
    assert {layer.softcap for layer in layers} == {3.0 if name == "gemma2" else None}
    assert {layer.sinks is not None for layer in layers} == {name == "gpt_oss"}
    assert {(layer.key_width, layer.value_width) for layer in layers} == {(12, 6) if name == "deepseek_v3" else (8, 8)}
    scaling = {"gemma2": 24**-0.5, "gemma3_text": 24**-0.5, "granite": 0.4, "opt": 1.0, "deepseek_v3": 12**-0.5}
    assert {layer.scaling for layer in layers} == {scaling.get(name, 8**-0.5)}
