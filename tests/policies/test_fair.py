"""vtc and dlpm: shares of clients."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from batchwright.request import Request
from batchwright_policies.dlpm import Dlpm
from batchwright_policies.lpm import Lpm
from batchwright_policies.vtc import Vtc
from policies.defining import Make, defines
from policies.drive import Job, Outcome, make_scheduler, run
from policies.test_ranked import fifo_of
from toolbox import prompt_of

INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0


def service(outcome: Outcome) -> dict[str | None, float]:
    """What each client got: its weight's worth of prompt tokens once admitted, and of output tokens."""
    got: Counter[str | None] = Counter()
    for request in outcome.requests.values():
        if request.first_scheduled_ns is not None:
            got[request.client_id] += INPUT_WEIGHT * request.num_prompt_tokens / request.weight
        got[request.client_id] += OUTPUT_WEIGHT * request.num_output_tokens / request.weight
    return got


def floods(*, weights: tuple[float, float] = (1.0, 1.0)) -> list[Job]:
    """Two clients with a backlog from the start: one sends many long requests first, the other short ones behind."""
    jobs = [
        Job(f"a{k}", 60, 40, 0.0, max_tokens=40, fields={"client_id": "a", "weight": weights[0]}) for k in range(150)
    ]
    jobs += [
        Job(f"b{k}", 20, 10, 0.0, max_tokens=10, fields={"client_id": "b", "weight": weights[1]}) for k in range(600)
    ]
    return jobs


class Gap:
    """The most that the services of two clients grew apart, over all intervals."""

    def __init__(self, one: str, other: str) -> None:
        self.one, self.other = one, other
        self.lowest = self.highest = 0.0

    def __call__(self, outcome: Outcome, now: float) -> None:
        got = service(outcome)
        difference = got.get(self.one, 0.0) - got.get(self.other, 0.0)
        self.lowest, self.highest = min(self.lowest, difference), max(self.highest, difference)

    @property
    def most(self) -> float:
        return self.highest - self.lowest


def most_tokens(seats: int) -> int:
    """Tokens that the running batch holds at most."""
    return seats * (60 + 40)


@pytest.mark.parametrize("until", [2.0, 6.0])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 3.0)])
def test_vtc_bounds_the_gap_of_two_backlogged_clients_by_its_theorem(until: float, weights: tuple[float, float]):
    gap = Gap("a", "b")
    outcome = run(Vtc(), floods(weights=weights), S=8, until=until, watch=gap)
    assert {r.client_id for r in outcome.scheduler.waiting} == {"a", "b"}  # both still have a backlog
    assert gap.most <= BOUND
    share = Counter(r.client_id for r in outcome.requests.values() if r.first_scheduled_ns is not None)
    assert min(share.values()) >= 5  # and both are served


def gap_until(make: Make, until: float) -> float:
    gap = Gap("a", "b")
    outcome = run(make(), floods(), S=8, until=until, watch=gap)
    assert {"a", "b"} <= {r.client_id for r in outcome.scheduler.waiting}  # both have a backlog all the while
    return gap.most


BOUND = 2 * max(INPUT_WEIGHT * 60, OUTPUT_WEIGHT * most_tokens(8))


@defines(Vtc)
def test_vtc_keeps_the_gap_where_others_let_it_grow(make: Make):
    early, late = gap_until(make, 1.5), gap_until(make, 6.0)
    assert max(early, late) <= BOUND
    assert late <= early + INPUT_WEIGHT * 60 + OUTPUT_WEIGHT * 40  # it does not grow but for a request


def test_under_fifo_the_gap_grows_with_time():
    gaps = [gap_until(lambda: fifo_of(8), until) for until in (1.5, 3.0, 6.0)]
    assert gaps[1] > 1.6 * gaps[0] and gaps[2] > 1.6 * gaps[1] and gaps[2] > 3 * BOUND


