"""When requests are offered: at their times, when others have ended, or in a closed loop; and clients that give up."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

from batchwright import EngineConfig, Policy, Refusal, hookimpl
from batchwright.engine import Engine
from batchwright.errors import WorkloadError
from batchwright.lab import RequestRecord, Workload, WorkloadRow, load_workload, run_arm
from batchwright.lab.links import arranged
from lab.machine import Machine
from lab.waiting import S, end, in_flight, row, rows, run

# Rows that wait for others ----------------------------------------------------------------------------------------


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


# A closed loop ----------------------------------------------------------------------------------------------------


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
