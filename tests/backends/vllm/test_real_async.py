"""A real model in a real vLLM that schedules asynchronously: our scheduler in the place of its own. Minutes: make
check-vllm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from backends.vllm.elsewhere import asking
from backends.vllm.test_real import TINY, Real
from batchwright_backends.torch.models import ensure_model

if not os.environ.get("BATCHWRIGHT_REAL_VLLM"):
    pytest.skip("minutes long: make check-vllm", allow_module_level=True)

SCRIPT = str(Path(__file__).with_name("real_ahead.py"))


@pytest.fixture(scope="module")
def ahead(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A run: under a policy (None: vLLM's own asynchronous scheduler), with so many blocks (None: ample)."""
    with asking(tmp_path_factory.mktemp("ahead"), SCRIPT) as ask:

        @cache
        def run(policy: str | None, num_blocks: int | None) -> dict[str, object]:
            found = ask({"model": str(ensure_model("smollm2-135m")), "policy": policy, "num_blocks": num_blocks})
            assert "failed" not in found, found["failed"]
            assert found.pop("scheduler") == ("AsyncScheduler" if policy is None else "HostScheduler")
            assert (found.pop("depth"), found.pop("usage"), found.pop("fallbacks")) == (2, 0, {})
            return found

        yield run


@pytest.mark.parametrize(
    ("num_blocks", "policy"), [(None, "vllm_v1"), (TINY, "vllm_v1"), (TINY, "prefill_first"), (TINY, "vtc")]
)
def test_tokens_are_those_of_vllms_asynchronous_scheduler(ahead: Real, num_blocks: int | None, policy: str) -> None:
    """And ends, and log-probabilities, while some stop with a step under way, and with a tiny pool some are evicted."""
    stock, ours = ahead(None, num_blocks), ahead(policy, num_blocks)
    for what in ("tokens", "reasons", "logprobs"):
        assert ours[what] == stock[what]
    assert {reason for reason, _ in stock["reasons"]} == {"stop", "length"} and any(stock["logprobs"])
    assert (stock["preemptions"] > 3) == (ours["preemptions"] > 3) == (num_blocks is not None)
    assert stock["hits"] > 0 and (policy != "vllm_v1" or ours["hits"] == stock["hits"])
    if policy == "vllm_v1":
        assert ours["preemptions"] <= stock["preemptions"]  # who has reached his length makes room a step earlier
