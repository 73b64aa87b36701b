"""Metrics of replicas, and what reports tell of fleets."""

from __future__ import annotations

import pytest

from batchwright import EngineConfig
from batchwright.lab import Load, ab, format_report, load_workload, run_arm, summarize
from batchwright.lab.replica_summary import summarize_replicas
from lab.fleet_runs import SHARED, config, run


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
