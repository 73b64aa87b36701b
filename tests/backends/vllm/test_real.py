"""A real model in a real vLLM: the tokens of its own scheduler under any policy, through each adapter. Minutes: make
check-vllm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from batchwright_backends.torch.models import ensure_model

if not os.environ.get("BATCHWRIGHT_REAL_VLLM"):
    pytest.skip("minutes long: make check-vllm", allow_module_level=True)

TINY = 24
"""Blocks that 16 requests at a time do not fit in."""

SCRIPT = Path(__file__).with_name("real.py")
CLASSES = {"stock": "Scheduler", "host": "HostScheduler", "guest": "GuestScheduler"}
ADAPTERS = ("host", "guest")


def script(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@cache
def real(
    scheduler: str, policy: str | None, num_blocks: int | None, model: str = "", num_ranks: int = 1
) -> dict[str, Any]:
    wanted = {
        "scheduler": scheduler,
        "policy": policy,
        "num_blocks": num_blocks,
        "num_ranks": num_ranks,
        "is_made": bool(model),
    }
    said = script(model or str(ensure_model("smollm2-135m")), json.dumps(wanted))
    found = dict(json.loads(next(line for line in reversed(said.splitlines()) if line.startswith("{"))))
    assert found.pop("scheduler").startswith(CLASSES[scheduler])
    assert found.pop("num_ranks") == num_ranks
    assert found["usage"] == 0
    return found


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
def test_vllm_v1_is_stock(num_blocks: int | None, adapter: str) -> None:
    stock = real("stock", None, num_blocks)
    assert stock["preemptions"] > 3 if num_blocks else stock["preemptions"] == 0
    assert stock["hits"] > 0
    is_stock(stock, real(adapter, "vllm_v1", num_blocks), adapter)


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("policy", ["prefill_first", "stall_free:chunk_size=48", "vtc", "priority", "sjf"])
def test_other_policies_give_the_same_tokens(policy: str, adapter: str) -> None:
    """Of the same requests, all of which end, while residents are evicted."""
    stock, ours = real("stock", None, TINY), real(adapter, policy, TINY)
    for what in ("tokens", "reasons"):
        assert ours[what] == stock[what]
    assert ours["preemptions"] > 0
    assert not {"raised", "late", "otherwise"} & set(ours["fallbacks"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    script("--make", str(folder))
    return str(folder)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_two_tensor_parallel_ranks(model: str, adapter: str) -> None:
    """A random model, since SmolLM2-135M's nine heads cannot be shared by two; with too few blocks."""
    stock = real("stock", None, TINY, model, 2)
    assert stock["preemptions"] > 3
    assert stock["tokens"] == real("stock", None, TINY, model)["tokens"]
    is_stock(stock, real(adapter, "vllm_v1", TINY, model, 2), adapter)
