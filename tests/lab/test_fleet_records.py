"""Records of fleets: whole, deterministic, and of one replica those of an engine."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from batchwright import ConfigError, EngineConfig, Policy, PolicyError, Refusal, hookimpl
from batchwright.lab import Load, Workload, WorkloadRow, ab, format_report, load_workload, run_arm, summarize
from batchwright.lab.replica_summary import summarize_replicas
from batchwright.lab.riding import key_of
from batchwright.lab.run_record import RunRecord
from fake_backend import FakeBackend

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


def plain(record: RunRecord) -> dict[str, Any]:
    """As JSON, without what says that there was a fleet."""
    value = record.to_json()
    value["settings"] = {k: v for k, v in value["settings"].items() if k not in ("router", "replicas")}
    return value


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


# One replica ---------------------------------------------------------------------------------------------------------


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


# Several -------------------------------------------------------------------------------------------------------------


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


# Metrics and tables -------------------------------------------------------------------------------------------------


def test_metrics_of_replicas_add_up() -> None:
    found = ab(
        {"a": config(replicas=3), "b": config(replicas=3, router="prefix_aware"), "c": config()},
        load_workload(SHARED),
        declared="exact",
    )
    assert set(found.replicas) == {"a", "b"}
    for arm in "ab":
        whole, parts = found.summaries[arm], found.replicas[arm]
        for name in ("completed", "num_preemptions", "total_output_tokens", "num_refused"):
            assert sum(p[name] or 0 for p in parts) == whole[name]
        assert sum(int(p["num_requests"] or 0) for p in parts) == 60
        for replica, part in enumerate(parts):
            own = [s for s in next(r for r in found.runs if r.arm == arm).steps if s.replica == replica]
            assert part["busy"] == pytest.approx(
                sum(s.end_ns - s.start_ns for s in own) / 1e9 / (part["duration"] or 1)
            )
        busy = [p["busy"] or 0.0 for p in parts]
        assert whole["busy_imbalance"] == pytest.approx(max(busy) / (sum(busy) / 3))
    assert found.summaries["c"]["busy_imbalance"] is None
    assert found.to_json()["replicas"] == found.replicas


def test_the_report_tells_of_fleets() -> None:
    arms = {"rr": config(replicas=2), "pa": config(replicas=2, router="prefix_aware:load_weight=0.5"), "one": config()}
    text = format_report(ab(arms, load_workload(SHARED), declared="exact"), width=120)
    assert (
        "rr: 2 replicas, router round_robin; pa: 2 replicas, router prefix_aware (load_weight=0.5, "
        "cache_threshold=0.3); one: one engine" in " ".join(text.split())
    )
    assert "replicas of rr" in text and "replicas of pa" in text and "replicas of one" not in text
    assert "Busiest replica / mean" in text
    alone = format_report(ab({"a": config(), "b": config(policy="lpm")}, load_workload(SHARED), declared="exact"))
    assert "replica" not in alone and "fleet" not in alone


def test_a_fleet_of_four_has_four_times_the_capacity() -> None:
    load = load_workload("synthetic:rate=10,n=120,prompt=400,output=60,seed=4")
    one, four = (Load.of(run_arm(EngineConfig(policy="vllm_v1", replicas=n), load, declared="exact")) for n in (1, 4))
    assert one.utilization is not None and four.utilization is not None
    assert four.utilization == pytest.approx(one.utilization / 4, rel=0.35)


# Prefix-aware routing on conversations --------------------------------------------------------------------------------

TRACE = Path(__file__).parents[1] / "fleet" / "cases" / "conversations.jsonl"


def test_prefix_aware_beats_round_robin_on_conversations() -> None:
    """A small trace in Mooncake's format: turns of conversations come back with what was said before."""
    load = load_workload(TRACE)
    found = {}
    for router in ("round_robin", "prefix_aware"):
        settings = EngineConfig(policy="vllm_v1", replicas=4, router=router, num_blocks=4000)
        found[router] = summarize(run_arm(settings, load, declared="exact"))
    hits = {router: float(s["cache_hit_rate"] or 0) for router, s in found.items()}
    p99 = {router: float(s["p99_ttft_ms"] or 0) for router, s in found.items()}
    assert hits["prefix_aware"] > 1.5 * hits["round_robin"]
    assert p99["prefix_aware"] < 0.9 * p99["round_robin"]


REAL = Path(__file__).parents[3] / "shared" / "data" / "traces" / "mooncake_conversation_trace.jsonl"


def test_the_benchmark_tells_routers_apart(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import fleet_mooncake

    out = tmp_path / "out.json"
    args = [str(TRACE), "--replicas", "2", "--routers", "round_robin", "prefix_aware", "--json", str(out)]
    assert fleet_mooncake.main(args) == 0
    shown = capsys.readouterr().out
    assert "Cache hits (%)" in shown and "one cache without a bound" in shown
    (found,) = json.loads(out.read_text())["sizes"]
    assert set(found["routers"]) == {"round_robin", "prefix_aware"}
    assert 0 < found["routers"]["prefix_aware"]["cache_hit_rate"] <= found["unbounded"] < 1
    assert found["pooled"] == found["unbounded"]  # it all fits

    assert fleet_mooncake.main([*args, "--num-blocks", "auto", "300"]) == 0
    fits, small = json.loads(out.read_text())["sizes"]
    assert fits == found | {"routers": fits["routers"]} and small["pooled"] < small["unbounded"]
    assert [size["routers"]["round_robin"]["kv_tokens"] for size in (fits, small)][1] == 2 * 300 * 16


def test_the_bound_of_the_real_trace_is_that_of_its_readme() -> None:
    """36.6% of the blocks hit one cache without a bound (shared/data/README.md), which are 37.4% of the tokens."""
    import fleet_mooncake

    if not REAL.is_file():
        pytest.skip(f"the Mooncake trace is not there: {REAL}")
    assert fleet_mooncake.unbounded_hit_rates(load_workload(REAL)) == pytest.approx((0.374, 0.366), abs=0.0005)


def test_each_replica_has_the_metrics_of_its_own_steps() -> None:
    record = run(replicas=2)
    each = summarize_replicas(record)
    whole = summarize(record)
    assert sum(one["num_steps"] or 0 for one in each) == whole["num_steps"]
    for place, one in enumerate(each):
        own = [step for step in record.steps if step.replica == place]
        assert own and one["mean_batch_size"] == pytest.approx(sum(step.batch_size for step in own) / len(own))
        used = [(step.end_ns - step.start_ns, 1 - step.free_blocks / record.limits.num_blocks) for step in own]
        assert one["kv_use_mean"] == pytest.approx(sum(t * use for t, use in used) / sum(t for t, _ in used))
        assert one["mean_step_tokens"] == pytest.approx(
            sum(step.num_prefill_tokens + step.num_decodes for step in own) / len(own)
        )
    (alone,) = summarize_replicas(run(replicas=1))
    assert {name: alone[name] for name in whole} == summarize(run(replicas=1)), "one replica is the whole"
