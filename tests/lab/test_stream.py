"""Records on disk as they come: the same as in memory, and no more memory than for those in flight."""

from __future__ import annotations

import gc
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from batchwright import EngineConfig, Request, hookimpl
from batchwright.errors import WorkloadError
from batchwright.lab import RunRecord, load_workload, read_run, run_arm, stream_arm
from batchwright.lab.lazy_rows import LazyRows
from batchwright.lab.step_records import StepRecords

BACKEND = "sim:llama-3.1-8b@h100"
WORKLOAD = "synthetic:rate=30,n=60,prompt=uniform(10,900),output=uniform(1,90),clients=3"


def config(**values: Any) -> EngineConfig:
    return EngineConfig.parse({"backend": BACKEND, "policy": "vllm_v1", **values})


@pytest.mark.parametrize("leap", [True, False])
@pytest.mark.parametrize("limits", [{}, {"max_steps": 90}])
def test_a_streamed_run_reads_as_the_same_record(tmp_path: Path, leap: bool, limits: dict[str, Any]) -> None:
    # A pool that some do not fit into, and in which others evict each other.
    settings = config(num_blocks=60, detectors={"thrash_share": 0.01, "thrash_steps": 5})
    workload = load_workload(WORKLOAD)
    options: dict[str, Any] = {"declared": 90, "leap": leap, **limits}
    whole = run_arm(settings, workload, **options)
    streamed = stream_arm(settings, workload, tmp_path / "run.jsonl", **options)
    assert {r.status for r in whole.requests} >= {"finished", "refused"}
    assert whole.events or limits
    assert read_run(streamed.path) == whole
    assert read_run(streamed.path).dumps() == whole.dumps()
    assert (streamed.num_steps, streamed.num_leapt) == (len(whole.steps), whole.num_leapt)
    assert (streamed.duration_ns, streamed.stopped) == (whole.duration_ns, whole.stopped)
    assert sum(streamed.num_requests.values()) == len(whole.requests)
    assert streamed.num_requests["finished"] == sum(r.status == "finished" for r in whole.requests)


class Counts:
    """How many requests are in memory, now and then."""

    name = "counts"

    def __init__(self) -> None:
        self.num_arrived = 0
        self.found: list[int] = []

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        self.num_arrived += 1
        if self.num_arrived % 500 == 1:
            gc.collect()
            # Not isinstance: it asks objects for their class, and those of other tests may raise.
            self.found.append(sum(type(thing) is Request for thing in gc.get_objects()))


def test_requests_that_ended_are_forgotten(tmp_path: Path) -> None:
    counts = Counts()
    workload = load_workload("synthetic:rate=40,n=3000,prompt=8,output=4", lazy=True)
    run = stream_arm(config(), workload, tmp_path / "run.jsonl", plugins=[counts])
    assert run.num_requests == {"finished": 3000}
    assert len(counts.found) == 6 and max(counts.found) < counts.found[0] + 60


def test_a_file_is_read_lazily_and_alike(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [{"arrival_s": i / 10, "num_prompt_tokens": 5 + i, "num_output_tokens": 3} for i in range(20)]
    path.write_text("\n".join(map(json.dumps, lines)))
    options: dict[str, Any] = {"speedup": 2.0, "limit": 15}
    whole, lazy = (load_workload(path, lazy=lazy, **options) for lazy in (False, True))
    assert isinstance(lazy.rows, LazyRows) and tuple(lazy.rows) == whole.rows
    assert (lazy.hash, lazy.span_s, len(lazy)) == (whole.hash, whole.span_s, 15)
    assert run_arm(config(), lazy) == run_arm(config(), whole)
    drawn, held = (load_workload(WORKLOAD, lazy=lazy) for lazy in (True, False))
    assert tuple(drawn.rows) == held.rows and drawn.hash == held.hash and len(drawn) == 60


def test_a_lazy_file_must_be_in_order_of_arrival(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [{"arrival_s": s, "num_prompt_tokens": 5, "num_output_tokens": 3} for s in (0, 2, 1)]
    path.write_text("\n".join(map(json.dumps, lines)))
    assert len(load_workload(path)) == 3
    with pytest.raises(WorkloadError, match=r"row 3 arrives at 1\.0 s, before the row ahead of it"):
        load_workload(path, lazy=True)


def test_files_that_are_no_streamed_run(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(WorkloadError, match="cannot read"):
        read_run(path)
    with pytest.raises(WorkloadError, match="cannot write"):
        stream_arm(config(), load_workload(WORKLOAD), tmp_path / "no" / "run.jsonl")
    run = stream_arm(config(), load_workload(WORKLOAD), path)
    lines = path.read_text().splitlines()
    assert run.num_steps
    for broken, message in (
        (lines[:-1], "has no end"),
        ([], "has no end"),
        ([*lines[:3], "{", *lines[3:]], "line 4: not a line"),
        ([*lines[:3], '{"other": 1}', *lines[3:]], "line 4: not a line"),
        (['{"record_version": 99}'], "record_version 99"),
        (["[]"], "record_version None"),
    ):
        path.write_text("\n".join(broken))
        with pytest.raises(WorkloadError, match=message):
            read_run(path)


def test_a_file_of_before_a_field_was_added_is_read_with_its_default(tmp_path: Path) -> None:
    path = stream_arm(config(), load_workload(WORKLOAD), tmp_path / "run.jsonl").path
    whole = read_run(path)
    head, *lines = map(json.loads, path.read_text().splitlines())
    assert head.pop("request_fields")[-2:] == ["session_id", "program_id"]
    for line in lines:
        if "request" in line:
            del line["request"][-2:]
    path.write_text("\n".join(map(json.dumps, [head, *lines])))
    assert read_run(path) == whole and whole.requests[0].session_id is None


def test_step_records_are_a_sequence() -> None:
    steps = run_arm(config(), load_workload("synthetic:rate=3,n=3,prompt=5,output=9")).steps
    assert isinstance(steps, StepRecords)
    records = list(steps)
    assert [steps[i] for i in range(len(steps))] == records and steps[-1] == records[-1] and steps[2:4] == records[2:4]
    assert (
        pickle.loads(pickle.dumps(steps)) == steps == records
        and StepRecords(records) == steps
        and steps != records[1:]
        and steps != 3
    )
    assert steps.column("num_decodes").tolist() == [s.num_decodes for s in records]
    assert repr(steps) == f"<StepRecords: {len(records)} steps>"
    for place in (len(records), -len(records) - 1):
        with pytest.raises(IndexError):
            steps[place]


def test_the_seed_is_kept_and_files_from_before_it_are_read(tmp_path: Path) -> None:
    run = stream_arm(config(), load_workload("synthetic:n=2,prompt=5,output=3"), tmp_path / "run.jsonl", seed=7)
    read = read_run(run.path)
    assert read.seed == 7 and RunRecord.from_json(json.loads(read.dumps())).seed == 7
    head, *rest = run.path.read_text().splitlines()
    before = {name: value for name, value in json.loads(head).items() if name != "seed"}
    run.path.write_text("\n".join([json.dumps(before), *rest]))
    assert read_run(run.path).seed == 0
    assert RunRecord.from_json({name: v for name, v in json.loads(read.dumps()).items() if name != "seed"}).seed == 0
