"""The base classes, and priority, sjf, srpt and edf on them."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest

from batchwright import HOLD, Limits, PolicyError, Request, Step, hookimpl
from batchwright.ranked import Ordered, Ranked
from batchwright.request import SLO
from batchwright_policies.edf import Edf
from batchwright_policies.priority import Priority
from batchwright_policies.sjf import Sjf
from batchwright_policies.srpt import Srpt
from policies.defining import Make, defines
from policies.drive import Job, Outcome, heavy_tail, make_scheduler, run


def job(name: str, prompt: int, output: int, at: float = 0.0, **fields: Any) -> Job:
    return Job(name, prompt, output, at, fields=fields)


def predicted(jobs: list[Job], noise: float = 0.0, seed: int = 5) -> list[Job]:
    """Each with a guess of its length, off by a factor of e^±noise or so."""
    rng = random.Random(seed)
    for one in jobs:
        one.fields["predicted_output_tokens"] = max(1, round(one.output * 2.718281828 ** rng.gauss(0, noise)))
    return jobs


# The base classes ------------------------------------------------------------------------------------------------


class ByNumber(Ranked):
    preemptive = True

    def rank(self, request: Request) -> int:
        return request.priority


def test_what_a_subclass_must_say():
    for policy, missing in ((Ordered(), "in_order"), (Ranked(), "rank")):
        scheduler = make_scheduler(policy)
        scheduler.add(job("a", 4, 2).request())
        with pytest.raises(PolicyError, match=f"must say {missing}"):
            scheduler.schedule()


def test_seats_by_default_only_where_nobody_pauses():
    limits = Limits(max_num_seqs=7)
    assert Sjf().defaults(limits) == {"max_num_residents": 7}
    assert Priority().defaults(limits) == {}


@pytest.mark.parametrize("policy", [Sjf(), Priority(), Srpt(), Edf()])
def test_with_nobody_waiting_residents_are_offered_as_a_whole(policy: Ranked):
    scheduler = make_scheduler(policy)
    for name in "abc":
        scheduler.add(job(name, 4, 9).request())
    scheduler.update(scheduler.schedule(), [7] * 3)
    scheduler.schedule()
    assert list(policy.admission(scheduler.step)) == [scheduler.running]


def test_and_also_where_nobody_who_waits_ranks_before_a_resident():
    scheduler = make_scheduler(Priority(), S=3)
    for k in range(6):
        scheduler.add(job(f"j{k}", 4, 9).request())
    scheduler.update(scheduler.schedule(), [7] * 3)
    scheduler.update(scheduler.schedule(), [7] * 3)
    assert len(scheduler.waiting) == 3
    assert list(scheduler.policy.slots["admission"].admission(scheduler.step)) == [scheduler.running]


@pytest.mark.parametrize("policy", [ByNumber(), Priority()])
def test_residents_that_do_not_all_find_a_place_run_by_rank(policy: Ranked):
    jobs = [job("late", 4, 8, priority=9), job("mid", 4, 8, priority=5), job("first", 4, 2, 0.02, priority=1)]
    outcome = run(policy, jobs, S=2)
    rows = [[name for name, _ in batch] for batch in outcome.batches]
    assert rows[2] == ["first", "mid"] and set(rows[3]) == {"first", "mid"}  # late pauses, and keeps its blocks
    assert outcome.evictions == []
    assert set(rows[4]) == {"mid", "late"}


def test_the_budget_goes_by_rank_to_cut_prompts_and_newcomers():
    jobs = [job("long", 90, 2, priority=5), job("high", 20, 2, 0.011, priority=1), job("low", 20, 2, 0.011, priority=9)]
    outcome = run(Priority(), jobs, T=32, S=8)
    assert outcome.batches[0] == [("long", 32)]
    assert outcome.batches[1] == [("high", 20), ("long", 12)]
    assert outcome.batches[2] == [("high", 1), ("long", 31)]
    assert outcome.batches[3] == [("long", 15), ("low", 17)]


def test_without_preemption_a_newcomer_passes_nobody():
    class Polite(ByNumber):
        preemptive = False

    jobs = [job("a", 4, 20, priority=5), job("b", 4, 20, priority=5), job("high", 4, 2, 0.02, priority=0)]
    outcome = run(Polite(), jobs, S=2)
    assert outcome.evictions == []
    assert outcome.admissions[-1][1] == "high" and outcome.admissions[-1][0] >= 20


def test_p10_a_blocked_newcomer_of_the_first_rank_strands_nobody():
    # It needs 6 of 8 blocks; "mid" ranks before it and "low" behind, and evicting low would not suffice.
    jobs = [
        job("mid", 12, 5, priority=1),
        job("low", 12, 5, priority=9),
        job("first", 24, 2, 0.02, priority=2),
    ]
    outcome = run(Priority(), jobs, P=8, bs=4)
    rows = [[name for name, _ in batch] for batch in outcome.batches]
    assert rows[1:4] == [["mid", "low"]] * 3
    assert outcome.evictions == []


@pytest.mark.parametrize("policy", [Priority, Sjf, Srpt, Edf])
def test_p10_where_it_ranks_before_all_residents(policy: type[Ranked]):
    """Blocks short of its need even if everybody behind it went: they run on."""

    class Sure(policy):  # type: ignore[valid-type, misc]
        @hookimpl
        def preemption(self, step: Step, request: Request) -> Any:
            return HOLD if request.is_waiting else super().preemption(step, request)

    fields = {"predicted_output_tokens": 5, "priority": 5, "deadline_s": 9.0}
    first = {"predicted_output_tokens": 1, "priority": 0, "deadline_s": 1.0}
    jobs = [job("a", 12, 5, **fields), job("b", 12, 5, **fields), job("first", 24, 2, 0.02, **first)]
    outcome = run(Sure(), jobs, P=8, bs=4)
    assert {name for name, _ in outcome.batches[2]} == {"a", "b"}
    assert outcome.evictions == [] and outcome.admissions[-1][1] == "first"


def test_nobody_is_evicted_in_vain():
    jobs = [job("mid", 12, 5, priority=1), job("low", 12, 5, priority=9), job("new", 24, 2, 0.02, priority=2)]
    assert run(Priority(), jobs, P=8, bs=4).evictions == []  # low's 3 or 4 blocks would not make it fit
    jobs[-1] = job("new", 12, 2, 0.02, priority=2)
    assert [name for _, name in run(Priority(), jobs, P=8, bs=4).evictions] == ["low"]


def test_who_ranks_behind_a_victim_does_not_take_its_blocks():
    jobs = [job("a", 12, 9, priority=1), job("b", 12, 9, priority=3), job("c", 4, 9, priority=5)]
    jobs += [job("new", 4, 2, 0.02, priority=2), job("worse", 4, 2, 0.02, priority=6)]
    outcome = run(Priority(), jobs, P=8, bs=4)
    first = outcome.evictions[0]
    assert first[1] == "c"
    assert "worse" not in [name for index, name in outcome.admissions if index <= first[0]]


def test_the_queue_begins_anew_where_an_observer_failed():
    class Shaky(Sjf):
        faults = 0

        def rank(self, request: Request) -> float:
            if request.request_id == "c" and not Shaky.faults:
                Shaky.faults += 1
                raise ZeroDivisionError
            return super().rank(request)

    scheduler = make_scheduler(Shaky(), S=1)
    for name in "abcd":
        scheduler.add(job(name, 4, 2).request())
    while scheduler.has_unfinished():
        batch = scheduler.schedule()
        scheduler.update(batch, [7] * len(batch))
    assert scheduler.num_observer_faults == Shaky.faults == 1


# priority --------------------------------------------------------------------------------------------------------


@defines(Priority)
def test_priority_p5_one_seat_for_one_newcomer_and_none_for_an_equal(make: Make):
    jobs = [job("a", 4, 12, priority=10), job("b", 4, 12, priority=10)]
    jobs += [job("high", 4, 6, 0.03, priority=0), job("equal", 4, 6, 0.04, priority=10)]
    outcome = run(make(), jobs, residents=2)
    assert [name for _, name in outcome.evictions] == ["b"]
    assert outcome.first_token("high") < 0.03
    assert outcome.requests["equal"].num_preemptions == outcome.requests["a"].num_preemptions == 0
    assert [name for _, name in outcome.admissions] == ["a", "b", "high", "b", "equal"]


@defines(Priority)
def test_priority_p4_a_victim_in_the_batch_is_taken_out_whole(make: Make):
    jobs = [job("C", 5, 9, priority=9), job("A", 8, 9, 0.005, priority=0)]
    seen: list[tuple[int, int]] = []

    def watch(outcome: Outcome, now: float) -> None:
        if outcome.scheduler.step.preempted and not seen:
            low, step = outcome.requests["C"], outcome.scheduler.step
            assert low.is_waiting and not low.block_table and step.batch == [outcome.requests["A"]]
            seen.append((step.budget, len(outcome.requests["A"].block_table)))

    outcome = run(make(), jobs, P=4, bs=4, T=8, watch=watch)
    assert seen == [(7, 3)]  # C's token went back to the budget
    assert [name for _, name in outcome.evictions] == ["C"]
    assert outcome.latency("A") < outcome.latency("C")


# sjf and srpt ----------------------------------------------------------------------------------------------------


@defines(Sjf)
def test_sjf_beats_fifo_in_the_mean(make: Make):
    jobs = predicted(heavy_tail(120, rate=12))
    assert run(make(ageing=0.0), jobs, S=4).mean_latency < 0.7 * run(fifo_of(4), jobs, S=4).mean_latency


def fifo_of(seats: int) -> Any:
    """First come, first served, in the same shape: decodes beside newcomers, and as many seats."""

    class Fifo(Ordered):
        def in_order(self, step: Step) -> Any:
            return step.waiting

    return Fifo()


@pytest.mark.parametrize("ageing", [20.0, 80.0])
def test_sjf_ageing_bounds_who_passes(ageing: float):
    short = [job(f"s{k}", 4, 10, 0.1 * k, predicted_output_tokens=10) for k in range(300)]
    long = job("long", 4, 10, 0.05, predicted_output_tokens=110)
    outcome = run(Sjf(ageing=ageing), [*short, long], S=1)
    names = [name for _, name in outcome.admissions]
    passed = [outcome.requests[n].arrival_s for n in names[: names.index("long")] if n != "s0"]
    bound = 0.05 + 100 / ageing
    assert max(passed) <= bound < max(passed) + 0.11  # who came by then, and no later one
    starved = run(Sjf(ageing=0.0), [*short, long], S=1)
    assert starved.admissions[-1][1] == "long"


def test_sjf_without_predictions_goes_by_the_declared_limit():
    jobs = [Job("first", 4, 9, max_tokens=9)]
    jobs += [Job(f"j{k}", 4, 3, 0.005, max_tokens=limit) for k, limit in enumerate((50, 7, 20))]
    assert [name for _, name in run(Sjf(), jobs, S=1).admissions] == ["first", "j1", "j2", "j0"]


@defines(Srpt)
def test_srpt_beats_fifo_in_the_mean_and_degrades_smoothly_with_noise(make: Make):
    means = []
    for noise in (0.0, 0.5, 1.0, 2.0, 4.0):
        runs = [run(make(ageing=0.0), predicted(heavy_tail(120, seed, rate=12), noise), S=4) for seed in range(3)]
        means.append(sum(outcome.mean_latency for outcome in runs) / 3)
    blind = sum(run(fifo_of(4), heavy_tail(120, seed, rate=12), S=4).mean_latency for seed in range(3)) / 3
    assert means[0] < 0.5 * blind
    assert means[0] < means[-1] < 1.2 * blind
    assert all(later < 1.6 * earlier + 0.05 for earlier, later in pairwise(means))  # no cliff


@defines(Srpt)
def test_srpt_passes_and_evicts_but_nobody_who_is_nearly_done(make: Make):
    jobs = [job("long", 4, 40, predicted_output_tokens=40), job("short", 4, 3, 0.1, predicted_output_tokens=3)]
    early = run(make(), jobs, residents=1)
    assert [name for _, name in early.evictions] == ["long"]
    jobs[1] = job("short", 4, 3, 0.345, predicted_output_tokens=3)
    assert run(make(ageing=0), jobs, residents=1).evictions == []  # 34 of its 40 tokens are there
    assert run(make(ageing=0, preemptible_share=1.0), jobs, residents=1).evictions != []
    assert run(make(ageing=0, preemptible_share=0.0), jobs, residents=1).evictions == []


def test_srpt_goes_on_when_a_prediction_is_exceeded():
    jobs = [job("liar", 4, 50, predicted_output_tokens=5), job("b", 4, 5, 0.2, predicted_output_tokens=5)]
    outcome = run(Srpt(), jobs, residents=1)
    assert outcome.evictions == [] and len(outcome.token_times["liar"]) == 50


# edf -------------------------------------------------------------------------------------------------------------


def met(outcome: Outcome) -> list[bool]:
    return [outcome.token_times[name][-1] <= (r.deadline_s or 0) for name, r in outcome.requests.items()]


@defines(Edf)
def test_edf_meets_deadlines_that_can_be_met(make: Make):
    jobs = [job(f"loose{k}", 16, 30, deadline_s=9.0) for k in range(8)]
    jobs += [job(f"tight{k}", 16, 10, 0.05 * k + 0.05, deadline_s=0.05 * k + 0.4) for k in range(6)]
    outcome = run(make(), jobs, S=4)
    assert all(met(outcome))


def test_edf_reads_the_slo_and_puts_others_last():
    slo = SLO(ttft_s=2.0)
    jobs = [job("now", 4, 9), job("none", 4, 2, 0.005), job("slo", 4, 2, 0.005, slo=slo)]
    jobs += [job("deadline", 4, 2, 0.005, deadline_s=1.0), job("tpot", 4, 2, 0.005, slo=SLO(tpot_s=1.0))]
    outcome = run(Edf(), jobs, residents=1)
    assert [name for _, name in outcome.admissions][1:] == ["deadline", "slo", "now", "none", "tpot"]
    assert [name for _, name in outcome.evictions] == ["now"]
