"""Prefix-aware routing on conversations, and the benchmark of a real trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchwright import EngineConfig
from batchwright.lab import load_workload, run_arm, summarize

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
