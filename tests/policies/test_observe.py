"""Outside vLLM ``observe`` is ``vllm_v1``, decision for decision."""

from __future__ import annotations

import pytest

from batchwright_policies.observe import Observe
from batchwright_policies.vllm_v1 import VllmV1
from policies.drive import heavy_tail, run


@pytest.mark.parametrize("seed", range(5))
def test_it_decides_as_vllm_v1(seed: int) -> None:
    """In a pool so small that residents are evicted."""
    outcomes = [run(policy, heavy_tail(40, seed, rate=20.0, long=80), P=20) for policy in (Observe(), VllmV1())]
    observed, stock = outcomes
    assert observed.batches == stock.batches
    assert observed.evictions == stock.evictions
    assert stock.evictions
