"""Runs against a server, and what is read of them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="endpoints need aiohttp: pip install 'batchwright[endpoint]'")

from batchwright.config import EngineConfig
from batchwright.lab import RunRecord, Workload, WorkloadRow, load_workload, run_arm
from endpoint_server import OpenAIServer

LOAD = "synthetic:rate=200,n=10,prompt=uniform(20,60),output=uniform(2,9),seed=3"


def run(
    server: OpenAIServer, load: str | Workload = LOAD, *, values: dict[str, Any] | None = None, **options: Any
) -> RunRecord:
    config = EngineConfig(backend=server.url, backend_options=values or {})
    workload = load_workload(load) if isinstance(load, str) else load
    return run_arm(config, workload, arm="server", **options)


def rows(*given: dict[str, Any]) -> Workload:
    made = tuple(
        WorkloadRow(**{"arrival_ns": 0, "num_prompt_tokens": None, "num_output_tokens": None, **one}) for one in given
    )
    return Workload("rows", made, "rows")


def statuses(found: RunRecord) -> list[str]:
    return [r.status for r in found.requests]


def notes(found: RunRecord) -> str:
    return "\n".join(found.notes)
