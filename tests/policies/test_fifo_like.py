"""orca, static_batch, no_evict, max_utilization: by arrival, each with its own rule of who starts."""

from __future__ import annotations

import random

import pytest

from batchwright import Policy
from batchwright_policies.max_utilization import MaxUtilization
from batchwright_policies.no_evict import NoEvict
from batchwright_policies.orca import Orca
from batchwright_policies.static_batch import StaticBatch
from policies.defining import Make, defines
from policies.drive import Job, Outcome, run


def some_jobs(num: int = 12, seed: int = 3) -> list[Job]:
    rng = random.Random(seed)
    return [Job(f"j{k}", rng.randint(3, 30), rng.randint(2, 20), at=0.02 * k) for k in range(num)]


def admitted(outcome: Outcome) -> list[str]:
    return [name for _, name in outcome.admissions]


@defines(Orca)
def test_orca_whole_prompts_join_running_decodes(make: Make) -> None:
    jobs = [Job("a", 8, 6), Job("b", 20, 4, at=0.015), Job("c", 8, 3, at=0.015)]
    outcome = run(make(), jobs, T=24, bs=4)
    assert outcome.batches[:4] == [
        [("a", 8)],
        [("a", 1)],
        [("a", 1), ("b", 20)],  # c would have to be cut: 3 tokens of the budget are left
        [("a", 1), ("b", 1), ("c", 8)],
    ]


@pytest.mark.parametrize("policy", [Orca, NoEvict, StaticBatch])
@pytest.mark.parametrize("num_blocks", [13, 20])
def test_who_reserves_to_the_end_evicts_nobody_and_nobody_overtakes(policy: type[Policy], num_blocks: int) -> None:
    outcome = run(policy(), some_jobs(), P=num_blocks, bs=4, T=64)
    assert outcome.evictions == []
    assert admitted(outcome) == [f"j{k}" for k in range(12)]


@pytest.mark.parametrize("policy", [Orca, NoEvict, StaticBatch])
def test_nor_on_any_other_pool(policy: type[Policy]) -> None:
    others = 0
    for seed in range(12):
        rng = random.Random(seed)
        shape = {"P": rng.randint(13, 24), "bs": 4, "T": rng.choice([50, 80, 120]), "S": rng.randint(2, 12)}
        assert run(policy(), some_jobs(20, seed), **shape).evictions == [], f"seed {seed}"
        others += len(run(MaxUtilization(), some_jobs(20, seed), **shape).evictions)
    assert others > 50


def test_and_others_evict_on_that_pool() -> None:
    assert run(MaxUtilization(), some_jobs(), P=13, bs=4, T=64).evictions


@pytest.mark.parametrize("policy", [Orca, StaticBatch])
def test_who_never_cuts_a_prompt_says_so(policy: type[Policy]) -> None:
    outcome = run(policy(), some_jobs(), T=50, bs=4)
    whole = {(name, outcome.requests[name].num_prompt_tokens) for name in outcome.requests}
    assert whole <= {row for rows in outcome.batches for row in rows}
    assert policy.chunks is False


@defines(StaticBatch)
def test_static_batch_admits_nobody_while_anybody_runs(make: Make) -> None:
    outcome = run(make(), some_jobs(), T=200, S=4)
    starts = sorted({index for index, _ in outcome.admissions})
    assert len(starts) >= 3
    ends = {name: index for index, rows in enumerate(outcome.batches) for name, _ in rows}  # its last step
    for start in starts[1:]:
        before = [name for index, name in outcome.admissions if index < start]
        assert all(ends[name] < start for name in before)


@defines(NoEvict)
def test_no_evict_never_evicts_where_fifo_does(make: Make) -> None:
    jobs = [Job(f"j{k}", 8, 24) for k in range(6)]
    outcome = run(make(), jobs, P=16, bs=4, T=6)
    assert outcome.evictions == []
    assert outcome.batches[1] == [("j0", 2), ("j1", 4)]  # prompts are cut, and wait for no other
    assert max(map(len, outcome.batches)) == 2  # 31 tokens each: 8 of 16 blocks


@defines(MaxUtilization)
def test_max_utilization_fills_the_pool_and_pauses_the_last_started(make: Make) -> None:
    jobs = [Job(f"j{k}", 8, 24) for k in range(5)] + [Job("late", 4, 3, at=0.02)]
    outcome = run(make(), jobs, P=16, bs=4, T=64)
    assert len(outcome.batches[0]) == 5  # by present length: 2 blocks each
    assert "late" in [name for name, _ in outcome.batches[2]] and len(outcome.batches[2]) == 6  # beside the decodes
    paused = [name for _, name in outcome.evictions]
    assert paused[:2] == ["late", "j4"]
    steps = {index for index, _ in outcome.evictions}
    assert steps and steps.isdisjoint(index for index, _ in outcome.admissions)


def test_max_utilization_needs_fewer_steps_than_reserving() -> None:
    jobs = [Job(f"j{k}", 8, 10, max_tokens=40) for k in range(12)]
    steps = {make: len(run(make(), jobs, P=24, bs=4, T=64, S=12).batches) for make in (MaxUtilization, NoEvict)}
    assert 2 * steps[MaxUtilization] < steps[NoEvict]
