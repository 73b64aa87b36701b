"""Decodes that ride together, and a policy that is not asked again: what once went wrong with them."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from batchwright import Limits, Policy, PrefixCache, Request, SamplingParams, Scheduler, Step, hookimpl
from batchwright.block_manager import BlockManager
from batchwright.hookspecs import HOLD
from batchwright.plugins import load_plugins
from batchwright.request import RESIDENT
from testing.twins import Twins

FIRST_PARTY = load_plugins().policies


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def twins_of(policy: Any, **settings: Any) -> Twins:
    return Twins(policy, {"num_blocks": 40, "block_size": 2, "limits": Limits(), **settings}, Counter())


def step_both(twins: Twins, now: int) -> None:
    batches = twins.schedule(now)
    if batches is not None:
        twins.update(batches, now)


class TakesTheSeatOfTheFirst(Policy):
    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        yield from step.waiting
        yield [r for r in step.running if not r.num_scheduled]

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Any:
        return step.batch[0] if step.batch else HOLD


def test_hits_are_looked_up_again_after_a_seat_was_made() -> None:
    """The victim answered for the block that was hit; now an older one does."""
    cache = PrefixCache(visible="scheduled", duplicates="newest")
    twins = twins_of(TakesTheSeatOfTheFirst, num_blocks=8, limits=Limits(max_num_residents=1), prefix_cache=cache)
    twins.add("old", [1, 2], params(1), None, 0, None)
    step_both(twins, 0)
    twins.add("same", [1, 2], params(1), None, 0, None)
    twins.add("longer", [1, 2, 1], params(1), None, 0, None)
    step_both(twins, 2)
    assert twins.seen["evictions"]


class OffersNothing(Policy):
    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        if step.index == 2:
            yield None
        yield step.running
        yield from step.waiting


def test_none_is_no_offer() -> None:
    twins = twins_of(OffersNothing)
    twins.add("a", [1, 2], params(9), None, 0, None)
    for now in range(4):
        step_both(twins, now)
    assert twins.seen["errors: PolicyError"] == 1


class CutsPrompts(Policy):
    stationary = True

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        yield from step.waiting
        yield step.decodes
        yield step.prefilling

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        return min(request.num_pending, step.budget, 3)


def test_a_prompt_that_is_not_done_is_not_forgotten() -> None:
    twins = twins_of(CutsPrompts, limits=Limits(max_num_seqs=2))
    for name in "ab":
        twins.add(name, [1], params(30), None, 0, None)
    for now in range(3):
        step_both(twins, now)
    twins.add("c", [1, 2, 1, 2], params(5), None, 0, None)
    for now in range(3, 10):
        step_both(twins, now)
    batches = twins.schedule(10)
    assert batches is not None
    twins.abort("a")
    twins.update(batches, 10)
    step_both(twins, 11)


@pytest.mark.parametrize("policy", ["vllm_v1", "priority", "prefill_first", "sjf"])
def test_short_of_blocks_a_stationary_policy_is_asked(policy: str) -> None:
    settings = {"scheduling_policy": "priority"} if policy == "vllm_v1" else {}
    for seed in range(30):
        rng = random.Random(seed)
        twins = twins_of(
            lambda: FIRST_PARTY[policy](**settings), num_blocks=41, block_size=1, limits=Limits(max_num_seqs=8)
        )
        number = 0
        for now in range(60):
            if number < 7 and (not twins.there or rng.random() < 0.25):
                twins.add(f"r{number}", [1], params(rng.randint(8, 20)), None, rng.randrange(4), None)
                number += 1
            step_both(twins, now)


class AbortsAt:
    name = "aborts"

    def __init__(self, hook: str, step: int) -> None:
        self._hook, self._step = hook, step
        self.scheduler: Any = None

    @hookimpl
    def step_started(self, step: Step) -> None:
        if self._hook == "step_started" and step.index == self._step:
            assert step.running and step.decodes
            self.scheduler.abort("a")

    @hookimpl
    def step_finished(self, step: Step) -> None:
        if self._hook == "step_finished" and step.index == self._step:
            self.scheduler.abort("a")


@pytest.mark.parametrize("hook", ["step_started", "step_finished"])
def test_an_observer_aborts_a_rider(hook: str) -> None:
    """Its seat is free for who waits, and nothing of it says that it is scheduled."""
    plugin = AbortsAt(hook, 3)
    limits = Limits(max_num_residents=1)
    scheduler = Scheduler(FIRST_PARTY["stall_free"](), num_blocks=40, block_size=2, limits=limits, plugins=[plugin])
    plugin.scheduler = scheduler
    first, second = Request("a", [1], params(20)), Request("b", [1], params(20))
    scheduler.add(first)
    scheduler.add(second)
    for now in range(5):
        batch = scheduler.schedule(now)
        scheduler.update(batch, [1] * int(batch.samples.sum()), now)
    assert first.is_finished and first.num_scheduled == 0 and second.num_output_tokens


class OnlyChunks(Policy):
    stationary = True

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        return min(request.num_pending, step.budget)


class EachThirdStepForOne(Policy):
    """Not stationary."""

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        yield step.running if (step.index + 1) % 3 else list(step.running)[:1]
        yield from step.waiting

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Any:
        return HOLD


def test_a_default_policy_that_is_not_stationary_is_asked() -> None:
    scheduler = Scheduler(OnlyChunks(), num_blocks=40, block_size=2, default=EachThirdStepForOne)
    for name in "ab":
        scheduler.add(Request(name, [1], params(20)))
    sizes = []
    for now in range(6):
        batch = scheduler.schedule(now)
        sizes.append(len(batch))
        scheduler.update(batch, [1] * len(batch), now)
    assert sizes == [2, 2, 1, 2, 2, 1]


@pytest.mark.parametrize("num_steps", [0, 3])
def test_the_row_of_who_is_aborted_in_flight_keeps_its_arrays(num_steps: int) -> None:
    scheduler = Scheduler(FIRST_PARTY["stall_free"](), num_blocks=40, block_size=2)
    scheduler.add(Request("x", [1], params(20)))
    scheduler.add(request := Request("a", [1, 2, 1, 2, 1], params(20)))
    for now in range(num_steps):
        batch = scheduler.schedule(now)
        scheduler.update(batch, [1] * int(batch.samples.sum()), now)
    batch = scheduler.schedule(9)
    table = list(request.block_table)
    scheduler.abort("a")
    assert batch.block_tables[1].tolist() == table
    assert batch.slots[-1] == table[-1] * 2 + (request.num_tokens - 1) % 2


@pytest.mark.parametrize("as_given", [lambda: [np.array(5)], lambda: np.array([5]), lambda: array("i", [5])])
def test_tokens_of_any_kind_of_int_stop(as_given: Any) -> None:
    scheduler = Scheduler(FIRST_PARTY["stall_free"](), num_blocks=40, block_size=2, eos_token_ids=(5,))
    scheduler.add(request := Request("a", [1], SamplingParams(max_tokens=20)))
    for now in range(3):
        scheduler.update(scheduler.schedule(now), [1], now)
    scheduler.update(scheduler.schedule(4), as_given(), 4)
    assert request.finish_reason == "stop" and list(request.output_token_ids) == [1, 1, 1, 5]


def test_who_left_and_came_back_is_looked_at_once() -> None:
    """Its old entry in the calendar may be due in the very step of the new one."""
    scheduler = Scheduler(FIRST_PARTY["stall_free"](), num_blocks=40, block_size=4)
    roster = scheduler._state.roster
    scheduler.add(request := Request("a", [1, 2, 3], params(30)))
    for now in range(3):
        scheduler.update(scheduler.schedule(now), [1], now)
    due = request._due
    roster.leave(request)
    roster.enter([request])
    assert request._due == due
    roster._calendar[due] = [request, request]
    while request.is_resident and request.num_tokens < 14:
        scheduler.update(scheduler.schedule(9), [1], 9)
    assert len(request.block_table) == 4  # and not one more


def test_a_miss_is_not_followed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that waits is asked about in each step; what it misses is one probe, however long the rest is."""
    blocks = BlockManager(100, 2)
    known, other = Request("known", list(range(40))), Request("other", [7, 7, 7])
    parts = Request("parts", [*range(6), *range(100, 140)])
    for request in (known, other):
        blocks.allocate(request, blocks.lookup(request), request.num_tokens)
        request._state = RESIDENT
    blocks.register(known, 40)
    assert list(blocks.lookup(parts)) == known.block_table[:3]
    follows = Counter[str]()
    follow = blocks.index._follow
    monkeypatch.setattr(blocks.index, "_follow", lambda *a: follows.update(n=1) or follow(*a))
    blocks.register(other, 2)
    assert list(blocks.lookup(parts)) == known.block_table[:3] and not follows
