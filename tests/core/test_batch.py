"""The arrays of a batch against plain loops over its requests."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchwright import Batch, Limits, PrefixCache, Scheduler, TokenLogprobs
from batchwright.plugins import load_plugins
from batchwright.testing.reference import Reference
from toolbox import BASIC, make_request, prompt_of


def _check(batch: Batch, block_size: int) -> None:
    requests = list(batch._requests)
    counts = [r.num_scheduled for r in requests]
    flat = [(r, r.num_computed + i) for r in requests for i in range(r.num_scheduled)]
    assert len(batch) == len(requests) and batch.num_tokens == len(flat)
    assert batch.request_ids == [r.request_id for r in requests]
    for array, expected, dtype in [
        (batch.num_scheduled, counts, np.int32),
        (batch.num_computed, [r.num_computed for r in requests], np.int32),
        (batch.context_lens, [r.num_computed + r.num_scheduled for r in requests], np.int32),
        (batch.query_starts, [sum(counts[:i]) for i in range(len(counts) + 1)], np.int32),
        (batch.samples, [r.num_computed + r.num_scheduled == r.num_tokens for r in requests], np.bool_),
        (batch.is_decode, [r.is_decode for r in requests], np.bool_),
        (batch.token_ids, [(*r.prompt_token_ids, *r.output_token_ids)[place] for r, place in flat], np.int32),
        (
            batch.sampled_tokens,
            [i for i, (r, place) in enumerate(flat) if place == r.num_tokens - 1],
            np.int64,
        ),
        (batch.positions, [place for _, place in flat], np.int32),
        (
            batch.slots,
            [r.block_table[place // block_size] * block_size + place % block_size for r, place in flat],
            np.int64,
        ),
    ]:
        assert array.dtype == dtype
        assert array.tolist() == expected
    widest = max((len(r.block_table) for r in requests), default=0)
    assert batch.block_tables.shape == (len(requests), widest) and batch.block_tables.dtype == np.int32
    assert batch.block_tables.tolist() == [r.block_table + [0] * (widest - len(r.block_table)) for r in requests]
    sampling, rows = batch.sampling, [r for r in requests if r.num_computed + r.num_scheduled == r.num_tokens]
    params = [r.sampling_params for r in rows]
    for array, expected, dtype in [
        (sampling.temperature, [np.float32(p.temperature) for p in params], np.float32),
        (sampling.top_k, [p.top_k or 0 for p in params], np.int32),
        (sampling.top_p, [p.top_p for p in params], np.float32),
        (sampling.min_p, [p.min_p for p in params], np.float32),
        (sampling.seed, [p.seed for p in params], np.uint64),
        (sampling.output_index, [r.num_output_tokens for r in rows], np.int64),
        (sampling.logprobs, [-1 if p.logprobs is None else p.logprobs for p in params], np.int32),
    ]:
        assert array.dtype == dtype
        assert array.tolist() == expected


@given(
    policy=st.sampled_from(BASIC),
    visible=st.sampled_from(["computed", "scheduled"]),
    block_size=st.sampled_from([1, 3, 4]),
    seed=st.integers(0, 10**6),
)
def test_every_array_of_every_batch(policy: str, visible: str, block_size: int, seed: int) -> None:
    rng = random.Random(seed)
    scheduler = Scheduler(
        policy,
        num_blocks=60 // block_size,
        block_size=block_size,
        limits=Limits(max_num_seqs=4, max_num_batched_tokens=rng.choice([7, 16, 64])),
        prefix_cache=PrefixCache(visible=visible),  # type: ignore[arg-type]
    )
    stem = prompt_of("stem", 12)
    for i in range(6):
        prompt = stem[: rng.randint(0, 12)] + prompt_of(str(i), rng.randint(1, 9))
        sampling = {"temperature": rng.choice([0.0, 0.5]), "logprobs": rng.choice([None, None, 0, 5])}
        scheduler.add(make_request(str(i), prompt, rng.randint(1, 9), **sampling))
    for _ in range(300):
        batch = scheduler.schedule()
        _check(batch, block_size)
        logprobs = [TokenLogprobs(-1.0, 1) for s in batch.samples if s]
        scheduler.update(batch, [rng.randrange(1000) for _ in logprobs], logprobs=logprobs)
        if not scheduler.has_unfinished():
            return
    raise AssertionError("it does not end")


def test_an_empty_batch() -> None:
    batch = Batch(3, 4, [], [])
    _check(batch, 4)
    assert batch.query_starts.tolist() == [0]


def test_a_batch_of_the_reference_reads_the_same() -> None:
    batches = []
    for core_class in (Scheduler, Reference):
        core: Any = core_class(load_plugins().policy("prefill_first")(), num_blocks=40, block_size=4)
        for i in range(3):
            core.add(make_request(str(i), 9 + i, 3))
        batches.append(core.schedule())
    assert batches[0].slots.tolist() == batches[1].slots.tolist()
    assert batches[0].token_ids.tolist() == batches[1].token_ids.tolist()
