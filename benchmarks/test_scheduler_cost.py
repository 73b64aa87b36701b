"""Scheduler cost under pytest-benchmark, held to the bounds that the project promises.

    make bench                          # this core alone; the peers' tests are skipped with the reason
    NANO_VLLM=/path/to/nano-vllm make bench

Before each timed round of ours the peer runs one of its own, so both see the same machine; the ratio of the medians is
in ``extra_info``, and only ratios are asserted.
"""

from __future__ import annotations

import gc
import statistics

import pytest

import rows
from peers import Nano, Ours, SortsAll, nano_missing
from peers_vllm import Vllm, vllm_missing
from scheduler import RANKED, seats

ROUNDS = 15
POLICIES = ["prefill_first", "vllm_v1", "stall_free:chunk_size=1000000"]
no_nano, no_vllm = nano_missing(), vllm_missing()
beside_nano = pytest.mark.skipif(no_nano is not None, reason=f"nano-vLLM left out: {no_nano}")
beside_vllm = pytest.mark.skipif(no_vllm is not None, reason=f"vLLM left out: {no_vllm}")


def ours(policy: str = "prefill_first"):
    return lambda *sizes: Ours(policy, *sizes)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("block_size", [16, 256])
@pytest.mark.parametrize("num_requests", [64, 256, 1024, 4096])
def test_decodes(benchmark, policy, num_requests, block_size):
    row = rows.decodes(ours(policy), num_requests, block_size)
    benchmark.pedantic(row.work, setup=row.prepare, rounds=5, warmup_rounds=1)
    benchmark.extra_info["us_a_request_a_step"] = benchmark.stats.stats.median * 1e9 / row.divisor


@beside_nano
@pytest.mark.parametrize("policy", POLICIES[:2])
@pytest.mark.parametrize("block_size", [16, 256])
@pytest.mark.parametrize("num_requests", [64, 256, 1024, 4096])
def test_decodes_take_a_third_of_nano_at_most(benchmark, policy, num_requests, block_size):
    mine, peers = rows.decodes(ours(policy), num_requests, block_size), rows.decodes(Nano, num_requests, block_size)
    assert _ratio(benchmark, mine, peers) <= 1 / 3


@beside_vllm
@pytest.mark.parametrize("policy", POLICIES[:2])
@pytest.mark.parametrize("block_size", [16, 256])
@pytest.mark.parametrize("num_requests", [64, 256, 1024, 4096])
def test_decodes_take_a_thirtieth_of_vllm_at_most(benchmark, policy, num_requests, block_size):
    mine, peers = rows.decodes(ours(policy), num_requests, block_size), rows.decodes(Vllm, num_requests, block_size)
    assert _ratio(benchmark, mine, peers, rounds=5) <= 1 / 30


@beside_nano
@pytest.mark.parametrize(
    ("place", "behind", "bound"),
    [("old end", 0, 0.1), ("old end + 1,000", 1000, 0.1), ("middle", 30_000, 1 / 200)],
)
def test_cached_prompt(benchmark, place, behind, bound):
    mine, peers = rows.cached_prompt(ours(), 60_000, behind), rows.cached_prompt(Nano, 60_000, behind)
    assert _ratio(benchmark, mine, peers) <= bound, f"hits at the {place} of the free list"


@beside_nano
@pytest.mark.parametrize("length", [512, 4096, 32_768])
@pytest.mark.parametrize("cached", [False, True], ids=["cold", "cached"])
def test_prompts_are_no_slower_than_nano(benchmark, length, cached):
    mine = rows.prompt(ours(), length, cached=cached)
    peers = rows.prompt(Nano, length, cached=cached)
    assert _ratio(benchmark, mine, peers, rounds=ROUNDS if length < 32_768 else 3) <= 1


@beside_nano
@pytest.mark.parametrize("load", [rows.steady_mix, rows.full_pool])
def test_whole_runs_are_no_slower_than_nano(benchmark, load):
    shared = load()
    mine, peers = rows.closed_run(ours(), shared), rows.closed_run(Nano, shared)
    assert shared.sizes["batchwright prefill_first"] == shared.sizes["nano-vllm"]  # decision for decision
    assert _ratio(benchmark, mine, peers, rounds=5) <= 1


@pytest.mark.parametrize("policy", POLICIES)
def test_a_step_costs_the_same_however_many_wait(benchmark, policy):
    many, few = rows.backlog(ours(policy), 100_000), rows.backlog(ours(policy), 1000)
    assert _ratio(benchmark, many, few) <= 1.2


@beside_nano
@pytest.mark.parametrize("policy", RANKED)
def test_ranked_decodes_are_no_slower_than_nano_while_nobody_waits(benchmark, policy):
    mine, peers = rows.crowd(lambda *sizes: seats(policy, *sizes), 0), rows.crowd(Nano, 0)
    assert _ratio(benchmark, mine, peers) <= 1


@pytest.mark.parametrize("policy", RANKED)
def test_ranked_steps_take_a_tenth_of_sorting_all_at_most(benchmark, policy):
    mine = rows.crowd(lambda *sizes: seats(policy, *sizes), 5000)
    peers = rows.crowd(lambda *sizes: seats(SortsAll(), *sizes), 5000)
    assert _ratio(benchmark, mine, peers) <= 0.1


@beside_nano
@pytest.mark.parametrize("block_size", [16, 256])
def test_inputs_take_a_tenth_of_nano_at_most(benchmark, block_size):
    pytest.importorskip("torch")
    mine, peers = rows.inputs(ours(), 256, block_size), rows.inputs(Nano, 256, block_size)
    times = []
    benchmark.pedantic(lambda: times.append((mine.run(), peers.run())), rounds=ROUNDS, warmup_rounds=1)
    a, b = (statistics.median(column) for column in zip(*times, strict=True))
    benchmark.extra_info.update(batchwright=a, peer=b, ratio=a / b)
    assert a / b <= 0.1


def _ratio(benchmark, mine, peers, rounds=ROUNDS):
    """Ours and the peer in turn, in the same rounds."""
    times = []

    def setup():
        times.append(peers.run())
        gc.collect()
        mine.prepare()

    peers.run(), mine.run()
    benchmark.pedantic(mine.work, setup=setup, rounds=rounds)
    median = benchmark.stats.stats.median * 1e9 / mine.divisor
    ratio = median / statistics.median(times)
    benchmark.extra_info.update(batchwright=median, peer=statistics.median(times), ratio=ratio)
    print(f"\nbatchwright {median:.3f}, peer {statistics.median(times):.3f}, ratio {ratio:.3f}")
    return ratio
