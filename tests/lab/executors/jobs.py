"""Runs for executors, and policies that go wrong in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batchwright import EngineConfig
from batchwright.lab import load_workload
from batchwright.lab.executors import Task

SPEC = "synthetic:rate=50,n=20,prompt=uniform(20,200),output=uniform(2,12),seed=3"
LONG = "synthetic:rate=40,n=20000,prompt=200,output=200"
BAD = """
import os, time
from pathlib import Path
from batchwright import Policy, hookimpl
from batchwright_policies.vllm_v1 import VllmV1


class Own(Exception):
    pass


class Rules(VllmV1):
    @hookimpl
    def chunking(self, step, request):
        return -1


class Raises(VllmV1):
    @hookimpl
    def admission(self, step):
        raise Own("of a class that only this file knows")


class Dies(VllmV1):
    @hookimpl
    def step_started(self, step):
        os._exit(3)


class Tells(VllmV1):
    stationary = False

    @hookimpl
    def step_started(self, step):
        if step.index == 50:
            Path(os.environ["BATCHWRIGHT_TEST_MARKERS"], str(os.getpid())).touch()
"""


def tasks(*policies: str, seeds: Sequence[int] = (0,), spec: str = SPEC, **options: Any) -> list[Task]:
    load = load_workload(spec)
    return [Task(p.rpartition(":")[2], EngineConfig(policy=p), load, seed, options) for p in policies for seed in seeds]


def arms() -> dict[str, EngineConfig]:
    return {name: EngineConfig(**{"policy": name, **values}) for name, values in ARMS.items()}


ARMS = {"vllm_v1": {}, "stall_free": {}, "fleet": {"policy": "vllm_v1", "replicas": 2, "router": "prefix_aware"}}
