"""lpm and hrrn: who has the most of its prompt in the prefix cache, and who waited for it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from batchwright_policies.hrrn import Hrrn
from batchwright_policies.lpm import Lpm
from policies.defining import Make, defines
from policies.drive import Job, Outcome, make_scheduler, percentile, run
from policies.test_ranked import fifo_of
from toolbox import prompt_of


def shared(name: str, prefix: str, own: int = 8, length: int = 64) -> list[int]:
    return [*prompt_of(prefix, length), *prompt_of(name, own)]


def conversations(num: int = 60, seed: int = 1) -> list[Job]:
    """Three conversations, mixed; the pool holds the prefix of one beside a running request."""
    rng = random.Random(seed)
    return [Job(f"j{k}", shared(f"j{k}", f"c{rng.randrange(3)}", length=160), 4) for k in range(num)]


@defines(Lpm)
def test_lpm_computes_fewer_prompt_tokens(make: Make):
    computed = run(make(), conversations(), S=1, P=26).num_prefill_tokens
    assert computed < 0.25 * sum(168 for _ in range(60))


def l5_jobs(num: int = 60) -> list[Job]:
    """One cached prompt after the other, and one that shares nothing."""
    jobs = [Job("warm", shared("warm", "c"), 2)]
    jobs += [Job(f"c{k}", shared(f"c{k}", "c"), 2, 0.05 + 0.02 * k) for k in range(num)]
    return [*jobs, Job("alone", 72, 2, 0.051)]


def passes(outcome: Outcome, name: str) -> int:
    """Admissions of later arrivals before it was admitted."""
    mine = outcome.requests[name].arrival_index
    order = [n for _, n in outcome.admissions]
    return sum(outcome.requests[n].arrival_index > mine for n in order[: order.index(name)])


@pytest.mark.parametrize("most", [1, 5, 12])
def test_l5_ageing_bounds_how_often_one_is_passed(most: int):
    policy = Lpm(max_passes=most)
    outcome = run(policy, l5_jobs(), S=1, T=64)
    assert passes(outcome, "alone") == most
    assert not policy._passes


def test_l5_without_ageing_it_starves_and_the_detector_says_so():
    from batchwright import Engine, EngineConfig, Request, SamplingParams
    from fake_backend import FakeBackend
    from toolbox import Tape

    def starved(policy: Lpm) -> tuple[list[dict[str, Any]], int]:
        tape = Tape()
        config = EngineConfig.parse({"max_num_seqs": 1, "max_num_residents": 1, "detectors": {"starvation_passes": 20}})
        backend = FakeBackend(num_blocks=64, block_size=16)
        with Engine(config, backend=backend, policy=policy, plugins=[tape]) as engine:
            for job in sorted(l5_jobs(50), key=lambda job: job.at):
                tokens = prompt_of(job.name, job.prompt) if isinstance(job.prompt, int) else job.prompt
                engine.add_request(Request(job.name, tokens, SamplingParams(max_tokens=2, ignore_eos=True)))
                engine.advance()
            while engine.has_unfinished():
                engine.advance()
        return tape.events("starvation"), [name for _, name in tape.admitted].index("alone")

    events, place = starved(Lpm())
    assert len(events) == 1 and place == 51  # after all of them
    events, place = starved(Lpm(max_passes=10))
    assert events == [] and place < 30


def test_lpm_goes_by_arrival_in_a_long_queue():
    jobs = [Job("warm", shared("warm", "c"), 2)]
    jobs += [Job(f"u{k}", 20, 2, 0.05) for k in range(4)] + [Job("cached", shared("x", "c"), 2, 0.05)]

    def order(limit: int) -> list[str]:
        return [name for _, name in run(Lpm(fifo_above=limit), jobs, S=1).admissions]

    assert order(5) == ["warm", "cached", "u0", "u1", "u2", "u3"]
    assert order(4) == ["warm", "u0", "cached", "u1", "u2", "u3"]  # from the second on four wait


def test_lpm_offers_one_of_several_with_the_same_uncached_prefix_early():
    names = ["a1", "a2", "b1", "a3", "b2"]
    jobs = [Job(name, shared(name, name[0]), 3) for name in names]
    outcome = run(Lpm(), jobs, S=2, T=256)
    assert [name for _, name in outcome.admissions] == ["a1", "b1", "a2", "a3", "b2"]
    assert {name: outcome.requests[name].num_cached for name in names} == {
        "a1": 0,
        "b1": 0,
        "a2": 64,
        "a3": 64,
        "b2": 64,
    }


def test_lpm_counts_no_passes_without_ageing():
    policy = Lpm()
    run(policy, l5_jobs(20), S=1, watch=lambda outcome, now: None if not policy._passes else pytest.fail("it counts"))


# hrrn ------------------------------------------------------------------------------------------------------------


def chats(seed: int, num: int = 200, rate: float = 30.0) -> list[Job]:
    """Turns of six conversations of which the pool holds three, and one in ten that shares nothing."""
    rng = random.Random(seed)
    at = 0.0
    jobs = []
    for k in range(num):
        at += rng.expovariate(rate)
        prompt = 1920 if rng.random() < 0.1 else shared(f"j{k}", f"c{rng.randrange(6)}", length=1920)
        jobs.append(Job(f"j{k}", prompt, 1, at))
    return jobs


def ttfts(make: Any, seed: int) -> list[float]:
    outcome = run(make(), chats(seed), S=1, P=400, T=4096)
    return [outcome.first_token(name) for name in outcome.requests]


@defines(Hrrn, instead=Lpm)
def test_hrrn_keeps_lpms_mean_and_mends_its_p99(make: Make):
    seeds = range(1, 5)
    mine = [ttfts(make, seed) for seed in seeds]
    other = [ttfts(lambda: Lpm(fifo_above=1000), seed) for seed in seeds]
    assert sum(map(sum, mine)) < 1.1 * sum(map(sum, other))
    tails = [percentile(a, 0.99) / percentile(b, 0.99) for a, b in zip(mine, other, strict=True)]
    assert max(tails) < 1 and sum(tails) / 4 < 0.85


@defines(Hrrn)
def test_hrrn_is_well_below_fifo_in_the_mean(make: Make):
    assert sum(ttfts(make, 1)) < 0.3 * sum(ttfts(lambda: fifo_of(1), 1))


def test_hrrn_orders_by_waiting_per_token_left():
    policy = Hrrn(scan=3, base_tokens=0)
    scheduler = make_scheduler(policy, S=1)
    for name, prompt, at in (("old", 250, 0.0), ("mid", 10, 0.8), ("new", 20, 0.9), ("later", 1, 0.9)):
        scheduler.add(Job(name, prompt, 2, at).request())
    step = scheduler.step
    step.now = 10**9
    # 1 s / 250, 0.2 s / 10, 0.1 s / 20; who is beyond the scan comes last.
    assert [r.request_id for r in policy.in_order(step)] == ["mid", "new", "old", "later"]


def test_hrrn_puts_the_shorter_of_two_that_just_came_first():
    policy = Hrrn()
    scheduler = make_scheduler(policy, S=1)
    for name, prompt in (("a", 30), ("b", 10)):
        scheduler.add(Job(name, prompt, 2).request())
    scheduler.schedule(0)
    assert scheduler.step.batch[0].request_id == "b"
