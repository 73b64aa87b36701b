from __future__ import annotations

import heapq
import random
from typing import Any

import pytest

from batchwright.errors import ConfigError
from batchwright.hookspecs import hookimpl
from batchwright.limits import Limits
from batchwright.policy import Policy
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright.scheduler import Scheduler
from batchwright_policies.prefill_first import PrefillFirst
from batchwright_policies.vllm_v1 import VllmV1


def make(policy: Any = None, *, num_blocks: int = 100, block_size: int = 4, **limits: Any) -> Scheduler:
    return Scheduler(
        policy if policy is not None else VllmV1(),
        num_blocks=num_blocks,
        block_size=block_size,
        limits=Limits(**limits),
    )


def add(scheduler: Scheduler, name: str, prompt: int, max_tokens: int = 4, priority: int = 0) -> Request:
    tokens = [ord(name[0])] * prompt
    request = Request(name, tokens, SamplingParams(max_tokens=max_tokens, ignore_eos=True), priority=priority)
    scheduler.add(request)
    return request


def step(scheduler: Scheduler) -> list[tuple[str, int]]:
    batch = scheduler.schedule()
    rows = list(zip(batch.request_ids, batch.num_scheduled.tolist(), strict=True))
    scheduler.update(batch, [1] * sum(batch.samples.tolist()))
    return rows


def victims(scheduler: Scheduler) -> list[str]:
    return [r.request_id for r in scheduler.step.preempted]


def test_residents_first_then_waiting_ones():
    scheduler = make(max_num_batched_tokens=12)
    add(scheduler, "a", 20)
    assert step(scheduler) == [("a", 12)]
    add(scheduler, "b", 8)
    assert step(scheduler) == [("a", 8), ("b", 4)]  # both prompts are cut
    assert step(scheduler) == [("a", 1), ("b", 4)]


def test_by_priority_who_evicts_itself_stops_those_behind_it():
    scheduler = make(VllmV1(scheduling_policy="priority"), num_blocks=5)
    add(scheduler, "worst", 7, max_tokens=4, priority=9)
    assert step(scheduler) == [("worst", 7)]
    add(scheduler, "best", 10, max_tokens=4, priority=1)
    assert step(scheduler) == [("worst", 1), ("best", 10)]
    assert step(scheduler) == [] and victims(scheduler) == ["worst"]  # best had room for its token
    assert step(scheduler) == [("best", 1)]


def test_a_cap_binds_only_while_somebody_else_is_there():
    scheduler = make(VllmV1(long_prefill_token_threshold=4096), num_blocks=10_000, max_num_batched_tokens=16_384)
    add(scheduler, "a", 16_000)
    assert step(scheduler) == [("a", 16_000)]
    add(scheduler, "b", 9_000)
    assert step(scheduler) == [("a", 1), ("b", 4096)]
    scheduler.abort("a")
    assert step(scheduler) == [("b", 4904)]


def test_the_whole_prompt_must_fit_though_only_its_first_chunk_takes_blocks():
    scheduler = make(num_blocks=10, max_num_batched_tokens=8)
    add(scheduler, "a", 20, max_tokens=9)
    assert step(scheduler) == [("a", 8)]
    assert scheduler.blocks.num_free == 8
    add(scheduler, "b", 36, max_tokens=1)
    assert step(scheduler) == [("a", 8)]  # b would need 9 blocks
    assert step(scheduler) == [("a", 4)]
    add(scheduler, "c", 4, max_tokens=1)
    assert step(scheduler) == [("a", 1)]  # and c does not overtake it
    scheduler.abort("b")
    assert step(scheduler) == [("a", 1), ("c", 4)]


def test_a_newcomer_evicts_nobody():
    scheduler = make(VllmV1(scheduling_policy="priority"), num_blocks=4, max_num_residents=1)
    add(scheduler, "a", 8, max_tokens=9, priority=5)
    step(scheduler)
    add(scheduler, "b", 4, priority=0)
    for _ in range(6):
        step(scheduler)
        assert victims(scheduler) == []


def test_fcfs_evicts_the_newest_and_admits_nobody_in_that_step():
    scheduler = make(num_blocks=6)
    for name in "abc":
        add(scheduler, name, 8, max_tokens=9)
    add(scheduler, "d", 4)
    assert step(scheduler) == [("a", 8), ("b", 8), ("c", 8)]
    assert step(scheduler) == [("a", 1), ("b", 1)]  # d could use what c has left over
    assert victims(scheduler) == ["c"]
    assert [r.request_id for r in scheduler.waiting] == ["c", "d"]


def test_priority_evicts_the_worst_even_from_the_batch():
    scheduler = make(VllmV1(scheduling_policy="priority"), num_blocks=4)
    add(scheduler, "low", 5, max_tokens=9, priority=9)
    assert step(scheduler) == [("low", 5)]
    add(scheduler, "high", 8, max_tokens=9, priority=1)
    assert step(scheduler) == [("low", 1), ("high", 8)]
    assert step(scheduler) == [("high", 1)]  # low was in the batch already, and high lacked a block
    assert victims(scheduler) == ["low"]
    run_out(scheduler)


