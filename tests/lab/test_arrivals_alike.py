"""Rows that wait are offered alike with leaps, in a fleet, and on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from batchwright import EngineConfig
from batchwright.lab import RunRecord, Workload, WorkloadRow, load_workload, read_run, run_arm, stream_arm
from batchwright.lab.links import arranged
from lab.waiting import SMALL, S, end, in_flight, row, rows, run


@st.composite
def workloads(draw: Callable[..., Any]) -> Workload:
    """Rows of all kinds: with times, waiting for earlier ones, given up."""
    found: list[WorkloadRow] = []
    for place in range(draw(st.integers(1, 14))):
        after = draw(st.lists(st.sampled_from([r.row_id for r in found]), max_size=2)) if found else []
        found.append(
            WorkloadRow(
                0 if after and draw(st.booleans()) else draw(st.sampled_from([0, 0, 1, 7_000_000, 300_000_000, S])),
                draw(st.sampled_from([3, 21, 40, 200, 900])),  # the last never fits
                draw(st.sampled_from([1, 2, 30, 90])),
                row_id=f"x{place}",
                after=tuple(after),
                think_s=draw(st.sampled_from([0.0, 0.0, 0.003, 0.4])),
                abort_after_s=draw(st.sampled_from([None, None, None, 0.02, 0.3])),
                abort_after_tokens=draw(st.sampled_from([None, None, 1, 25])),
            )
        )
    load = Workload("random", arranged(found), "test")
    users = draw(st.sampled_from([None, None, 1, 2, 5]))
    return load if users is None else load.closed(users, draw(st.sampled_from([None, 0.01])))


quick = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def plain(record: RunRecord) -> dict[str, Any]:
    value = record.to_json()
    value["settings"] = {k: v for k, v in value["settings"].items() if k not in ("router", "replicas")}
    return value


@quick
@given(load=workloads(), policy=st.sampled_from(["vllm_v1", "prefill_first", "sjf"]))
def test_leaps_and_a_fleet_of_one_change_no_record(load: Workload, policy: str) -> None:
    leapt = run(load, policy=policy)
    assert leapt.dumps() == run(load, policy=policy, leap=False).dumps()
    fleet = run(load, policy=policy, router="round_robin")
    assert plain(fleet) == plain(leapt)
    assert plain(run(load, policy=policy, router="round_robin", leap=False)) == plain(fleet)


@quick
@given(load=workloads())
def test_everybody_is_offered_once_and_nobody_before_those_it_waits_for(load: Workload) -> None:
    for values in ({}, {"replicas": 3, "router": "least_outstanding", "num_blocks": 30}):
        record = run(load, **values)
        found = {r.row_id: request for r, request in zip(load.rows, record.requests, strict=True)}
        assert {r.status for r in record.requests} <= {"finished", "refused", "aborted"}
        for one in load.rows:
            request = found[one.row_id]
            if load.concurrency is None:
                assert request.arrival_ns >= one.arrival_ns
            for name in one.after:
                before = found[name]
                ended = before.arrival_ns if before.finish_ns is None else before.finish_ns
                assert request.arrival_ns >= ended + one.think_ns
            if one.abort_after_tokens is not None:
                assert request.num_output_tokens <= one.abort_after_tokens


@settings(parent=quick, max_examples=5)
@given(load=workloads())
def test_replicas_with_leaps_are_replicas_without(load: Workload) -> None:
    values: dict[str, Any] = {"replicas": 3, "router": "least_outstanding", "num_blocks": 30}
    assert run(load, **values).dumps() == run(load, leap=False, **values).dumps()


@quick
@given(
    users=st.integers(1, 6),
    spec=st.sampled_from(["n=20,output=uniform(1,40)", "n=6,turns=uniform(1,4),think=0.02,output=uniform(1,40)"]),
    seed=st.integers(0, 99),
)
def test_a_closed_loop_never_has_more_in_flight_than_users(users: int, spec: str, seed: int) -> None:
    load = load_workload(f"synthetic:{spec},prompt=uniform(1,60),seed={seed}").closed(users)
    record = run(load, num_blocks=400)
    assert in_flight(record) <= users
    assert {r.status for r in record.requests} == {"finished"}


def test_a_refusal_in_a_busy_fleet_brings_the_next_before_the_step_begins() -> None:
    load = rows(
        row("busy", output=200),
        row("never", arrival_s=0.1, prompt=4000),
        row("next", "never"),
        row("last", "next", output=3),
    )
    alone = run(load)
    assert [r.status for r in alone.requests] == ["finished", "refused", "finished", "finished"]
    never, following = alone.requests[1:3]
    assert following.arrival_ns > never.arrival_ns  # it was refused at the end of a step
    for leap in (True, False):
        assert plain(run(load, router="round_robin", leap=leap)) == plain(alone)


def test_a_client_that_gives_up_in_a_fleet_gets_the_step_that_is_under_way() -> None:
    """Steps of one replica begin within those of the other; whoever leaves has the token of each step it was in."""
    load = rows(
        *(row(f"x{i}", output=400, prompt=100 + 700 * (i % 2), abort_after_s=0.2 + 0.013 * i) for i in range(8)),
        row("long", output=90, prompt=900),
    )
    record = run(load, replicas=2, router="round_robin", num_blocks=700)
    left = [r for r in record.requests if r.status == "aborted"]
    assert len(left) == 8 and all(r.num_output_tokens > 5 for r in left)
    assert [r.token_times_ns[-1] for r in left] == [r.finish_ns for r in left]
    assert all(end(r) >= round((0.2 + 0.013 * i) * S) for i, r in enumerate(left))


def test_streamed_records_of_rows_that_wait_read_as_those_in_memory(tmp_path: Any) -> None:
    load = load_workload("synthetic:n=6,turns=3,prompt=30,output=uniform(5,50),think=0.1").closed(3)
    config = EngineConfig.parse({**SMALL, "num_blocks": 400})
    stream_arm(config, load, tmp_path / "run.jsonl")
    assert read_run(tmp_path / "run.jsonl") == run_arm(config, load)
