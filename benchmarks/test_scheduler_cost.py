"""Scheduler cost under pytest-benchmark, beside nano-vLLM's own scheduler in the same rounds.

    make bench                          # this core alone; nano-vLLM's rows are skipped with the reason
    NANO_VLLM=/path/to/nano-vllm make bench

Before each timed round of ours the peer runs one of its own, so both see the same machine; the ratio of the medians is
in ``extra_info`` and, being a ratio of one run, is held to the bound that the project promises.
"""

from __future__ import annotations

import gc
import statistics

import pytest

from peers import Nano, Ours, nano_missing
from scheduler import cached_prompt, decodes

ROUNDS = 15
missing = nano_missing()
beside_nano = pytest.mark.skipif(missing is not None, reason=f"nano-vLLM left out: {missing}")


def ours(policy: str = "prefill_first"):
    return lambda *sizes: Ours(policy, *sizes)


@pytest.mark.parametrize("policy", ["prefill_first", "vllm_v1", "stall_free:chunk_size=1000000"])
@pytest.mark.parametrize("block_size", [16, 256])
@pytest.mark.parametrize("num_requests", [256, 1024])
def test_decodes(benchmark, policy, num_requests, block_size):
    row = decodes(ours(policy), num_requests, block_size)
    benchmark.pedantic(row.work, setup=row.prepare, rounds=5, warmup_rounds=1)
    benchmark.extra_info["us_a_request_a_step"] = benchmark.stats.stats.median * 1e9 / row.divisor


@beside_nano
@pytest.mark.parametrize("block_size", [16, 256])
@pytest.mark.parametrize("num_requests", [256, 1024])
def test_decodes_beside_nano(benchmark, num_requests, block_size):
    mine, peers = decodes(ours(), num_requests, block_size), decodes(Nano, num_requests, block_size)
    assert _ratio(benchmark, mine, peers) <= 0.6


@beside_nano
@pytest.mark.parametrize(("place", "behind"), [("old end", 0), ("old end + 1,000", 1000), ("middle", 30_000)])
def test_cached_prompt_beside_nano(benchmark, place, behind):
    mine, peers = cached_prompt(ours(), 60_000, behind), cached_prompt(Nano, 60_000, behind)
    assert _ratio(benchmark, mine, peers) <= 0.1, f"hits at the {place} of the free list"


def _ratio(benchmark, mine, peers):
    """Ours and the peer in turn, in the same rounds."""
    times = []

    def setup():
        times.append(peers.run())
        gc.collect()
        mine.prepare()

    peers.run(), mine.run()
    benchmark.pedantic(mine.work, setup=setup, rounds=ROUNDS)
    median = benchmark.stats.stats.median * 1e9 / mine.divisor
    ratio = median / statistics.median(times)
    benchmark.extra_info.update(batchwright=median, nano_vllm=statistics.median(times), ratio=ratio)
    print(f"\nbatchwright {median:.3f}, nano-vLLM {statistics.median(times):.3f}, ratio {ratio:.3f}")
    return ratio
