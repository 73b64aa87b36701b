"""Our scheduler in the place of vLLM's, under policies that raise or hang: nothing is lost, and all is counted."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from backends.vllm.runs import BLOCK, Run, check_answers, load, offer, ours, stock
from peers_vllm import host


def test_a_policy_that_raises_loses_nothing(tmp_path: Any) -> None:
    path = tmp_path / "broken.py"
    path.write_text(
        "from batchwright import Policy, hookimpl\n\n\n"
        "class Broken(Policy):\n"
        "    @hookimpl\n"
        "    def admission(self, step):\n"
        "        yield step.running\n"
        "        if step.index % 3 == 1:\n"
        "            raise RuntimeError('on purpose')\n"
        "        yield step.waiting\n"
    )
    run = ours(f"{path}:Broken", 16, 4, 40)
    rows = load(5, 8)
    for row in rows:
        offer(run, row)
        run.step()
    run.finish()
    check_answers(run, rows)
    assert run.core.core.num_policy_faults > 2


FAILS = """
from batchwright import Policy, hookimpl


class Fails(Policy):
    @hookimpl
    def admission(self, step):
        raise RuntimeError("always")
"""
STOCK_CACHE = {"visible": "scheduled", "reuse": "uncached_first", "duplicates": "oldest"}


def test_steps_of_a_policy_that_always_raises_are_stock(tmp_path: Any) -> None:
    """What takes its place is vLLM's own order: the same requests with the same tokens in every step."""
    path = tmp_path / "fails.py"
    path.write_text(FAILS)
    section = {"policy": f"{path}:Fails", "prefix_cache": STOCK_CACHE, "max_num_residents": 4}
    kind = type(host("vllm_v1", 16, BLOCK, 4, 40))
    runs = (
        stock(16, 4, 40),
        Run(type("Host", (kind,), {"additional_config": {"batchwright": section}})(16, BLOCK, 4, 40)),
    )
    rows = load(5, 8)
    for run in runs:
        for row in rows:
            offer(run, row)
            run.step()
        run.finish()
        check_answers(run, rows)
    one, other = ([step for step in run.workers.steps if step] for run in runs)
    assert other == one
    assert runs[1].core.core.num_policy_faults == len(other)


HANGS = """
import time
from batchwright import Policy, hookimpl


class Hangs(Policy):
    @hookimpl
    def admission(self, step):
        yield step.running
        while step.index % 3 == 1:
            try:
                step.num_cached(step.waiting[0]) if step.waiting else time.sleep(0.001)
            except Exception:
                if step.index % 2:
                    raise
        yield step.waiting
"""


def test_a_policy_that_hangs_loses_nothing(tmp_path: Any) -> None:
    """Not even one that catches what ends it, or that asks the core without end."""
    path = tmp_path / "hangs.py"
    path.write_text(HANGS)
    section = {"policy": f"{path}:Hangs", "max_policy_ms": 30}
    kind = type(host("vllm_v1", 16, BLOCK, 4, 40))
    run = Run(type("Host", (kind,), {"additional_config": {"batchwright": section}})(16, BLOCK, 4, 40))
    rows = load(6, 5)
    for row in rows:
        offer(run, row)
    for _ in range(9):
        run.step()
    assert run.core.core.num_policy_faults == 3
    run.core.core.swap_policy("prefill_first")
    run.finish()
    check_answers(run, rows)


def test_faults_are_counted_by_cause(tmp_path: Any) -> None:
    path = tmp_path / "both.py"
    path.write_text(HANGS.replace("    def admission(self, step):\n", RAISES_TOO))
    section = {"policy": f"{path}:Hangs", "max_policy_ms": 30}
    kind = type(host("vllm_v1", 16, BLOCK, 4, 40))
    run = Run(type("Host", (kind,), {"additional_config": {"batchwright": section}})(16, BLOCK, 4, 40))
    for row in load(6, 5):
        offer(run, row)
    for _ in range(9):
        run.step()
    assert run.core.num_fallbacks == {"late": 3, "raised": 3}
    assert run.core.policy_ns > 3 * 30e6


RAISES_TOO = """    def admission(self, step):
        if step.index % 3 == 2:
            raise RuntimeError("on purpose")
"""
