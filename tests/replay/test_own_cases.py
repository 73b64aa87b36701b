"""The project's own recorded cases: decided by the reference, replayed by both, and reproducible."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchwright.replay import read_cases, replay
from batchwright.scheduler import Scheduler
from batchwright.testing.reference import Reference
from cases.make_cases import NUM_CASES, run

HERE = Path(__file__).parents[1] / "cases"
POLICIES = ["prefill_first", "vllm_v1", "stall_free"]


@pytest.mark.parametrize("scheduler", [Scheduler, Reference])
@pytest.mark.parametrize("policy", POLICIES)
def test_they_agree_with_the_recorded_policy(policy, scheduler):
    report = replay(HERE / f"{policy}.jsonl", scheduler_factory=scheduler)
    assert report.agrees, str(report)
    assert report.num_cases == NUM_CASES
    assert report.num_steps > 400


@pytest.mark.parametrize("policy", POLICIES)
def test_making_them_again_gives_the_same(policy):
    recorded = (HERE / f"{policy}.jsonl").read_text().splitlines()
    for number, line in enumerate(recorded):
        assert run(policy, number) == line, "decisions changed: if they should, run tests/cases/make_cases.py"


@pytest.mark.parametrize("policy", POLICIES)
def test_they_show_what_matters(policy):
    cases = list(read_cases(HERE / f"{policy}.jsonl"))
    steps = [step for case in cases for step in case.steps]
    kinds = [event.kind for case in cases for event in case.events]
    assert sum(len(s["preempted"]) for s in steps) >= 20
    assert sum(computed > 0 for s in steps for _, tokens, computed in s.get("scheduled", ()) if tokens > 1) >= 20
    assert kinds.count("abort") >= 5
    assert kinds.count("retry") + kinds.count("fail") >= 5
    assert {case.settings.prefix_cache.visible for case in cases} == {"computed", "scheduled"}
    assert (HERE / f"{policy}.jsonl").stat().st_size < 150_000
