"""Who is resident by rank: as somebody decides who looks at everybody, and with far fewer looks."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest

from batchwright import HOLD, Request, Step, hookimpl
from batchwright.ranked import Ranked
from policies.drive import Job, Outcome, make_scheduler, run
from policies.suite import WHOLE

PREEMPTIVE = [name for name, policy in WHOLE.items() if issubclass(policy, Ranked) and policy.preemptive]
BY_RANK = [name for name, policy in WHOLE.items() if issubclass(policy, Ranked)]
PARAMS: dict[str, dict[str, Any]] = {
    "mlfq": {"quantum": 1.5, "iteration_tokens": 4, "starve_s": 0.2},
    "plas": {"quantum": 1.5, "iteration_tokens": 4, "starve_s": 0.2},
    "srpt": {"ageing": 0},
    "vtc": {},
    "dlpm": {"quantum": 20},
}


def looks_at_everybody(policy: type[Any]) -> type[Any]:
    """The same policy, and at each decision it looks at the ranks of all residents."""

    class Plain(policy):  # type: ignore[misc]
        def rank_holds(self, request: Request) -> None:
            return None

        @hookimpl
        def preemption(self, step: Step, request: Request) -> Any:
            residents = [r for r in step.running if r.is_resident]
            residents += [r for r in step.batch if r not in step.running]
            if request.is_waiting:
                residents = [r for r in residents if self.preemptive and self.rank(request) < self.rank(r)]
                most = step.free_blocks + sum(len(r.block_table) for r in residents)
                if not residents or step.blocks_needed(request, request.num_tokens) > most:
                    return HOLD
            return max(residents, key=lambda r: (self.rank(r), r.arrival_index))

    return Plain


def mixed_jobs(seed: int, num: int = 30) -> list[Job]:
    rng = random.Random(seed)
    jobs = []
    for k in range(num):
        fields = {
            "priority": rng.randrange(4),
            "deadline_s": rng.random() * 2,
            "predicted_output_tokens": rng.randint(1, 40),
            "client_id": rng.choice("abc"),
            "program_id": rng.choice("pqr"),
        }
        jobs.append(Job(f"j{k}", rng.randint(1, 20), rng.randint(1, 25), 0.01 * k * rng.random(), fields=fields))
    return jobs


SHAPES: list[dict[str, Any]] = [
    {"P": 14, "bs": 4, "S": 4, "T": 40},  # blocks are short, and places in the batch
    {"P": 14, "bs": 4, "S": 12, "T": 12},  # blocks and budget
    {"P": 60, "bs": 4, "S": 8, "T": 60, "residents": 3},  # seats, fewer than places
    {"P": 60, "bs": 4, "S": 5, "T": 60, "residents": 5},  # seats and places alike
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", BY_RANK)
def test_decisions_are_those_of_looking_at_everybody(name: str, shape: dict[str, Any]) -> None:
    num_evictions = 0
    for seed in range(4):
        policy, params = WHOLE[name], PARAMS.get(name, {})
        mine = run(policy(**params), mixed_jobs(seed), **shape)
        plain = run(looks_at_everybody(policy)(**params), mixed_jobs(seed), **shape)
        assert mine.batches == plain.batches and mine.evictions == plain.evictions, f"seed {seed}"
        num_evictions += len(mine.evictions)
    assert num_evictions or name not in PREEMPTIVE


class Marks(Ranked):
    """Ranks that a test sets, and counts who was looked at."""

    preemptive = True

    def __init__(self, holds: float | None = inf) -> None:
        super().__init__()
        self.marks: dict[str, int] = {}
        self.holds = holds
        self.looks = 0

    def rank(self, request: Request) -> int:
        self.looks += 1
        return self.marks.get(request.request_id, 5)

    def rank_holds(self, request: Request) -> float | None:
        return self.holds


def eight_and_one(policy: Marks, num_waiting: int = 1) -> Any:
    """Eight residents in eight seats, all of rank 5, and who waits behind them."""
    scheduler = make_scheduler(policy, S=8, residents=8)
    for k in range(8 + num_waiting):
        scheduler.add(Job(f"j{k}", 4, 60).request())
    for _ in range(2):  # prompts; then those who came with them are looked at
        scheduler.update(scheduler.schedule(), [7] * 8)
    policy.looks = 0
    return scheduler


def steps(scheduler: Any, num: int) -> list[str]:
    """Run some steps; returns who was evicted."""
    evicted = []
    for _ in range(num):
        batch = scheduler.schedule()
        evicted += [r.request_id for r in scheduler.step.preempted]
        scheduler.update(batch, [7] * sum(batch.samples.tolist()))
    return evicted


def test_while_nobody_passes_residents_are_not_looked_at() -> None:
    policy = Marks()
    assert steps(eight_and_one(policy), 10) == []
    assert policy.looks <= 3 * 10  # the first of those who wait


def test_without_a_word_on_it_each_step_looks_at_all() -> None:
    policy = Marks(holds=None)
    scheduler = eight_and_one(policy)
    policy.marks["j3"] = 6  # of its own accord, between two steps
    assert steps(scheduler, 1) == ["j3"]
    assert policy.looks >= 8


def test_where_it_is_known_of_some_only_each_step_looks_at_all() -> None:
    policy = Marks()
    scheduler = eight_and_one(policy, num_waiting=2)
    steps(scheduler, 1)
    policy.holds = None  # of the one that comes now
    scheduler.abort("j2")
    steps(scheduler, 1)
    policy.marks["j3"] = 6
    assert steps(scheduler, 1) == ["j3"]


def test_a_newcomer_that_lacks_room_where_nobody_is_resident_is_held() -> None:
    policy = Marks()
    scheduler = make_scheduler(policy)
    scheduler.add(Job("j0", 4, 60).request())
    assert policy.preemption(scheduler.step, scheduler.waiting[0]) is HOLD


@pytest.mark.parametrize("holds", [0, 1, 5])
def test_a_rank_that_rises_is_seen_when_it_may_have(holds: int) -> None:
    policy = Marks(holds)
    scheduler = eight_and_one(policy)
    steps(scheduler, 12)
    assert policy.looks <= 12 * (8 / (holds + 1) + 3)
    policy.marks["j3"] = 6
    seen = [steps(scheduler, 1) for _ in range(holds + 1)]
    assert ["j3"] in seen


def test_a_policy_says_when_a_rank_rose_that_was_to_hold() -> None:
    policy = Marks()
    scheduler = eight_and_one(policy)
    policy.marks["j3"] = 6
    assert steps(scheduler, 3) == []
    policy.look_again()
    assert steps(scheduler, 1) == ["j3"]


def test_a_better_one_that_comes_passes_at_once() -> None:
    policy = Marks()
    scheduler = eight_and_one(policy)
    policy.marks |= {"new": 4, "j6": 4}
    scheduler.add(Job("new", 4, 9).request())
    assert steps(scheduler, 3) == ["j7"]


def test_many_that_pass_in_one_step_cost_a_few_looks_each() -> None:
    policy = Marks()
    scheduler = make_scheduler(policy, S=256, T=4096, residents=256, P=4096)
    for k in range(256):
        scheduler.add(Job(f"j{k}", [1], 60).request())
    for _ in range(2):
        scheduler.update(scheduler.schedule(), [7] * 256)
    for k in range(256):
        policy.marks[f"n{k}"] = 1
        scheduler.add(Job(f"n{k}", [1], 60).request())
    policy.looks = 0
    assert len(steps(scheduler, 1)) == 256
    assert policy.looks <= 12 * 256  # where each looks at all: 65,536


def test_who_was_admitted_in_this_step_may_be_the_victim() -> None:
    """A prompt of a better rank goes on behind newcomers that another policy let in, and lacks a block."""

    class NewcomersFirst(Ranked):
        def rank(self, request: Request) -> int:
            return request.priority

        @hookimpl
        def admission(self, step: Step) -> Any:
            yield from step.waiting
            yield step.running

    evicted: list[tuple[int, str]] = []

    def watch(outcome: Outcome, now: float) -> None:
        evicted.extend((outcome.scheduler.step.index, r.request_id) for r in outcome.scheduler.step.preempted)

    jobs = [Job("old", 4, 9, fields={"priority": 1})]
    jobs += [Job(f"n{k}", 4, 2, 0.005 + k / 1000, fields={"priority": 5 + k}) for k in range(3)]
    outcome = run(NewcomersFirst(), jobs, P=4, bs=4, watch=watch)
    assert evicted[0] == (1, "n2")
    assert "old" not in [name for _, name in outcome.evictions]


def test_residents_that_an_observer_missed_are_looked_at() -> None:
    class Deaf(Marks):
        @hookimpl
        def request_admitted(self, request: Request) -> None:
            self.queue.discard(request)  # and nothing of residents

    policy = Deaf()
    scheduler = eight_and_one(policy)
    policy.marks |= {"j8": 7, "new": 6}
    scheduler.abort("j2")
    steps(scheduler, 2)  # j8 is resident, and nobody was told
    scheduler.add(Job("new", 4, 9).request())
    assert steps(scheduler, 1) == ["j8"]


def test_nothing_is_kept_of_who_is_gone() -> None:
    policy = Marks()
    scheduler = eight_and_one(policy)
    steps(scheduler, 1)
    residents = policy._residents
    assert len(residents._order) == len(residents._due) == 8
    for request in list(scheduler.running):
        scheduler.abort(request.request_id)
    assert not residents._due and not residents._order
    run(policy, [Job(f"j{k}", 4, 5, 0.01 * k) for k in range(300)], residents=2)
    assert len(residents._calendar._heap) <= 110