@defines(Vtc)
def test_vtc_gives_nothing_for_having_been_away(make: Make):
    """A client that comes back is served alike from then on, and not first until it has caught up."""
    jobs = floods()[:150] + [Job(f"b{k}", 20, 10, 3.0, max_tokens=10, fields={"client_id": "b"}) for k in range(400)]
    at_first: dict[str | None, float] = {}

    def watch(outcome: Outcome, now: float) -> None:
        if now >= 3.0 and not at_first:
            at_first.update(service(outcome))

    later = service(run(make(), jobs, S=8, until=6.0, watch=watch))
    grown = {client: later[client] - at_first.get(client, 0.0) for client in later}
    assert 0.7 < grown["a"] / grown["b"] < 1.4


def test_vtc_lifts_to_the_last_that_left_where_nobody_waits():
    policy = Vtc()
    scheduler = make_scheduler(policy)
    for name in ("a1", "b1"):
        scheduler.add(Job(name, 10, 3, fields={"client_id": name[0]}).request())
        while scheduler.has_unfinished():
            batch = scheduler.schedule()
            scheduler.update(batch, [7] * len(batch))
    assert policy._counters.served == {"a": 10 + 2 * 3, "b": 10 + 10 + 2 * 3}  # b begins where a left the queue
    assert not policy._charged and not policy._counters._open


def test_vtc_charges_a_prompt_once_and_evicts_the_client_served_most():
    jobs = [Job(f"{c}{k}", 8, 20, fields={"client_id": c}) for c in "ab" for k in range(2)]
    jobs += [Job("a9", 8, 4, fields={"client_id": "a"})]
    policy = Vtc()
    seen: list[float] = []

    def watch(outcome: Outcome, now: float) -> None:
        total = sum(service(outcome).values())
        assert sum(policy._counters.served.values()) == pytest.approx(total)
        counters = policy._counters.served
        seen.extend(counters[v.client_id] - min(counters.values()) for v in outcome.scheduler.step.preempted)

    outcome = run(policy, jobs, P=14, bs=4, watch=watch)
    assert outcome.evictions and min(seen) >= 0 and max(seen) > 0


def test_vtc_charges_nobody_for_being_looked_at():
    policy = Vtc()
    scheduler = make_scheduler(policy)
    for name in ("a1", "b1", "a2"):
        scheduler.add(Job(name, 10, 3, fields={"client_id": name[0]}).request())
    assert len(list(policy.in_order(scheduler.step))) == 3
    assert not policy._counters.ahead and set(policy._counters.served.values()) == {0.0}


def test_vtc_forgets_clients_that_the_floor_has_passed():
    jobs = [Job(f"c{k}", 10, 3, 0.02 * k, fields={"client_id": f"c{k}"}) for k in range(1500)]
    policy = Vtc()
    most = 0

    def watch(outcome: Outcome, now: float) -> None:
        nonlocal most
        most = max(most, len(policy._counters.served))

    run(policy, jobs, watch=watch)
    assert most < 300


def test_vtc_remembers_a_debt_that_the_floor_has_not_passed():
    policy = Vtc()

    def watch(outcome: Outcome, now: float) -> None:
        policy._many = 0  # look for some to forget in every step

    jobs = [Job("big", 4000, 3, fields={"client_id": "big"})]
    jobs += [Job(f"s{k}", 4, 200, 0.0, fields={"client_id": "small"}) for k in range(4)]
    jobs += [Job("big2", 4, 2, 0.5, fields={"client_id": "big"}), Job("s9", 4, 2, 0.5, fields={"client_id": "small"})]
    outcome = run(policy, jobs, S=3, T=4096, watch=watch)
    order = [name for _, name in outcome.admissions]
    assert order.index("s9") < order.index("big2")


# dlpm ------------------------------------------------------------------------------------------------------------


