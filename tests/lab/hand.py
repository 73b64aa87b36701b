"""Records made by hand."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from batchwright.lab.records import OfferedRecord, RequestRecord, StepRecord
from batchwright.lab.run_record import RunLimits, RunRecord

MS = 1_000_000
S = 1_000_000_000


def request(index: int = 0, *, arrival_ms: float = 0, times_ms: Sequence[float] = (), **values: Any) -> RequestRecord:
    """A finished request with tokens at these times, unless ``values`` say otherwise."""
    times = array("q", [round(t * MS) for t in times_ms])
    fields: dict[str, Any] = {
        "request_id": f"r{index:06d}",
        "client_id": None,
        "priority": 0,
        "arrival_ns": round(arrival_ms * MS),
        "first_scheduled_ns": round(arrival_ms * MS) if times else None,
        "token_times_ns": times,
        "finish_ns": times[-1] if times else None,
        "num_prompt_tokens": 10,
        "num_output_tokens": len(times),
        "num_cached_tokens": 0,
        "num_recomputed_tokens": 0,
        "num_preemptions": 0,
        "slo": None,
        "status": "finished" if times else "unfinished",
        "finish_reason": "trace" if times else None,
        "error": None,
    }
    return RequestRecord(**(fields | values))


def offered(record: RequestRecord, **values: Any) -> OfferedRecord:
    """What was asked for a record."""
    fields: dict[str, Any] = {
        "request_id": record.request_id,
        "arrival_ns": record.arrival_ns,
        "prompt_hash": "0123456789abcdef",
        "num_output_tokens": max(1, record.num_output_tokens),
        "max_tokens": 100,
    }
    return OfferedRecord(**(fields | values))


def step(index: int, start_ms: float, end_ms: float, **values: int) -> StepRecord:
    """A step of one decode, unless ``values`` say otherwise."""
    fields = {
        "num_prefill_tokens": 0,
        "num_decodes": 1,
        "num_preempted": 0,
        "num_waiting": 0,
        "num_running": 1,
        "free_blocks": 1000,
    }
    return StepRecord(index, round(start_ms * MS), round(end_ms * MS), **(fields | values))


def run(requests: Sequence[RequestRecord], steps: Sequence[StepRecord] = (), **values: Any) -> RunRecord:
    """A run of these requests."""
    last = max((t for r in requests for t in r.token_times_ns), default=S)
    fields: dict[str, Any] = {
        "arm": "a",
        "policy": "some_policy",
        "backend": "sim:some@gpu",
        "settings": {"policy": {"use": "some_policy"}, "max_num_seqs": 8},
        "limits": RunLimits(8, 2048, None, 4096, 1024, 16),
        "workload": {"name": "hand", "source": "hand", "hash": "00", "speedup": 1.0, "num_requests": len(requests)},
        "declared_max_tokens": "exact",
        "virtual_time": True,
        "offered": [offered(r) for r in requests],
        "requests": list(requests),
        "steps": list(steps),
        "batches": array("Q", range(len(steps))),
        "duration_ns": last,
    }
    return RunRecord(**(fields | values))
