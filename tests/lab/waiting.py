"""Rows that wait for others, and runs of them."""

from __future__ import annotations

from typing import Any

from batchwright import EngineConfig
from batchwright.engine import Engine
from batchwright.lab import RequestRecord, RunRecord, Workload, WorkloadRow, run_arm
from batchwright.lab.links import arranged
from batchwright.plugins import load_plugins

S = 1_000_000_000
SIM = "sim:llama-3.1-8b@h100"
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
