"""What a run records with overlap is what it records without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchwright import EngineConfig
from batchwright.lab import Workload, WorkloadRow, run_arm
from batchwright.lab.run_record import RunRecord
from fake_backend import FakeBackend, HandClock

ROWS = tuple(WorkloadRow(0, 3 + i % 9, 1 + i % 6) for i in range(12))


def _run(*, overlap: bool, settings: dict[str, Any] | None = None, **arguments: Any) -> RunRecord:
    config = EngineConfig(
        policy="stall_free", overlap=overlap, max_num_batched_tokens=16, max_num_seqs=6, on_backend_error="retry"
    )
    backend = FakeBackend(num_blocks=12, clock=HandClock(), **(settings or {}))
    return run_arm(config, Workload("hand", ROWS, "hand"), backend=backend, declared="exact", **arguments)


@pytest.mark.parametrize("max_steps", [None, 1, 7])
def test_times_steps_and_batches_are_the_same(max_steps: int | None) -> None:
    plain, ahead = (_run(overlap=overlap, max_steps=max_steps) for overlap in (False, True))
    for one, other in zip(ahead.requests, plain.requests, strict=True):
        assert (one.first_scheduled_ns is None) == (other.first_scheduled_ns is None)
        assert (one.first_scheduled_ns or 0) <= (other.first_scheduled_ns or 0)  # while the step before it runs
        for name in ("preempted_ns", "resumed_ns"):
            whens = zip(getattr(one, name), getattr(other, name), strict=True)
            assert all(early <= late for early, late in whens)
        scheduled = {"first_scheduled_ns": None, "preempted_ns": (), "resumed_ns": ()}
        assert replace(one, **scheduled) == replace(other, **scheduled)
    assert ahead.steps == plain.steps and ahead.batches == plain.batches
    assert (ahead.stopped, ahead.duration_ns) == (plain.stopped, plain.duration_ns)
    assert ahead.settings["overlap"] is True
    if max_steps is None:
        assert all(r.status == "finished" and r.finish_ns == r.token_times_ns[-1] for r in ahead.requests)
        assert any(s.num_preempted for s in ahead.steps)


def test_faults_lose_no_request_and_no_record() -> None:
    record = _run(overlap=True, settings={"lose_at": [2, 5], "fail_at": [8]})
    assert all(r.status == "finished" and len(r.token_times_ns) == r.num_output_tokens for r in record.requests)
    assert len([e for e in record.events if e["kind"] == "backend_fault"]) == 3
    ends = [s.end_ns for s in record.steps]
    assert all(start <= end for start, end in zip([s.start_ns for s in record.steps], ends, strict=True))
    assert ends == sorted(ends)


def test_a_row_that_failed_with_its_last_token_failed() -> None:
    record = _run(overlap=True, settings={"poison": ["r000000"]})
    by_id = {r.request_id: r for r in record.requests}
    assert by_id["r000000"].status == "failed" and by_id["r000000"].error == "logits are not finite"
    assert by_id["r000000"].num_output_tokens == 0 == len(by_id["r000000"].token_times_ns)
    assert all(r.status == "finished" for i, r in by_id.items() if i != "r000000")
