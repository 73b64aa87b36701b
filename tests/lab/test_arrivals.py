"""When requests are offered: at their times, when others have ended, or in a closed loop; and clients that give up."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from batchwright import EngineConfig, Policy, Refusal, hookimpl
from batchwright.engine import Engine
from batchwright.errors import WorkloadError
from batchwright.lab import (
    RequestRecord,
    RunRecord,
    Workload,
    WorkloadRow,
    load_workload,
    read_run,
    run_arm,
    stream_arm,
)
from batchwright.lab.links import arranged
from batchwright.plugins import load_plugins
from lab.test_runner import Machine

SIM = "sim:llama-3.1-8b@h100"
S = 1_000_000_000
PLUGINS = load_plugins()
SMALL: dict[str, Any] = {"backend": SIM, "policy": "vllm_v1", "num_blocks": 60, "max_num_seqs": 6}


def rows(*values: WorkloadRow) -> Workload:
    return Workload("w", arranged(values), "test")


def row(
    row_id: str, *after: str, arrival_s: float = 0, prompt: int = 20, output: int = 10, **values: Any
) -> WorkloadRow:
    return WorkloadRow(round(arrival_s * S), prompt, output, row_id=row_id, after=after, **values)


def run(workload: Workload, *, leap: bool = True, **values: Any) -> RunRecord:
    options = {name: values.pop(name) for name in ("max_steps", "max_seconds", "policy_object") if name in values}
    if "policy_object" in options:
        options["policy"] = options.pop("policy_object")
    engines: list[Engine] = []
    config = EngineConfig.parse({**SMALL, **values})
    record = run_arm(config, workload, leap=leap, installed=PLUGINS, on_engine=engines.append, **options)
    for engine in engines:  # nobody left a block behind
        assert engine.scheduler.blocks.num_free == record.limits.num_blocks
    return record


def end(record: RequestRecord) -> int:
    assert record.finish_ns is not None
    return record.finish_ns


def in_flight(record: RunRecord) -> int:
    """The largest number of requests at one moment that were offered and had not ended."""
    marks = sorted(
        [(r.arrival_ns, 1) for r in record.requests] + [(r.finish_ns or r.arrival_ns, -1) for r in record.requests]
    )
    most = now = 0
    for _, change in marks:  # of one moment ends come first
        now += change
        most = max(most, now)
    return most


# Rows that wait for others ---------------------------------------------------------------------------------------


def test_a_row_is_offered_when_those_it_waits_for_have_ended_and_its_client_has_thought() -> None:
    load = rows(
        row("plan"),
        row("left", "plan", think_s=0.5),
        row("right", "plan", output=40),
        row("join", "left", "right", think_s=0.25, arrival_s=0.1),
        row("late", "plan", arrival_s=9),
    )
    plan, right, left, join, late = run(load).requests
    assert plan.arrival_ns == 0
    assert right.arrival_ns == end(plan)
    assert left.arrival_ns == end(plan) + S // 2
    assert join.arrival_ns == max(end(left), end(right)) + S // 4
    assert late.arrival_ns == 9 * S  # not before its own time
    assert {r.status for r in (plan, left, right, join, late)} == {"finished"}


def test_records_are_in_the_order_of_the_rows_whoever_is_faster() -> None:
    load = rows(
        row("a", output=300),
        row("a2", "a"),
        row("b", output=3),
        row("b2", "b"),
        row("b3", "b2"),
        row("c", arrival_s=0.5),
    )
    record = run(load)
    assert [r.request_id for r in record.requests] == [f"r{i:06d}" for i in range(6)]
    assert [o.request_id for o in record.offered] == [r.request_id for r in record.requests]
    assert [o.arrival_ns for o in record.offered] == [r.arrival_ns for r in record.requests]
    by_id = {r.row_id: record.requests[i] for i, r in enumerate(load.rows)}
    assert by_id["b3"].arrival_ns < by_id["a2"].arrival_ns


class Sheds(Policy):
    @hookimpl
    def arrival(self, request: Any) -> bool | Refusal:
        return Refusal("no") if request.num_prompt_tokens == 21 else True


def test_whoever_is_refused_or_aborted_has_ended_too() -> None:
    load = rows(
        row("refused", prompt=21, arrival_s=0.5),
        row("next", "refused", think_s=0.1),
        row("aborted", arrival_s=3, output=5000, abort_after_s=0.3),
        row("then", "aborted"),
        row("never", prompt=4000),  # it does not fit
        row("after never", "never"),
    )
    record = run(load, policy_object=Sheds(), num_blocks=330)
    found = {r.row_id: record.requests[i] for i, r in enumerate(load.rows)}
    assert {name: r.status for name, r in found.items()} == {
        "refused": "refused",
        "next": "finished",
        "aborted": "aborted",
        "then": "finished",
        "never": "finished",
        "after never": "finished",
    }
    assert found["next"].arrival_ns == round(0.6 * S)
    assert found["then"].arrival_ns == end(found["aborted"]) >= round(3.3 * S)


def test_a_run_that_is_stopped_has_what_was_never_offered_in_its_records() -> None:
    load = rows(row("a", output=400), row("b", "a"), row("c", "b"), row("d", arrival_s=90))
    record = run(load, max_seconds=1.0, num_blocks=400)
    assert [r.status for r in record.requests] == ["unfinished"] * 4
    assert [r.arrival_ns for r in record.requests][1:] == [record.duration_ns] * 2 + [90 * S]
    assert record.stopped == "max_seconds" and record.workload["arrivals"] == "chained"


def test_rows_that_do_not_fit_together() -> None:
    for values, words in (
        ([row("a"), row("a"), row("b", "a")], "another row has the id 'a' too"),
        ([row("alpha"), row("b", "alpah")], "waits for 'alpah', and no row has that id; did you mean 'alpha'"),
        ([row("a", "b"), row("b", "a"), row("c")], "nobody in that circle ever arrives"),
    ):
        with pytest.raises(WorkloadError, match=words):
            arranged(values)
    with pytest.raises(WorkloadError, match="in a circle"):
        run(Workload("w", (row("a", "b"), row("b", "a")), "test"))


def test_rows_that_wait_are_not_read_lazily(tmp_path: Any) -> None:
    path = tmp_path / "w.jsonl"
    lines = [
        {"arrival_s": 0, "num_prompt_tokens": 5, "num_output_tokens": 3, "id": "a"},
        {"num_prompt_tokens": 5, "num_output_tokens": 3, "after": "a"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert [r.after for r in load_workload(path).rows] == [(), ("a",)]
    with pytest.raises(WorkloadError, match="row 2 waits for others: such rows are not read lazily"):
        load_workload(path, lazy=True)
    assert len(load_workload("synthetic:n=5,turns=3", lazy=True)) == 15


# A closed loop ---------------------------------------------------------------------------------------------------


def test_a_closed_loop_offers_the_next_when_one_has_ended() -> None:
    load = load_workload("synthetic:rate=1000,n=12,prompt=20,output=uniform(5,60)").closed(3, think_s=0.125)
    record = run(load)
    assert [r.arrival_ns for r in record.requests][:3] == [0, 0, 0]
    ends = sorted(map(end, record.requests))
    assert [r.arrival_ns for r in record.requests[3:]] == [when + S // 8 for when in ends[:9]]
    assert in_flight(record) == 3 and record.workload["arrivals"] == "closed" and record.workload["concurrency"] == 3


def test_a_user_of_a_closed_loop_goes_through_a_session() -> None:
    load = load_workload("synthetic:n=5,turns=uniform(1,4),prompt=20,output=uniform(5,60),think=0.5").closed(2)
    record = run(load, num_blocks=500)
    assert in_flight(record) <= 2
    sessions: dict[str, list[RequestRecord]] = {}
    for one, request in zip(load.rows, record.requests, strict=True):
        sessions.setdefault(str(one.session_id), []).append(request)
    spans = sorted((turns[0].arrival_ns, end(turns[-1])) for turns in sessions.values())
    assert len(spans) == 5
    for begin, _ in spans:  # while one is thought about, no other begins
        assert sum(a <= begin < b for a, b in spans) <= 2
    for turns in sessions.values():
        for one, other in pairwise(turns):
            assert other.arrival_ns == end(one) + S // 2


def test_a_closed_loop_of_a_lazy_workload() -> None:
    spec = "synthetic:n=30,prompt=20,output=uniform(5,60)"
    lazy, held = (load_workload(spec, lazy=lazy).closed(4) for lazy in (True, False))
    assert run(lazy).dumps() == run(held).dumps()


def test_who_is_refused_makes_room_at_once() -> None:
    load = Workload("w", tuple(WorkloadRow(0, n, 3) for n in (21, 21, 21, 20)), "test", concurrency=1)
    record = run(load, policy_object=Sheds())
    assert [r.status for r in record.requests] == ["refused"] * 3 + ["finished"]
    assert [r.arrival_ns for r in record.requests] == [0] * 4


@pytest.mark.parametrize("values", [{"concurrency": 0}, {"concurrency": 1.5}, {"concurrency": True}])
def test_users_out_of_range(values: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError, match="concurrency must be a whole number of at least 1"):
        Workload("w", (row("a"),), "w", **values)


# Clients that give up ---------------------------------------------------------------------------------------------


def test_clients_give_up_after_some_seconds_or_tokens() -> None:
    load = rows(
        row("seconds", output=5000, abort_after_s=0.75),
        row("tokens", output=5000, abort_after_tokens=17),
        row("exact", output=17, abort_after_tokens=17),
        row("in time", output=5, abort_after_s=9.0),
        row("whole", output=200),
    )
    record = run(load, num_blocks=900)
    seconds, tokens, exact, in_time, whole = record.requests
    assert [r.status for r in record.requests] == ["aborted", "aborted", "finished", "finished", "finished"]
    assert [r.finish_reason for r in record.requests] == ["abort", "abort", "trace", "trace", "trace"]
    assert tokens.num_output_tokens == len(tokens.token_times_ns) == exact.num_output_tokens == 17
    assert end(tokens) == tokens.token_times_ns[-1]
    steps = [s.end_ns for s in record.steps]
    assert end(seconds) == min(when for when in steps if when >= round(0.75 * S))
    assert whole.num_output_tokens == 200 and in_time.num_output_tokens == 5


def test_who_gives_up_while_waiting_never_runs() -> None:
    load = rows(row("first", output=200), row("waits", abort_after_s=0.05, prompt=30), row("last", arrival_s=0.02))
    record = run(load, max_num_seqs=1, num_blocks=300)
    first, waits, last = record.requests
    assert (waits.status, waits.first_scheduled_ns, waits.num_output_tokens) == ("aborted", None, 0)
    assert first.status == last.status == "finished" and end(waits) < end(first)


# The same with leaps, in a fleet, and on disk -----------------------------------------------------------------------

lengths = st.integers(1, 60)


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


# In real time -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
def test_on_a_real_clock(overlap: bool) -> None:
    load = rows(
        row("a", prompt=4, output=5),
        row("b", "a", think_s=0.01, prompt=4, output=4),
        row("enough", prompt=4, output=60, abort_after_tokens=9),
        row("late", prompt=4, output=150, abort_after_s=0.05),
        row("z", "enough", prompt=4, output=2),
    )
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=64, overlap=overlap)
    engines: list[Engine] = []
    record = run_arm(config, load, backend=Machine(real=True), on_engine=engines.append)
    found = {r.row_id: record.requests[i] for i, r in enumerate(load.rows)}
    assert [found[name].status for name in ("a", "b", "enough", "late", "z")] == [
        "finished",
        "finished",
        "aborted",
        "aborted",
        "finished",
    ]
    assert found["enough"].num_output_tokens == len(found["enough"].token_times_ns) == 9
    assert found["b"].arrival_ns == end(found["a"]) + S // 100
    assert abs(found["z"].arrival_ns - end(found["enough"])) < S // 50  # two looks at one clock
    assert found["late"].num_output_tokens < 150 and end(found["late"]) >= S // 20
    assert engines[0].scheduler.blocks.num_free == record.limits.num_blocks
