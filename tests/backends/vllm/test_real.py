"""A real model in a real vLLM: the tokens of its own scheduler under any of our policies. Minutes: make check-vllm."""

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


@cache
def real(scheduler: str, policy: str | None, num_blocks: int | None) -> dict[str, Any]:
    wanted = {"scheduler": scheduler, "policy": policy, "num_blocks": num_blocks}
    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("real.py")),
            str(ensure_model("smollm2-135m")),
            json.dumps(wanted),
        ],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("num_blocks", [None, TINY])
def test_vllm_v1_is_stock(num_blocks: int | None) -> None:
    """Tokens, log-probabilities, evictions and prefix hits: all as with vLLM's own scheduler."""
    stock, ours = real("stock", None, num_blocks), real("host", "vllm_v1", num_blocks)
    assert (stock.pop("scheduler"), ours.pop("scheduler")) == ("Scheduler", "HostScheduler")
    assert (stock["preemptions"] > 3) == (num_blocks == TINY)
    assert stock["hits"] > 0
    assert ours == stock


@pytest.mark.parametrize("policy", ["prefill_first", "stall_free:chunk_size=48", "vtc", "priority", "sjf"])
def test_other_policies_give_the_same_tokens(policy: str) -> None:
    stock, ours = real("stock", None, TINY), real("host", policy, TINY)
    for what in ("tokens", "reasons", "usage"):
        assert ours[what] == stock[what]
