"""Running an arm: what is recorded is what happened."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright.errors import WorkloadError
from batchwright.hookspecs import Refusal, hookimpl
from batchwright.lab import Workload, WorkloadRow, load_workload, run_arm
from batchwright.lab.riding import key_of
from batchwright.policy import Policy
from lab.machine import MIXED, MS, Machine, config, statuses


class Watcher:
    """Records in the plainest way, beside the recorder."""

    def __init__(self) -> None:
        self.times: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.steps: list[tuple[int, ...]] = []
        self.batches: list[list[tuple[str, int]]] = []
        self.stays: dict[str, list[tuple[str, int]]] = {}  # what happened to its blocks, and when

    @hookimpl
    def request_admitted(self, step: Any, request: Any) -> None:
        self.cached.setdefault(request.request_id, request.num_cached)
        self.stays.setdefault(request.request_id, []).append(("in", step.now))

    @hookimpl
    def request_preempted(self, step: Any, victim: Any) -> None:
        self.stays.setdefault(victim.request_id, []).append(("out", step.now))

    @hookimpl
    def step_finished(self, step: Any) -> None:
        for r in step.sampled:
            self.times.setdefault(r.request_id, []).append(step.end)
        self.batches.append([(r.request_id, r.num_scheduled) for r in step.batch])
        self.steps.append(
            (
                step.index,
                step.now,
                step.end,
                step.num_prefill_tokens,
                step.num_decodes,
                len(step.preempted),
                len(step.waiting),
                len(step.running),
                step.free_blocks,
                len(step.batch),
            )
        )


@pytest.mark.parametrize("num_blocks", [1000, 60])
@pytest.mark.parametrize("policy", ["prefill_first", "stall_free:chunk_size=16", "vllm_v1"])
def test_records_hold_what_a_plain_observer_sees(num_blocks, policy) -> None:
    watcher = Watcher()
    load = load_workload(MIXED)
    run = run_arm(config(policy=policy), load, backend=Machine(num_blocks), plugins=[watcher])
    assert run.stopped is None
    assert statuses(run) == ["finished"] * 40
    by_row = dict(zip([r.request_id for r in run.requests], load.rows, strict=True))
    for r in run.requests:
        assert list(r.token_times_ns) == watcher.times[r.request_id]
        assert r.num_cached_tokens == watcher.cached[r.request_id]
        assert r.finish_ns == r.token_times_ns[-1]
        assert r.arrival_ns <= r.first_scheduled_ns < r.token_times_ns[0]
        assert (r.finish_reason, r.error) == ("trace", None)
        stays = watcher.stays[r.request_id]
        assert [kind for kind, _ in stays] == ["in", *["out", "in"] * r.num_preemptions]
        assert list(r.preempted_ns) == [when for kind, when in stays if kind == "out"]
        assert list(r.resumed_ns) == [when for kind, when in stays[1:] if kind == "in"]
        row = by_row[r.request_id]
        assert r.num_output_tokens == len(r.token_times_ns) == row.num_output_tokens
        assert (r.num_prompt_tokens, r.client_id, r.arrival_ns) == (
            row.num_prompt_tokens,
            row.client_id,
            row.arrival_ns,
        )
    steps = [(s.index, s.start_ns, s.end_ns, s.num_prefill_tokens, s.num_decodes) for s in run.steps]
    assert steps == [s[:5] for s in watcher.steps]
    rest = [(s.num_preempted, s.num_waiting, s.num_running, s.free_blocks, s.batch_size) for s in run.steps]
    assert rest == [s[5:] for s in watcher.steps]
    assert run.duration_ns == run.steps[-1].end_ns
    assert sum(r.num_preemptions for r in run.requests) == sum(s.num_preempted for s in run.steps)
    if num_blocks == 60:
        assert sum(r.num_preemptions for r in run.requests) > 0
        assert sum(r.num_recomputed_tokens for r in run.requests) > 0
    assert sum(r.num_cached_tokens for r in run.requests) > 0
    assert len(run.batches) == len(run.steps)
    known: dict[int, list[tuple[str, int]]] = {}
    for fingerprint, batch in zip(run.batches, watcher.batches, strict=True):
        assert known.setdefault(fingerprint, batch) == batch
    assert len(known) == len({tuple(b) for b in watcher.batches})


def test_fingerprints_are_those_of_rows_and_counts() -> None:
    load = Workload("w", (WorkloadRow(0, 70, 2), WorkloadRow(0, 5, 2)), "w")
    run = run_arm(config(policy="stall_free:chunk_size=64"), load, backend=Machine())
    # 64 tokens of the first; its last 6 and all 5 of the second; both decode.
    expected = [[(0, 64)], [(0, 6), (1, 5)], [(0, 1), (1, 1)]]
    assert list(run.batches) == [sum(key_of(*row) for row in e) % 2**64 for e in expected]


def test_the_loop_is_open_and_skips_idle_time() -> None:
    rows = (WorkloadRow(0, 10, 20), WorkloadRow(5 * MS, 10, 1), WorkloadRow(10_000 * MS, 10, 1))
    run = run_arm(config(), Workload("w", rows, "w"), backend=Machine())
    first, second, third = run.requests
    # The second arrives while a step runs, and waits for the next; it prefills before the first decodes on.
    assert first.finish_ns > second.finish_ns
    assert second.arrival_ns == 5 * MS
    assert second.first_scheduled_ns == min(s.start_ns for s in run.steps if s.start_ns >= 5 * MS)
    assert third.first_scheduled_ns == 10_000 * MS
    assert sum(s.end_ns - s.start_ns for s in run.steps) < 100 * MS


def test_times_count_from_the_start_of_the_run() -> None:
    late = Machine()
    late.clock.wait_until_ns(3_000_000_000)
    load = load_workload(MIXED)
    run = run_arm(config(), load, backend=late)
    base = run_arm(config(), load, backend=Machine())
    assert run == base


def test_a_run_in_real_time() -> None:
    load = load_workload("synthetic:rate=200,n=10,prompt=10,output=3")
    run = run_arm(config(), load, backend=Machine(real=True))
    assert statuses(run) == ["finished"] * 10
    assert not run.virtual_time
    assert run.duration_ns >= load.rows[-1].arrival_ns
    for r in run.requests:
        assert r.token_times_ns[0] - r.arrival_ns >= MS
        assert list(r.token_times_ns) == sorted(r.token_times_ns)


def test_what_the_engine_refuses_stays_with_its_error() -> None:
    rows = (WorkloadRow(0, 199, 5), WorkloadRow(0, 200, 5), WorkloadRow(0, 201, 5), WorkloadRow(MS, 150, 40))
    run = run_arm(config(), Workload("w", rows, "w"), backend=Machine())
    assert statuses(run) == ["finished", "refused", "refused", "finished"]
    assert "200" in (run.requests[1].error or "")
    assert "201" in (run.requests[2].error or "")
    assert run.requests[0].num_output_tokens == 1
    assert run.requests[0].finish_reason == "length"
    assert run.requests[2].finish_ns is None
    assert [o.request_id for o in run.offered] == [r.request_id for r in run.requests]


def test_what_the_policy_refuses_stays_with_its_reason() -> None:
    class Shedder(Policy):
        @hookimpl
        def arrival(self, request: Any) -> bool | Refusal:
            return Refusal("too long for today") if request.num_prompt_tokens > 50 else True

    rows = (WorkloadRow(0, 50, 2), WorkloadRow(0, 51, 2))
    run = run_arm(config(), Workload("w", rows, "w"), backend=Machine(), policy=Shedder())
    assert statuses(run) == ["finished", "refused"]
    assert "too long for today" in (run.requests[1].error or "")


def test_the_rule_model_declares_no_more_than_the_pool_can_hold() -> None:
    load = Workload("w", (WorkloadRow(0, 10, 5),), "w")
    run = run_arm(config(), load, backend=Machine(num_blocks=8))  # 32 tokens, and the last one needs no room
    assert run.offered[0].max_tokens == 23
    assert statuses(run) == ["finished"]
    assert run_arm(config(), load, backend=Machine()).offered[0].max_tokens == 190
    assert run_arm(config(max_model_len=40), load, backend=Machine()).offered[0].max_tokens == 30


def test_progress_is_told_and_ends_with_all() -> None:
    told: list[tuple[str, int, int]] = []
    run_arm(config(), load_workload(MIXED), backend=Machine(), arm="mine", progress=lambda *a: told.append(a))
    assert told[-1] == ("mine", 40, 40)
    assert [n for _, n, _ in told] == sorted(n for _, n, _ in told)


@pytest.mark.parametrize("limit", [{"max_steps": 0}, {"max_seconds": -1.0}, {"max_seconds": float("nan")}])
def test_limits_out_of_range(limit) -> None:
    with pytest.raises(WorkloadError, match="must be above 0"):
        run_arm(config(), load_workload("synthetic:n=1,prompt=10"), backend=Machine(), **limit)


def test_a_workload_without_requests() -> None:
    with pytest.raises(WorkloadError, match="has no requests"):
        run_arm(config(), Workload("empty", (), "empty"), backend=Machine())
