"""Traces for Perfetto: every step of the run is in them, and they keep to the Trace Event Format."""

from __future__ import annotations

import gzip
import json
from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from batchwright.config import EngineConfig
from batchwright.lab import RunRecord, load_workload, run_arm
from batchwright.lab.perfetto import trace_events, write_trace
from batchwright.lab.phases import phases
from lab.hand import MS, request, run

Event = dict[str, Any]
SPEC = "synthetic:rate=40,n=60,prompt=uniform(50,400),output=uniform(10,120),seed=3"

# What the format says of each phase ("Trace Event Format", section "Event Descriptions"): fields it must have.
FIELDS = {
    "X": {"name": str, "pid": int, "tid": int, "ts": float, "dur": float},  # complete events
    "C": {"name": str, "pid": int, "ts": float, "args": dict},  # counters
    "M": {"name": str, "pid": int, "args": dict},  # metadata
    "i": {"name": str, "pid": int, "tid": int, "ts": float, "s": str},  # instants
    "b": {"name": str, "cat": str, "id": str, "pid": int, "ts": float},  # nestable async events
    "e": {"name": str, "cat": str, "id": str, "pid": int, "ts": float},
}
METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name"}


def check_format(trace: Any) -> list[Event]:
    """The events of a trace in the JSON Object Format, each as the format wants it."""
    assert isinstance(trace, dict)
    assert trace["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = trace["traceEvents"]
    open_slices: dict[tuple[int, str, str], list[Event]] = {}
    ended: dict[tuple[int, str, str], float] = {}
    for event in events:
        for name, kind in FIELDS[event["ph"]].items():
            value = event[name]
            assert isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool), event
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0, event
        if event["ph"] == "M":
            assert set(event["args"]) == {METADATA[event["name"]]}
        elif event["ph"] == "C":
            assert event["args"] and all(isinstance(v, (int, float)) for v in event["args"].values()), event
        elif event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
        elif event["ph"] in "be":
            # Events of one category and id make one tree: each end closes what was opened last, in order of time.
            key = (event["pid"], event["cat"], event["id"])
            assert event["ts"] >= ended.get(key, 0)
            ended[key] = event["ts"]
            stack = open_slices.setdefault(key, [])
            if event["ph"] == "b":
                stack.append(event)
            else:
                assert stack.pop()["name"] == event["name"]
    assert not any(open_slices.values())
    named = {event["pid"] for event in events if event.get("name") == "process_name"}
    assert {event["pid"] for event in events} <= named
    return events


def simulated(policy: str = "vllm_v1", **values: Any) -> RunRecord:
    settings = {"num_blocks": 150, "max_num_batched_tokens": 512, "max_num_seqs": 16, **values}
    return run_arm(EngineConfig.parse({"policy": policy, **settings}), load_workload(SPEC), arm=policy)


def written(path: Path, runs: Sequence[RunRecord]) -> list[Event]:
    num = write_trace(path, runs)
    events = check_format(json.loads(path.read_text(encoding="utf-8")))
    assert len(events) == num
    return events


def of(events: Sequence[Event], phase: str, name: str | None = None) -> list[Event]:
    return [event for event in events if event["ph"] == phase and name in (None, event["name"])]


def test_every_step_and_request_of_a_run_is_in_its_trace(tmp_path: Path) -> None:
    record = simulated()
    assert sum(r.num_preemptions for r in record.requests) > 5
    events = written(tmp_path / "t.json", [record])
    slices = of(events, "X")
    assert [(round(e["ts"] * 1e3), round(e["dur"] * 1e3)) for e in slices] == [
        (s.start_ns, s.end_ns - s.start_ns) for s in record.steps
    ]
    assert [e["args"]["batch_size"] for e in slices] == [s.batch_size for s in record.steps]
    assert [int(e["args"]["batch"], 16) for e in slices] == list(record.batches)
    counted = of(events, "C", "requests")
    assert [(e["args"]["waiting"], e["args"]["running"]) for e in counted] == [
        (s.num_waiting, s.num_running) for s in record.steps
    ]
    assert [e["args"]["used"] for e in of(events, "C", "KV blocks")] == [150 - s.free_blocks for s in record.steps]
    tokens = [sum(e["args"].values()) for e in of(events, "C", "tokens a step")]
    assert tokens == [s.num_prefill_tokens + s.num_decodes for s in record.steps]
    assert len(of(events, "i", "preempted")) == sum(r.num_preemptions for r in record.requests)
    whole = {e["name"]: e for e in of(events, "b") if e["name"].startswith("r0")}
    assert set(whole) == {r.request_id for r in record.requests}
    assert {e["name"] for e in of(events, "b")} >= {"waiting", "prefill", "decode", "preempted", "recompute"}
    for r in record.requests:
        assert round(whole[r.request_id]["ts"] * 1e3) == r.arrival_ns
        assert whole[r.request_id]["args"]["num_output_tokens"] == r.num_output_tokens


