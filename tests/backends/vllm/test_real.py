"""A real model in a real vLLM: the tokens of its own scheduler under any policy, through each adapter. Minutes: make
check-vllm."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from backends.vllm.elsewhere import asking, python
from batchwright_backends.torch.models import ensure_model

if not os.environ.get("BATCHWRIGHT_REAL_VLLM"):
    pytest.skip("minutes long: make check-vllm", allow_module_level=True)

TINY = 18
"""Blocks that 16 requests at a time do not fit in."""

SCRIPT = str(Path(__file__).with_name("real.py"))
CLASSES = {"stock": "Scheduler", "host": "HostScheduler", "guest": "GuestScheduler"}
ADAPTERS = ("host", "guest")

Real = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model, since SmolLM2-135M's nine heads cannot be shared by two."""
    folder = tmp_path_factory.mktemp("model")
    python(SCRIPT, "--make", str(folder))
    return str(folder)


def ask_in(folder: Path, num_ranks: int, *options: str) -> Iterator[Real]:
    """A process in which engines run, one after the other."""
    with asking(folder, SCRIPT, *options) as ask:

        @cache
        def real(scheduler: str, policy: str | None, num_blocks: int | None, made: str = "") -> dict[str, Any]:
            found = ask(
                {
                    "model": made or str(ensure_model("smollm2-135m")),
                    "scheduler": scheduler,
                    "policy": policy,
                    "num_blocks": num_blocks,
                    "num_ranks": num_ranks,
                    "is_made": bool(made),
                }
            )
            assert "failed" not in found, found["failed"]
            assert found.pop("scheduler").startswith(CLASSES[scheduler])
            assert found.pop("num_ranks") == num_ranks
            assert found["usage"] == 0
            return found

        yield real


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A run: of stock or an adapter, a policy, so many blocks (None: ample), a model (SmolLM2-135M)."""
    yield from ask_in(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """The same, on two tensor-parallel ranks."""
    yield from ask_in(tmp_path_factory.mktemp("two"), 2, "--ranks", "2")


def is_stock(stock: dict[str, Any], ours: dict[str, Any], adapter: str) -> None:
    """All as with vLLM's own scheduler: tokens, ends, log-probabilities, evictions and prefix hits."""
    ours, stock = dict(ours), dict(stock)
    fallbacks = ours.pop("fallbacks")
    assert stock.pop("fallbacks") == {}
    # Where an eviction gives tokens back in the middle of a step vLLM's own order is what the guest wants.
    assert set(fallbacks) <= ({"inexpressible"} if adapter == "guest" else set())
    assert ours == stock


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("num_blocks", [None, TINY])
def test_vllm_v1_is_stock(real: Real, num_blocks: int | None, adapter: str) -> None:
    stock = real("stock", None, num_blocks)
    assert stock["preemptions"] > 3 if num_blocks else stock["preemptions"] == 0
    assert stock["hits"] > 0
    is_stock(stock, real(adapter, "vllm_v1", num_blocks), adapter)


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("policy", ["prefill_first", "stall_free:chunk_size=48", "vtc", "priority", "sjf"])
def test_other_policies_give_the_same_tokens(real: Real, policy: str, adapter: str) -> None:
    """Of the same requests, all of which end, while residents are evicted."""
    stock, ours = real("stock", None, TINY), real(adapter, policy, TINY)
    for what in ("tokens", "reasons"):
        assert ours[what] == stock[what]
    assert ours["preemptions"] > 0
    assert not {"raised", "late", "otherwise"} & set(ours["fallbacks"])


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_two_tensor_parallel_ranks(real: Real, on_two_ranks: Real, model: str, adapter: str) -> None:
    """With too few blocks."""
    stock = on_two_ranks("stock", None, TINY, model)
    assert stock["preemptions"] > 3
    assert stock["tokens"] == real("stock", None, TINY, model)["tokens"]
    is_stock(stock, on_two_ranks(adapter, "vllm_v1", TINY, model), adapter)