def local(num: int = 100, *, long: int = 96) -> list[Job]:
    """Client a floods with prompts that share a long prefix; b's prompts share another, and come behind."""
    jobs = []
    for client in "ab":
        prefix = prompt_of(client, long)
        for k in range(num):
            tokens = [*prefix, *prompt_of(f"{client}{k}", 12)]
            jobs.append(Job(f"{client}{k}", tokens, 10, 0.0, max_tokens=10, fields={"client_id": client}))
    return jobs


def extended(outcome: Outcome) -> dict[str | None, float]:
    """Service as dlpm counts it: prompt tokens computed, and output."""
    got: Counter[str | None] = Counter()
    for r in outcome.requests.values():
        if r.first_scheduled_ns is not None:
            got[r.client_id] += r.num_prompt_tokens - r.num_cached + OUTPUT_WEIGHT * r.num_output_tokens
    return got


def lead(policy: Any, until: float = 0.7, **settings: Any) -> float:
    most = 0.0

    def watch(outcome: Outcome, now: float) -> None:
        nonlocal most
        got = extended(outcome)
        most = max(most, got.get("a", 0.0) - got.get("b", 0.0))

    outcome = run(policy, local(), S=4, watch=watch, until=until, **settings)
    assert {r.client_id for r in outcome.scheduler.waiting} == {"a", "b"}
    return most


@defines(Dlpm)
def test_dlpm_bounds_the_lead_of_a_client(make: Make):
    # A quantum, and what the batch can be charged beyond it.
    assert lead(make(quantum=150.0)) <= 150 + 4 * (108 + 2 * 10)
    assert lead(make(quantum=1e9)) > 150 + 4 * (108 + 2 * 10)  # as lpm: the longest prefix wins every time


def test_dlpm_is_bounded_where_lpm_is_not():
    assert lead(Lpm(fifo_above=1000)) > 2 * lead(Dlpm(quantum=150.0))


def interleaved(num: int = 60) -> list[Job]:
    """Each client changes between two conversations whose prefixes do not both fit the pool's free part."""
    jobs = []
    for k in range(num):
        for client in "ab":
            prefix = prompt_of(f"{client}{k % 3}", 160)
            tokens = [*prefix, *prompt_of(f"{client}-{k}", 8)]
            jobs.append(Job(f"{client}{k}", tokens, 4, 0.0, max_tokens=4, fields={"client_id": client}))
    return jobs


@defines(Dlpm, instead=Vtc)
def test_dlpm_hits_the_cache_more_often_than_vtc(make: Make):
    few = 26  # blocks: two prompts, or a prompt and one cached prefix
    outcome = run(make(), interleaved(), S=1, P=few)
    cached = sum(r.num_cached for r in outcome.requests.values())
    assert cached > 0.8 * 160 * len(outcome.requests)


def test_dlpm_grants_as_many_quanta_as_somebody_needs():
    policy = Dlpm(quantum=10.0)
    outcome = run(policy, local(6), S=2)
    assert len(outcome.requests) == 12
    assert not policy._served and not policy._open


def test_dlpm_compares_so_many_of_each_client():
    policy = Dlpm(scan=6)
    scheduler = make_scheduler(policy, S=1)
    for job in local(20):
        scheduler.add(job.request())
    assert [r.request_id for r in policy._clients.oldest(6)] == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert len(list(policy.in_order(scheduler.step))) == 6


def test_a_charge_is_rounded_alike_whatever_the_step_keeps_its_rows_in() -> None:
    """A core that goes ahead keeps them in a list now and then: a tie must not fall otherwise then."""
    rows = [Request(f"r{k}", [1, 2], client_id="a", weight=3.0) for k in range(7)]
    counters: list[float] = []
    for kept in (tuple(rows), list(rows)):
        policy = Vtc()
        policy._counters.served["a"] = 100.1
        step: Any = SimpleNamespace(sampled=kept)
        for _ in range(5):
            policy.step_finished(step)
        counters.append(policy._counters.served["a"])
    assert counters[0] == counters[1] == pytest.approx(100.1 + 5 * 7 * 2 / 3)
