from __future__ import annotations

import random
from typing import Any

import pytest

from batchwright.errors import ConfigError
from batchwright.limits import Limits
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright.scheduler import Scheduler
from batchwright_policies.stall_free import StallFree


def make(chunk_size: int, *, num_blocks: int = 1000, block_size: int = 4, **limits: Any) -> Scheduler:
    return Scheduler(
        StallFree(chunk_size=chunk_size), num_blocks=num_blocks, block_size=block_size, limits=Limits(**limits)
    )


def add(scheduler: Scheduler, name: str, prompt: int, max_tokens: int = 4) -> Request:
    tokens = [ord(name[0])] * prompt
    request = Request(name, tokens, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    scheduler.add(request)
    return request


def step(scheduler: Scheduler) -> list[tuple[str, int]]:
    batch = scheduler.schedule()
    rows = list(zip(batch.request_ids, batch.num_scheduled.tolist(), strict=True))
    scheduler.update(batch, [1] * sum(batch.samples.tolist()))
    return rows


def test_decodes_then_partial_prompts_then_new_ones():
    scheduler = make(10)
    add(scheduler, "a", 4, max_tokens=9)
    assert step(scheduler) == [("a", 4)]
    add(scheduler, "b", 15)
    assert step(scheduler) == [("a", 1), ("b", 9)]
    add(scheduler, "c", 8)
    assert step(scheduler) == [("a", 1), ("b", 6), ("c", 3)]
    assert step(scheduler) == [("a", 1), ("b", 1), ("c", 5)]
    assert step(scheduler) == [("a", 1), ("b", 1), ("c", 1)]


def test_the_chunk_is_static_even_for_a_lone_prompt():
    scheduler = make(512, max_num_batched_tokens=16_384)
    add(scheduler, "a", 1500, max_tokens=1)
    assert [step(scheduler) for _ in range(3)] == [[("a", 512)], [("a", 512)], [("a", 476)]]


def test_it_takes_the_blocks_of_the_whole_prompt_and_nobody_overtakes():
    scheduler = make(8, num_blocks=10)
    add(scheduler, "a", 24, max_tokens=1)
    add(scheduler, "b", 20, max_tokens=1)
    add(scheduler, "c", 4, max_tokens=1)
    assert step(scheduler) == [("a", 8)]
    assert scheduler.blocks.num_free == 4
    assert step(scheduler) == [("a", 8)]  # b lacks a block, and c waits behind it
    assert step(scheduler) == [("a", 8)]
    assert step(scheduler) == [("b", 8)]


def test_when_a_decode_lacks_a_block_the_newest_prompt_is_evicted():
    scheduler = make(8, num_blocks=6)
    add(scheduler, "a", 8, max_tokens=9)
    step(scheduler)
    add(scheduler, "b", 12, max_tokens=2)
    rows = step(scheduler)
    assert rows == [("a", 1), ("b", 7)]
    for _ in range(3):
        step(scheduler)
    add(scheduler, "c", 4, max_tokens=1)
    seen: list[str] = []
    while scheduler.has_unfinished():
        rows = step(scheduler)
        if any(r.request_id == "a" for r in scheduler.running):
            assert ("a", 1) in rows  # whatever happens, a gets its token
        seen += [r.request_id for r in scheduler.step.preempted]
    assert "a" not in seen


def test_more_decodes_than_the_chunk_holds():
    scheduler = make(3)
    for name in "abcde":
        add(scheduler, name, 1, max_tokens=3)
    assert step(scheduler) == [("a", 1), ("b", 1), ("c", 1)]
    assert step(scheduler) == [("a", 1), ("b", 1), ("c", 1)]
    assert step(scheduler) == [("a", 1), ("b", 1), ("c", 1)]
    assert step(scheduler) == [("d", 1), ("e", 1)]


def test_decodes_that_fill_the_chunk_stop_a_cut_prompt():
    scheduler = make(20)
    for name in "ab":
        add(scheduler, name, 2, max_tokens=4)
    add(scheduler, "c", 40)
    assert step(scheduler) == [("a", 2), ("b", 2), ("c", 16)]
    scheduler.swap_policy(StallFree(chunk_size=2))
    assert step(scheduler) == step(scheduler) == [("a", 1), ("b", 1)]
    assert step(scheduler) == [("a", 1), ("b", 1)]
    assert step(scheduler) == [("c", 2)]


def test_decodes_that_outnumber_the_chunk_all_run_and_prompts_wait():
    """As in its source, and as it declares: after a swap to a smaller chunk no decode is left out."""
    scheduler = make(20)
    for name in "abcd":
        add(scheduler, name, 2, max_tokens=4)
    add(scheduler, "e", 40)
    assert step(scheduler) == [("a", 2), ("b", 2), ("c", 2), ("d", 2), ("e", 12)]
    scheduler.swap_policy(StallFree(chunk_size=3))
    for _ in range(3):
        assert step(scheduler) == [("a", 1), ("b", 1), ("c", 1), ("d", 1)]
    assert step(scheduler) == [("e", 3)]


@pytest.mark.parametrize("seed", range(5))
def test_no_step_exceeds_the_chunk_and_no_decode_waits(seed):
    rng = random.Random(seed)
    chunk = rng.choice([8, 16, 33])
    scheduler = make(chunk, num_blocks=200, max_num_seqs=6, max_num_residents=6)
    for k in range(40):
        add(scheduler, f"{chr(65 + k)}", rng.randint(1, 60), max_tokens=rng.randint(1, 20))
    while scheduler.has_unfinished():
        decodes = {r.request_id for r in scheduler.running if r.is_decode}
        rows = step(scheduler)
        assert sum(tokens for _, tokens in rows) <= chunk
        assert decodes <= {name for name, _ in rows} | {r.request_id for r in scheduler.step.preempted}
    assert scheduler.blocks.num_free == 200


def test_its_defaults_and_parameters():
    assert StallFree().params.chunk_size == 512
    assert StallFree().defaults(Limits(max_num_seqs=7)) == {"max_num_residents": 7}
    with pytest.raises(ConfigError, match="chunk_size"):
        StallFree(chunk_size=0)