def test_phases_follow_each_other_from_arrival_to_end() -> None:
    for record in simulated().requests:
        assert record.finish_ns is not None
        found = phases(record, record.finish_ns)
        assert found[0][1] == record.arrival_ns
        assert found[-1][2] == record.finish_ns
        assert all(one[2] == other[1] for one, other in pairwise(found))
        assert sum(name == "preempted" for name, _, _ in found) <= record.num_preemptions


def test_phases_by_hand() -> None:
    one = request(0, arrival_ms=1, times_ms=[10, 12, 40], first_scheduled_ns=5 * MS, num_preemptions=1)
    one.preempted_ns, one.resumed_ns = array("q", [20 * MS]), array("q", [30 * MS])
    assert [(name, a / MS, b / MS) for name, a, b in phases(one, 40 * MS)] == [
        ("waiting", 1, 5),
        ("prefill", 5, 10),
        ("decode", 10, 20),
        ("preempted", 20, 30),
        ("recompute", 30, 40),
    ]
    early = request(0, times_ms=[40], first_scheduled_ns=5 * MS, num_preemptions=1)
    early.preempted_ns, early.resumed_ns = array("q", [20 * MS]), array("q", [30 * MS])
    assert [name for name, _, _ in phases(early, 40 * MS)] == ["waiting", "prefill", "preempted", "prefill"]
    elsewhere = request(0, times_ms=[10, 20], first_scheduled_ns=None)
    assert phases(elsewhere, 20 * MS) == [("waiting", 0, 10 * MS), ("decode", 10 * MS, 20 * MS)]
    assert phases(request(0, arrival_ms=3), 9 * MS) == [("waiting", 3 * MS, 9 * MS)]


def test_what_did_not_finish_is_in_the_trace_too(tmp_path: Path) -> None:
    lost = request(2, times_ms=[5], status="unfinished", finish_ns=None, num_preemptions=1, first_scheduled_ns=0)
    lost.preempted_ns = array("q", [6 * MS])
    requests = [request(0, status="refused", error="no room"), request(1, arrival_ms=4), lost]
    events = written(tmp_path / "t.json", [run(requests, duration_ns=9 * MS)])
    assert of(events, "i", "refused")[0]["args"]["error"] == "no room"
    assert Counter(e["name"] for e in of(events, "b")) == Counter(
        {"r000001": 1, "r000002": 1, "waiting": 1, "prefill": 1, "decode": 1, "preempted": 1}
    )
    assert max(e["ts"] for e in of(events, "e")) == 9000


def test_arms_and_replicas_are_processes_of_their_own(tmp_path: Path) -> None:
    fleet = simulated(replicas=2, num_blocks=400)
    events = written(tmp_path / "t.json", [simulated("stall_free"), fleet])
    names = {e["pid"]: e["args"]["name"] for e in of(events, "M", "process_name")}
    assert list(names.values()) == ["stall_free, seed 0", "vllm_v1, seed 0, replica 0", "vllm_v1, seed 0, replica 1"]
    steps = Counter(e["pid"] for e in of(events, "X"))
    counted = Counter(s.replica for s in fleet.steps)
    assert [steps[pid] for pid in list(names)[1:]] == [counted[0], counted[1]]
    assert all(steps.values())


def test_compressed_it_is_the_same_and_the_same_bytes_each_time(tmp_path: Path, monkeypatch: Any) -> None:
    hours = iter(range(0, 10**6, 3600))
    monkeypatch.setattr("time.time", lambda: next(hours))  # gzip would put it into the file
    record = simulated()
    for name in ("a.json", "b.json", "a.json.gz", "b.json.gz"):
        write_trace(tmp_path / name, [record])
    plain = (tmp_path / "a.json").read_bytes()
    assert plain == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == plain
    assert (tmp_path / "a.json.gz").stat().st_size < len(plain) / 4


def test_events_are_made_one_by_one() -> None:
    events = trace_events([simulated()])
    assert next(events)["ph"] == "M"
    assert sum(1 for _ in events) > 100


def test_a_checker_of_the_format_finds_what_breaks_it() -> None:
    good = list(trace_events([run([request(0, times_ms=[1, 2])], duration_ns=2 * MS)]))
    check_format({"displayTimeUnit": "ms", "traceEvents": good})
    for spoil in (
        lambda events: events.pop(),  # a slice without its end
        lambda events: events[-1].pop("ts"),
        lambda events: events[-2].update(ts=-1.0),
        lambda events: events[-1].update(pid=99),
    ):
        events = [dict(event) for event in good]
        spoil(events)
        with pytest.raises((AssertionError, KeyError, IndexError)):
            check_format({"displayTimeUnit": "ms", "traceEvents": events})
