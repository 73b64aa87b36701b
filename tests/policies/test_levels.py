"""mlfq and plas: levels of attained service."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest

from batchwright.errors import ConfigError
from batchwright_policies.mlfq import Mlfq
from batchwright_policies.plas import Plas
from policies.defining import Make, defines
from policies.drive import Job, heavy_tail, make_scheduler, run
from policies.test_ranked import fifo_of


def job(name: str, prompt: int, output: int, at: float = 0.0, **fields: Any) -> Job:
    return Job(name, prompt, output, at, max_tokens=500, fields=fields)


def ranks_of(policy: Mlfq | Plas, request: Any, outputs: list[int]) -> list[int]:
    """Its level when it has had so many output tokens."""
    found = []
    for count in outputs:
        while request.num_output_tokens < count:
            request._tokens.append(7)
        found.append(policy.rank(request))
    return found


def test_a_request_goes_down_as_it_uses_its_quanta():
    policy = Mlfq(quantum=4, ratio=2, levels=4, iteration_tokens=100)
    short, long = job("a", 50, 99).request(), job("b", 700, 99).request()
    assert ranks_of(policy, short, [0, 3, 4, 11, 12, 27, 28, 400]) == [0, 0, 1, 1, 2, 2, 3, 3]
    # Its prompt takes 7 iterations: it joins the level of 8, and skips the one of 4.
    assert ranks_of(policy, long, [0, 1, 2, 17, 18]) == [1, 1, 2, 2, 3]


def test_a_prompt_beyond_all_quanta_joins_the_last_level():
    policy = Mlfq(quantum=1, levels=3, iteration_tokens=10)
    assert ranks_of(policy, job("a", 900, 99).request(), [0, 1, 50]) == [2, 2, 2]


@pytest.mark.parametrize("promoted", [False, True])
@pytest.mark.parametrize("prompt", [3, 40, 85])
@pytest.mark.parametrize("kind", [Mlfq, Plas])
def test_it_says_how_long_its_level_holds(kind: type[Mlfq | Plas], prompt: int, promoted: bool):
    policy = kind(quantum=2.5, ratio=2, levels=4, iteration_tokens=10)
    request = job("a", prompt, 99).request()
    if promoted:
        request._tokens.extend([7] * 5)
        policy._promoted[request] = 5
    levels = []
    for _ in range(60):
        levels.append((policy.rank(request), policy.rank_holds(request)))
        request._tokens.append(7)
    for place, (level, holds) in enumerate(levels[:20]):
        later = [other for other, _ in levels[place:]]
        assert max(later[: int(min(holds, 99)) + 1]) == level  # so long it does not rise
        assert holds == inf if level == 3 else later[int(holds) + 1] > level  # and then it does
    assert levels[0][0] != levels[-1][0] or levels[0][0] == 3


def test_service_before_and_after_the_first_token():
    policy = Mlfq(iteration_tokens=10)
    request = job("a", 35, 9).request()
    assert policy.service(request) == 0
    request._tokens.extend([7] * 3)
    assert policy.service(request) == 3.5 + 2


@defines(Mlfq)
def test_mlfq_beats_fifo_under_heavy_tails_and_not_with_equal_lengths(make: Make):
    tails = heavy_tail(120, rate=12)
    assert (
        run(make(quantum=32, starve_s=None), tails, S=4).mean_latency < 0.6 * run(fifo_of(4), tails, S=4).mean_latency
    )
    equal = [Job(f"e{k}", 64, 60, 0.12 * k, max_tokens=400) for k in range(60)]
    pays = run(make(quantum=16, starve_s=None), equal, S=4).mean_latency
    assert pays > 1.05 * run(fifo_of(4), equal, S=4).mean_latency


def stream(num: int, output: int = 8) -> list[Job]:
    """Short requests without a gap, each before the last one is done."""
    return [job(f"s{k}", 4, output, 0.07 * k) for k in range(num)]


@pytest.mark.parametrize("starve_s", [0.5, 1.5])
def test_who_starves_is_put_on_top(starve_s: float):
    jobs = [job("long", 4, 40), *stream(100)]
    policy = Mlfq(quantum=10, starve_s=starve_s)
    outcome = run(policy, jobs, S=1)
    assert outcome.latency("long") < 10 * starve_s
    never = run(Mlfq(quantum=10, starve_s=None), jobs, S=1)
    assert never.latency("long") > 6.5  # after the last of them
    assert not policy._since and not policy._promoted


def test_who_starves_without_blocks_is_put_on_top_too():
    jobs = [job("long", 4, 40), *stream(100)]
    policy = Mlfq(quantum=10, starve_s=1.0)
    outcome = run(policy, jobs, residents=1)
    assert outcome.requests["long"].num_preemptions
    assert outcome.latency("long") < 6.5 < run(Mlfq(quantum=10, starve_s=None), jobs, residents=1).latency("long")
    assert not policy._since and not policy._promoted


def test_waiting_begins_anew_when_the_policy_is_attached():
    scheduler = make_scheduler(Mlfq(starve_s=1.0), S=1)
    for name in "ab":
        scheduler.add(job(name, 4, 5).request())
    scheduler.update(scheduler.schedule(0), [7], 10**10)
    policy = Mlfq(starve_s=1.0)
    scheduler.swap_policy(policy)
    assert [(r.request_id, since) for r, since in policy._since.items()] == [("b", 10**10)]


# plas ------------------------------------------------------------------------------------------------------------


def programs() -> list[Job]:
    """One program of many short calls, and newcomers of one longer call each."""
    jobs = [job(f"big{k}", 16, 10, 0.004 * k, program_id="big") for k in range(40)]
    return jobs + [job(f"small{k}", 16, 14, 0.5 + 0.2 * k, program_id=f"small{k}") for k in range(6)]


@defines(Plas)
def test_plas_lets_short_programs_pass_a_long_one(make: Make):
    outcome = run(make(quantum=16, starve_s=None), programs(), S=1, residents=1)
    assert all(outcome.latency(f"small{k}") < 0.4 for k in range(6))
    assert outcome.token_times["big39"][-1] == max(times[-1] for times in outcome.token_times.values())


@defines(Plas, instead=Mlfq)
def test_plas_knows_programs_and_mlfq_only_calls(make: Make):
    outcome = run(make(quantum=16, starve_s=None), programs(), S=1, residents=1)
    assert max(outcome.latency(f"small{k}") for k in range(6)) < 0.4


def test_calls_without_a_program_are_their_own():
    policy = Plas(quantum=16)
    jobs = [job(f"j{k}", 4, 5 + k % 7, 0.02 * k) for k in range(30)]
    run(policy, jobs, S=2)
    assert not policy._served and not policy._open and not policy._idle


def test_only_so_many_idle_programs_are_remembered():
    policy = Plas(remembered=5)
    rng = random.Random(2)
    jobs = [job(f"j{k}", 4, 3, 0.02 * k, program_id=f"p{rng.randrange(40)}") for k in range(200)]
    run(policy, jobs, watch=lambda outcome, now: check_bounded(policy))
    assert len(policy._served) == len(policy._idle) == 5 and not policy._open


def check_bounded(policy: Plas) -> None:
    assert len(policy._idle) <= 5 and len(policy._served) <= 5 + len(policy._open)


def test_a_program_comes_back_with_what_it_was_served():
    policy = Plas(quantum=4, ratio=2, levels=4)
    jobs = [job("a1", 4, 10, program_id="a"), job("b1", 4, 2, 1.0, program_id="b")]
    run(policy, jobs)
    again, other, new = (job(n, 4, 5, program_id=n).request() for n in "abc")
    assert [policy.rank(r) for r in (again, other, new)] == [1, 0, 0]


@pytest.mark.parametrize("values", [{"quantum": 0}, {"ratio": 1}, {"levels": 1}, {"starve_s": 0}, {"remembered": -1}])
def test_wrong_parameters(values: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(values))):
        Plas(**values)
