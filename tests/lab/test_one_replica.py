"""The records of a fleet of one replica are those of an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchwright.lab.run_record import RunRecord
from lab.fleet_runs import ROUTERS, run, workloads


def plain(record: RunRecord) -> dict[str, Any]:
    """As JSON, without what says that there was a fleet."""
    value = record.to_json()
    value["settings"] = {k: v for k, v in value["settings"].items() if k not in ("router", "replicas")}
    return value


@pytest.mark.parametrize("policy", ["vllm_v1", "prefill_first", "stall_free:chunk_size=32", "lpm"])
def test_one_replica_equals_no_fleet(policy: str) -> None:
    preempted = refused = 0
    for place, workload in enumerate(workloads()):
        alone = run(workload, policy=policy)
        fleet = run(workload, policy=policy, router=ROUTERS[place % 4])
        assert plain(fleet) == plain(alone)
        assert alone.settings["router"] is None and fleet.settings["router"]["use"] == ROUTERS[place % 4]
        preempted += sum(r.num_preemptions for r in alone.requests)
        refused += sum(r.status == "refused" for r in alone.requests)
    assert preempted and refused


@pytest.mark.parametrize("stop", [{"max_steps": 17}, {"max_seconds": 0.03}, {"max_seconds": 100.0}, {"max_steps": 1}])
def test_one_replica_that_is_stopped_equals_no_fleet(stop: dict[str, Any]) -> None:
    for workload in workloads():
        assert plain(run(workload, router="random", **stop)) == plain(run(workload, **stop))


def test_one_replica_with_a_predictor_that_takes_time_equals_no_fleet() -> None:
    """Its time is charged to the clock when a request is taken."""
    predict = {"use": "oracle", "cost_s": 0.002}
    for workload in workloads():
        assert plain(run(workload, router="random", predict=predict)) == plain(run(workload, predict=predict))


def test_one_replica_whose_policy_sheds_load_equals_no_fleet(tmp_path: Path) -> None:
    file = tmp_path / "sheds.py"
    file.write_text(
        "from batchwright import Refusal, hookimpl\n"
        "from batchwright_policies.vllm_v1 import VllmV1\n\n"
        "class Sheds(VllmV1):\n"
        "    @hookimpl\n"
        "    def arrival(self, request):\n"
        "        return Refusal('odd') if request.num_prompt_tokens % 2 else True\n"
    )
    found = [run(policy=f"{file}:Sheds", **router) for router in ({}, {"router": "round_robin"})]
    assert plain(found[0]) == plain(found[1])
    assert 10 < sum(r.status == "refused" for r in found[0].requests) < 50
