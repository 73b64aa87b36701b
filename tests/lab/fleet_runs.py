"""Runs of fleets, on loads that share prefixes and in pools that are short."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from batchwright import EngineConfig
from batchwright.lab import Workload, WorkloadRow, load_workload, run_arm
from batchwright.lab.run_record import RunRecord

SHARED = "synthetic:rate=60,n=60,prompt=uniform(5,90),output=uniform(1,30),prefix=64,prefixes=4,clients=2,seed=7"
TIGHT = {"max_num_seqs": 6, "max_num_batched_tokens": 64, "num_blocks": 40, "block_size": 8}
ROUTERS = ("round_robin", "least_outstanding", "random", "prefix_aware")


def config(**values: Any) -> EngineConfig:
    return EngineConfig(**{"policy": "vllm_v1", **TIGHT, **values})


def run(workload: str | Workload = SHARED, **values: Any) -> RunRecord:
    options = {
        name: values.pop(name) for name in ("leap", "max_steps", "max_seconds", "plugins", "seed") if name in values
    }
    load = load_workload(workload) if isinstance(workload, str) else workload
    return run_arm(config(**values), load, declared="exact", **options)


def workloads() -> Iterator[Workload]:
    for seed in range(6):
        rng = random.Random(seed)
        when, rows = 0, []
        for _ in range(rng.randint(10, 40)):
            when += rng.choice([0, 0, 1, 3_000_000, 200_000_000])
            ids = tuple(rng.randrange(3) for _ in range(rng.randrange(3)))
            length = rng.choice([3, 40, 90, 400])  # the last never fits
            rows.append(WorkloadRow(when, length, rng.randint(1, 40), prefix_ids=ids, prefix_block_size=16))
        yield Workload(f"random {seed}", tuple(rows), "test")
