"""Runs in the Trace Event Format, for Perfetto's viewer (https://ui.perfetto.dev) and Chrome's ``about:tracing``.

The format: "Trace Event Format" (Google, "JSON Object Format"). A process for each replica of each run: a track of its
steps, counters of its queue, residents, KV blocks and tokens a step, an instant for each eviction, and for each
request a nestable async slice with its phases in it: waiting, prefill, decode, preempted, recompute. Times are
microseconds from the start of the run, to the nanosecond. Written event by event: a run of any size takes no memory
beside its record.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from batchwright.lab.phases import phases
from batchwright.lab.records import RequestRecord, StepRecord
from batchwright.lab.run_record import RunRecord
from batchwright.lab.samples import end_of

Event = dict[str, Any]

STEPS = 1
"""The thread of each process that has its steps."""


def write_trace(path: str | Path, runs: Sequence[RunRecord]) -> int:
    """Write runs side by side; compressed where the name ends in ``.gz``.

    Args:
        path: of the file.
        runs: with a process for each replica of each.

    Returns:
        The number of events.

    Raises:
        OSError: the file cannot be written.
    """
    num = 0
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    with _opened(Path(path)) as file:
        file.write('{"displayTimeUnit":"ms","otherData":')
        file.write(encode({"writer": "batchwright", "runs": [_about(run) for run in runs]}))
        file.write(',"traceEvents":[')
        for event in trace_events(runs):
            file.write(",\n" if num else "\n")
            file.write(encode(event))
            num += 1
        file.write("\n]}\n")
    return num


def trace_events(runs: Sequence[RunRecord]) -> Iterator[Event]:
    """The events of all runs, process by process; within a track in order of time."""
    first = 1  # process ids
    for run in runs:
        names = [_name(run, replica, len(runs)) for replica in range(run.num_replicas)]
        for replica, name in enumerate(names):
            yield from _described(first + replica, name)
        yield from _steps(run, first)
        for place, record in enumerate(run.requests):
            yield from _request(record, first + (record.replica or 0), f"{first}-{place}", end_of(run))
        first += run.num_replicas


def _described(pid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}
    yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": STEPS, "args": {"name": "steps"}}


def _name(run: RunRecord, replica: int, num_runs: int) -> str:
    seed = f", seed {run.seed}" if num_runs > 1 else ""
    return f"{run.arm}{seed}" + (f", replica {replica}" if run.num_replicas > 1 else "")


def _about(run: RunRecord) -> dict[str, Any]:
    return {"arm": run.arm, "seed": run.seed, "policy": run.policy, "backend": run.backend, "workload": run.workload}


def _steps(run: RunRecord, first: int) -> Iterator[Event]:
    """Slices and counters of all steps."""
    blocks = run.limits.num_blocks
    for step, batch in zip(run.steps, run.batches, strict=True):
        pid, begin, end = first + step.replica, step.start_ns / 1e3, step.end_ns / 1e3
        yield {
            "ph": "X",
            "name": _kind(step),
            "cat": "step",
            "pid": pid,
            "tid": STEPS,
            "ts": begin,
            "dur": (step.end_ns - step.start_ns) / 1e3,
            "args": {
                "index": step.index,
                "batch_size": step.batch_size,
                "num_prefill_tokens": step.num_prefill_tokens,
                "num_decodes": step.num_decodes,
                "num_preempted": step.num_preempted,
                "batch": f"{batch:016x}",
            },
        }
        tokens = {"prefill": step.num_prefill_tokens, "decode": step.num_decodes}
        yield _counter(pid, "tokens a step", begin, tokens)
        yield _counter(pid, "requests", end, {"waiting": step.num_waiting, "running": step.num_running})
        yield _counter(pid, "KV blocks", end, {"used": blocks - step.free_blocks, "free": step.free_blocks})


def _counter(pid: int, name: str, when: float, values: dict[str, int]) -> Event:
    return {"ph": "C", "name": name, "pid": pid, "ts": when, "args": values}


def _kind(step: StepRecord) -> str:
    if step.num_prefill_tokens and step.num_decodes:
        return "mixed"
    if step.num_prefill_tokens:
        return "prefill"
    return "decode" if step.num_decodes else "evict"


def _request(record: RequestRecord, pid: int, identity: str, run_end: int) -> Iterator[Event]:
    """A slice with its phases in it, and an instant for each eviction."""
    if record.status == "refused":
        args = {"request_id": record.request_id, "error": record.error}
        yield {
            "ph": "i",
            "s": "p",
            "name": "refused",
            "cat": "request",
            "pid": pid,
            "tid": STEPS,
            "ts": record.arrival_ns / 1e3,
            "args": args,
        }
        return
    end = max(record.arrival_ns, run_end if record.finish_ns is None else record.finish_ns)

    def edge(kind: str, name: str, when: int, args: dict[str, Any] | None = None) -> Event:
        found = {"ph": kind, "cat": "request", "name": name, "id": identity, "pid": pid, "tid": STEPS, "ts": when / 1e3}
        return {**found, "args": args} if args else found

    yield edge("b", record.request_id, record.arrival_ns, _args(record))
    for name, begin, until in phases(record, end):
        yield edge("b", name, begin)
        yield edge("e", name, until)
    yield edge("e", record.request_id, end)
    for when in record.preempted_ns:
        yield {
            "ph": "i",
            "s": "t",
            "name": "preempted",
            "cat": "request",
            "pid": pid,
            "tid": STEPS,
            "ts": when / 1e3,
            "args": {"request_id": record.request_id},
        }


def _args(record: RequestRecord) -> dict[str, Any]:
    values = {
        "status": record.status,
        "client_id": record.client_id,
        "priority": record.priority,
        "num_prompt_tokens": record.num_prompt_tokens,
        "num_output_tokens": record.num_output_tokens,
        "num_cached_tokens": record.num_cached_tokens,
        "num_recomputed_tokens": record.num_recomputed_tokens,
        "num_preemptions": record.num_preemptions,
        "slo_class": record.slo_class,
        "session_id": record.session_id,
        "program_id": record.program_id,
        "error": record.error,
    }
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    if path.suffix != ".gz":
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    # Without name and time in it, so that the same runs give the same bytes.
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as file,
    ):
        yield file