def test_priority_admits_by_number_then_arrival():
    scheduler = make(VllmV1(scheduling_policy="priority"), max_num_residents=1)
    for name, priority in (("a", 2), ("b", 1), ("c", 0), ("d", 1)):
        add(scheduler, name, 4, max_tokens=1, priority=priority)
    assert [step(scheduler)[0][0] for _ in range(4)] == ["c", "b", "d", "a"]


def test_the_asker_that_evicts_itself_ends_the_turn_of_those_behind_it():
    scheduler = make(VllmV1(scheduling_policy="priority"), num_blocks=6)
    for name, priority in (("a", 0), ("b", 9), ("c", 5)):
        add(scheduler, name, 8, max_tokens=9, priority=priority)
    order = [r.request_id for r in scheduler.waiting]
    assert order == ["a", "b", "c"]
    assert step(scheduler) == [("a", 8), ("c", 8), ("b", 8)]
    assert step(scheduler) == [("a", 1), ("c", 1)]
    assert victims(scheduler) == ["b"]


def run_out(scheduler: Scheduler) -> None:
    for _ in range(500):
        if not scheduler.has_unfinished():
            return
        step(scheduler)
    raise AssertionError(f"{len(scheduler.waiting)} requests starve")


class Faulty(Policy):
    """Breaks a rule in every second step, after somebody was admitted."""

    @hookimpl
    def step_started(self, step):
        self.offers = 0

    @hookimpl
    def chunking(self, step, request):
        self.offers += 1
        return -1 if step.index % 2 and self.offers > 1 else min(request.num_pending, step.budget)


def test_by_priority_who_came_while_an_observer_failed_is_found():
    class Deaf(VllmV1):
        @hookimpl
        def request_arrived(self, request: Request) -> None:
            """Hears nothing."""

    scheduler = make(Deaf(scheduling_policy="priority"))
    add(scheduler, "late", 4, priority=9)
    add(scheduler, "first", 4, priority=1)
    assert step(scheduler) == [("first", 4), ("late", 4)]


def test_nobody_is_lost_from_the_heap_when_an_admission_is_undone():
    scheduler = Scheduler(
        {"admission": VllmV1(scheduling_policy="priority"), "chunking": Faulty()},
        num_blocks=30,
        block_size=4,
        limits=Limits(max_num_batched_tokens=16, max_num_residents=3),
        on_policy_error="fallback",
    )
    rng = random.Random(0)
    for k in range(30):
        add(scheduler, f"{chr(65 + k)}", rng.randint(2, 12), priority=rng.randrange(4))
    run_out(scheduler)
    assert scheduler.num_policy_faults > 3


def test_aborted_and_swapped_requests_are_not_lost_or_offered():
    scheduler = make(PrefillFirst(), num_blocks=12, max_num_residents=2)
    for k in range(12):
        add(scheduler, chr(65 + k), 8, priority=k % 3)
    step(scheduler)
    scheduler.swap_policy(VllmV1(scheduling_policy="priority"))
    for name in ("C", "D"):
        scheduler.abort(name)
    step(scheduler)
    scheduler.fail(scheduler.schedule(), "lost", retry=True)
    run_out(scheduler)
    assert scheduler.num_policy_faults == 0


def test_a_step_looks_at_those_it_admits_and_not_at_all_who_wait(monkeypatch):
    scheduler = make(VllmV1(scheduling_policy="priority"), max_num_residents=4, max_num_batched_tokens=64)
    for k in range(5000):
        add(scheduler, f"{chr(65 + k % 20)}{k}", 5, priority=k % 7)
    calls = 0

    def counting(function: Any) -> Any:
        def counted(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            return function(*args)

        return counted

    for name in ("heappush", "heappop"):
        monkeypatch.setattr(heapq, name, counting(getattr(heapq, name)))
    for _ in range(40):
        step(scheduler)
    assert len(scheduler.waiting) > 4900
    assert calls < 40 * 10


def test_the_heap_does_not_grow_where_another_policy_admits():
    policy = VllmV1(scheduling_policy="priority")
    scheduler = make({"admission": PrefillFirst(), "preemption": policy})
    for k in range(2000):
        add(scheduler, f"{chr(65 + k % 20)}{k}", 5, max_tokens=1)
        step(scheduler)
    assert len(policy._queue._heap) < 200


def test_with_nobody_waiting_residents_are_offered_as_a_whole():
    scheduler = make()
    for name in "abc":
        add(scheduler, name, 4)
    step(scheduler)
    assert next(iter(VllmV1().admission(scheduler.step))) is scheduler.step.running


def test_its_defaults_are_those_of_vllm():
    assert VllmV1().defaults(Limits(max_num_seqs=7)) == {
        "max_num_residents": 7,
        "prefix_cache.visible": "scheduled",
        "prefix_cache.reuse": "uncached_first",
        "prefix_cache.duplicates": "oldest",
    }


@pytest.mark.parametrize("values", [{"scheduling_policy": "lifo"}, {"long_prefill_token_threshold": 0}, {"order": 1}])
def test_wrong_parameters(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        VllmV1(**values)
