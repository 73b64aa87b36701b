"""Recorded decisions of nano-vLLM and vLLM, every field of every step, by the fast scheduler and by the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchwright.replay import replay
from batchwright.scheduler import Scheduler
from batchwright.testing.reference import Reference

CASES = Path(__file__).parents[3] / "shared" / "cases"
FILES = [
    ("prefill_first.jsonl.gz", "prefill_first", 160, 16720),
    ("vllm_v1.jsonl.gz", "vllm_v1", 140, 11021),
    ("vllm_v1_prefix.jsonl.gz", "vllm_v1", 120, 10275),
]


@pytest.mark.parametrize("scheduler", [Scheduler, Reference])
@pytest.mark.parametrize(("file", "policy", "num_cases", "num_steps"), FILES, ids=[f[0].split(".")[0] for f in FILES])
def test_every_field_of_every_step_agrees(file, policy, num_cases, num_steps, scheduler):
    if not (CASES / file).is_file():
        pytest.skip(f"the recorded cases lie outside the repository, in ../shared/cases, and {file} is not there")
    report = replay(CASES / file, policy, scheduler_factory=scheduler)
    assert report.agrees, str(report)
    assert (report.num_cases, report.num_steps) == (num_cases, num_steps)


def test_another_policy_does_not_agree():
    file = CASES / "vllm_v1.jsonl.gz"
    if not file.is_file():
        pytest.skip("the recorded cases lie outside the repository, in ../shared/cases, and are not there")
    report = replay(file, "prefill_first")
    assert len(report.differences) > 100
    assert "recorded" in str(report)
    assert "replayed" in str(report)
