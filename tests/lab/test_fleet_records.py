"""Records of fleets: whole, deterministic, and read back equal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from batchwright import ConfigError, EngineConfig, Policy, PolicyError, Refusal, hookimpl
from batchwright.lab import Workload, WorkloadRow, ab, format_report, load_workload, run_arm
from batchwright.lab.riding import key_of
from batchwright.lab.run_record import RunRecord
from fake_backend import FakeBackend
from lab.fleet_runs import ROUTERS, SHARED, config, run, workloads


@pytest.mark.parametrize("router", ROUTERS)
def test_no_request_is_lost_and_each_is_routed_once(router: str) -> None:
    for workload in workloads():
        record = run(workload, replicas=3, router=router)
        assert [r.request_id for r in record.requests] == [o.request_id for o in record.offered]
        assert len({r.request_id for r in record.requests}) == len(workload)
        assert {r.status for r in record.requests} <= {"finished", "refused"}
        for request, row in zip(record.requests, workload.rows, strict=True):
            assert request.replica in (0, 1, 2)
            assert (request.arrival_ns, request.num_prompt_tokens) == (row.arrival_ns, row.num_prompt_tokens)
            if request.status == "finished":
                assert request.num_output_tokens == len(request.token_times_ns) == row.num_output_tokens
        # What was offered is the same for every router.
        assert record.offered == run(workload).offered


def test_steps_of_replicas_are_whole_and_in_the_order_of_their_ends() -> None:
    record = run(replicas=3, router="least_outstanding")
    steps = list(record.steps)
    assert [(s.end_ns, s.replica) for s in steps] == sorted((s.end_ns, s.replica) for s in steps)
    assert len(record.batches) == len(steps)
    for replica in range(3):
        own = [s for s in steps if s.replica == replica]
        assert [s.index for s in own] == list(range(len(own))) and len(own) > 10
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(own))
        tokens = sum(r.num_output_tokens for r in record.requests if r.replica == replica)
        prompts = sum(
            r.num_prompt_tokens - r.num_cached_tokens + r.num_recomputed_tokens
            for r in record.requests
            if r.replica == replica
        )
        assert tokens + prompts >= sum(s.num_prefill_tokens + s.num_decodes for s in own) > tokens
        ends = {s.end_ns for s in own}
        assert all(set(r.token_times_ns) <= ends for r in record.requests if r.replica == replica)
    assert record.duration_ns == steps[-1].end_ns


def test_fingerprints_are_of_places_in_the_whole_run() -> None:
    """So the same batch has the same fingerprint wherever its requests were routed."""
    load = Workload("three", tuple(WorkloadRow(0, 8 + i, 4) for i in range(3)), "test")
    record = run(load, replicas=2)
    decodes = {sum(key_of(row, 1) for row in rows) % 2**64 for rows in ([0, 2], [1])}
    assert decodes <= set(record.batches)
    whole = run(load)
    assert sum(key_of(row, 1) for row in (0, 1, 2)) % 2**64 in whole.batches


def test_the_leap_changes_no_record(tmp_path: Path) -> None:
    """Arrivals fall into leaps: what a router sees then is what single steps would show, down to a block."""
    file = tmp_path / "counts.py"
    file.write_text(
        "from batchwright import Router, hookimpl\n\n"
        "class Counts(Router):\n"
        "    @hookimpl\n"
        "    def routing(self, fleet):\n"
        "        return sum(r.free_blocks + r.outstanding_tokens for r in fleet) % len(fleet)\n"
    )
    leapt = 0
    spec = "synthetic:rate=25,n=30,prompt=60,output=uniform(40,120),prefix=32,prefixes=3,seed=2"
    for router in ("least_outstanding", "prefix_aware", f"{file}:Counts"):
        with_leap = run(spec, replicas=3, router=router, num_blocks=400)
        without = run(spec, replicas=3, router=router, num_blocks=400, leap=False)
        assert with_leap.dumps() == without.dumps()
        assert without.num_leapt == 0
        leapt += with_leap.num_leapt
    assert leapt > 500


CODE = """
import sys
from batchwright import EngineConfig
from batchwright.lab import ab, load_workload
arms = {name: EngineConfig(policy="vllm_v1", replicas=3, router=name, num_blocks=60) for name in sys.argv[2:]}
sys.stdout.write(__import__("json").dumps(ab(arms, load_workload(sys.argv[1])).to_json()))
"""


def test_records_are_the_same_bytes_in_every_process() -> None:
    found = []
    for hash_seed in ("0", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", CODE, SHARED, *ROUTERS],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        found.append(done.stdout)
    assert found[0] == found[1]
    assert len(json.loads(found[0])["runs"]) == 4


def test_a_record_of_a_fleet_is_read_back() -> None:
    record = run(replicas=2, router="random")
    again = RunRecord.from_json(json.loads(record.dumps()))
    assert again == record and again.num_replicas == 2
    assert {r.replica for r in again.requests} == {s.replica for s in again.steps} == {0, 1}
    old = json.loads(run().dumps())  # as written before there were fleets
    for entry in (*old["requests"], *old["steps"]):
        del entry["replica"]
    del old["settings"]["replicas"], old["settings"]["router"]
    assert RunRecord.from_json(old).num_replicas == 1
    assert {r.replica for r in RunRecord.from_json(old).requests} == {0}


def test_runs_that_are_stopped_leave_no_step_half_done() -> None:
    stopped = run(replicas=3, max_steps=20)
    assert stopped.stopped == "max_steps" and len(stopped.steps) == 20
    assert {"finished", "unfinished"} >= {r.status for r in stopped.requests}
    assert all(len(r.token_times_ns) == r.num_output_tokens for r in stopped.requests)
    assert None in {r.replica for r in stopped.requests}  # they never arrived
    timed = run(replicas=3, max_seconds=0.2)
    assert timed.stopped == "max_seconds" and timed.duration_s >= 0.2
    assert max(s.start_ns for s in timed.steps) < 200_000_000
    assert max(s.end_ns for s in timed.steps) <= timed.duration_ns


def test_an_interrupt_keeps_what_is_done() -> None:
    class Interrupt:
        @hookimpl
        def step_finished(self, step: Any) -> None:
            if step.index == 12:
                signal.raise_signal(signal.SIGINT)

    record = run(replicas=2, plugins=[Interrupt()])
    assert record.stopped == "interrupted"
    assert all(len(r.token_times_ns) == r.num_output_tokens for r in record.requests)
    assert len(record.steps) == len(record.batches) >= 13
    assert len(record.requests) == 60


def test_events_name_their_replica() -> None:
    class Faulty:
        @hookimpl
        def request_finished(self, request: Any) -> None:
            if request.request_id == "r000003":
                raise ValueError("once")

    record = run(replicas=2, plugins=[Faulty()])
    (event,) = [e for e in record.events if e["kind"] == "observer_fault"]
    assert event["replica"] == record.requests[3].replica


def test_a_bad_router_stops_the_run_or_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(
        "from batchwright import Router, hookimpl\n\n"
        "class Bad(Router):\n"
        "    @hookimpl\n"
        "    def routing(self, request):\n"
        "        return 7 if request.request_id == 'r000005' else 1\n"
    )
    with pytest.raises(PolicyError, match=r"'Bad', hook 'routing', step 5, rule 'range': request 'r000005'"):
        run(replicas=2, router=f"{file}:Bad")
    record = run(replicas=2, router=f"{file}:Bad", on_policy_error="fallback")
    assert Counter(r.replica for r in record.requests) == {0: 1, 1: 59}
    assert [e["hook"] for e in record.events if e["kind"] == "policy_fault"] == ["routing"]
    assert "had 1 faults" in format_report(
        ab({"bad": config(replicas=2, router=f"{file}:Bad", on_policy_error="fallback")}, load_workload(SHARED))
    )


def test_replicas_need_their_own_policies_and_backends() -> None:
    class Sheds(Policy):
        @hookimpl
        def arrival(self, request: Any) -> Any:
            return Refusal("never")

    load = load_workload("synthetic:n=4,prompt=8,output=2")
    with pytest.raises(ConfigError, match="policy: 2 replicas need policy objects of their own"):
        run_arm(EngineConfig(replicas=2), load, policy=Sheds())
    with pytest.raises(ConfigError, match="backend: 2 replicas need backend objects of their own"):
        run_arm(EngineConfig(replicas=2), load, backend=FakeBackend())
    made = run_arm(EngineConfig(replicas=2), load, backend=FakeBackend, policy=Sheds, declared="exact")
    assert {r.status for r in made.requests} == {"refused"} and made.backend == "fake"
    assert {r.replica for r in made.requests} == {0, 1}
