"""Structured output of a real model in a real vLLM, through each adapter: the tokens of vLLM's own scheduler. Minutes:
make check-vllm."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from backends.vllm.elsewhere import asking
from backends.vllm.test_real import TINY, Real
from batchwright_backends.torch.models import ensure_model

if not os.environ.get("BATCHWRIGHT_REAL_VLLM"):
    pytest.skip("minutes long: make check-vllm", allow_module_level=True)

SCRIPT = str(Path(__file__).with_name("real_structured.py"))
CASES = [
    *(("host", policy, num_blocks) for policy in ("vllm_v1", "prefill_first", "vtc") for num_blocks in (None, TINY)),
    *(("guest", "vllm_v1", num_blocks) for num_blocks in (None, TINY)),
]


def ask_in(folder: Path, *options: str) -> Iterator[Real]:
    with asking(folder, SCRIPT, *options) as ask:

        @cache
        def run(
            adapter: str | None, policy: str | None, num_blocks: int | None, backend: str = "xgrammar"
        ) -> dict[str, Any]:
            wanted = {"adapter": adapter, "policy": policy, "num_blocks": num_blocks, "backend": backend}
            found = ask({"model": str(ensure_model("smollm2-135m")), **wanted})
            assert "failed" not in found, found["failed"]
            assert found["usage"] == 0 and not {"raised", "late", "otherwise"} & set(found["fallbacks"])
            return found

        yield run


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A run: of an adapter (None: stock), under a policy, with so many blocks (None: ample), one of vLLM's backends."""
    yield from ask_in(tmp_path_factory.mktemp("waiting"))


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """The same with vLLM's asynchronous scheduling."""
    yield from ask_in(tmp_path_factory.mktemp("ahead"), "--ahead")


def check(stock: dict[str, Any], ours: dict[str, Any], num_blocks: int | None) -> None:
    """Tokens, text, ends and log-probabilities are those of stock; who left got nothing."""
    assert ours["told"] == stock["told"]
    assert (stock["preemptions"] > 3) == (ours["preemptions"] > 3) == (num_blocks is not None)
    told = ours["told"]
    assert "leaves" not in told and told["bad"][0] == [] and told["bad"][2] == "error"
    assert len(told) == 28
    reasons = [told[f"{i}"][2] for i in range(27)]
    assert set(reasons) == {"stop", "length"}
    said = {i: told[f"{i}"][1] for i in range(27) if reasons[i] == "stop"}
    assert {i % 9 for i in said} >= {0, 2, 3}
    for i, text in said.items():
        if i % 9 == 0:
            assert set(json.loads(text)) == {"name", "age", "is_tall"}
        elif i % 9 == 2:
            assert text in ("Positive", "Negative", "Neither of them")
        elif i % 9 == 3:
            assert re.fullmatch(r"[a-f]{12}(-[0-9]{6}){4}", text)


@pytest.mark.parametrize(("adapter", "policy", "num_blocks"), CASES)
def test_tokens_are_those_of_stock(waiting: Real, adapter: str, policy: str, num_blocks: int | None) -> None:
    """While some are evicted in the middle of a grammar, and grammars are compiled while others run."""
    stock, ours = waiting(None, None, num_blocks), waiting(adapter, policy, num_blocks)
    assert (stock["scheduler"], ours["scheduler"].startswith(f"{adapter.title()}Scheduler")) == ("Scheduler", True)
    check(stock, ours, num_blocks)


@pytest.mark.parametrize("backend", ["guidance", "outlines"])
def test_other_backends(waiting: Real, backend: str) -> None:
    stock, ours = waiting(None, None, TINY, backend), waiting("host", "vllm_v1", TINY, backend)
    check(stock, ours, TINY)


@pytest.mark.parametrize(("policy", "num_blocks"), [("vllm_v1", None), ("vllm_v1", TINY), ("prefill_first", TINY)])
def test_tokens_are_those_of_vllms_asynchronous_scheduler(ahead: Real, policy: str, num_blocks: int | None) -> None:
    stock, ours = ahead(None, None, num_blocks), ahead("host", policy, num_blocks)
    assert (stock["scheduler"], ours["scheduler"]) == ("AsyncScheduler", "HostScheduler")
    check(stock, ours, num_blocks)
