"""A policy that decides by chance, within the rules or outside them, and notes everything it sees.

Two objects with equal parameters decide alike as long as they are asked the same questions in the same situations:
that is what the property tests hold the fast scheduler and the reference to.
"""

from __future__ import annotations

import random
from typing import Any

from pydantic import Field

from batchwright.hookspecs import HOLD, Refusal, hookimpl
from batchwright.policy import Params, Policy
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams


class RandomPolicyParams(Params):
    seed: int = 0
    counts_decodes: bool = True
    fault_rate: float = Field(default=0.0, ge=0, le=1)
    refusal_rate: float = 0.0
    hold_rate: float = 0.3
    cut_rate: float = 0.5
    reserves: bool = True
    steady_rate: float = 0.0


class RandomPolicy(Policy):
    """Offers in any order and form, cuts, reserves and evicts at random."""

    Params = RandomPolicyParams
    params: RandomPolicyParams

    def __init__(self, params: RandomPolicyParams | None = None, **values: object) -> None:
        super().__init__(params, **values)
        self.rng = random.Random(self.params.seed)
        self.budget_counts_decodes = self.params.counts_decodes
        self.log: list[Any] = []
        self.ended: list[Request] = []

    # What it sees -------------------------------------------------------------------------------------------

    def note(self, hook: str, step: Any = None, *requests: Request | None) -> None:
        seen: list[Any] = [hook]
        if step is not None:
            seen += [step.index, step.now, step.end, step.budget, step.free_blocks, step.num_residents, step.lacking]
            seen += [ids(step.batch), ids(step.preempted), ids(step.sampled), ids(step.finished)]
        for r in requests:
            seen.append(r if r is None else look(r))
            if step is not None and r is not None:
                seen += [step.num_cached(r), [step.blocks_needed(r, n) for n in (1, r.num_tokens, r.num_tokens + 5)]]
        self.log.append(tuple(map(repr, seen)))

    def note_queues(self, hook: str, step: Any) -> None:
        if self.chance(0.5):
            return  # what is found lazily is not always found early
        queues = [ids(q) for q in (step.waiting, step.running, step.prefilling, step.decodes, step.evictable)]
        edges = [ids(step.evictable[i : i + 1]) for i in (0, -1)] if step.evictable else None
        self.log.append((hook, repr(queues), repr(edges), len(step.evictable), step.rng.random()))

    def chance(self, rate: float) -> bool:
        return self.rng.random() < rate

    def faults(self) -> bool:
        if not self.params.fault_rate:
            return False
        faulty = self.chance(self.params.fault_rate)
        if faulty and self.chance(0.3):
            raise ZeroDivisionError("a fault of the policy")
        return faulty

    # Decisions ----------------------------------------------------------------------------------------------

    @hookimpl
    def admission(self, step):
        self.note("admission", step)
        self.note_queues("admission", step)
        if self.chance(self.params.steady_rate):  # the road of a batch of decodes
            yield step.running
            yield from [r for r in step.waiting if step.budget and not r.num_scheduled]
            return
        for _ in range(self.rng.randint(0, 6)):
            offer = self.some_offer(step)
            if offer is None:
                continue
            yield offer
            if isinstance(offer, Request):
                self.note("offered", step, offer)
            elif self.chance(0.2):
                self.note_queues("offered", step)
        if self.faults():
            yield self.bad_offer(step)
        if self.params.fault_rate and self.chance(0.05):
            return  # perhaps nothing runs
        yield [r for r in step.running if not r.num_scheduled]
        for request in step.waiting:
            if step.batch and self.chance(0.5):
                break
            if not request.num_scheduled:
                yield request

    def some_offer(self, step):
        free = [r for r in (*step.waiting, *step.running) if not r.num_scheduled]
        kind = self.rng.randrange(7)
        if kind == 0 and untouched(step.running):
            return step.running
        if kind == 1 and untouched(step.decodes):
            return step.decodes
        if kind == 2 and untouched(step.prefilling):
            return step.prefilling
        if kind == 3:
            return self.rng.sample(free, self.rng.randint(0, len(free)))
        if kind == 4:
            return tuple(r for r in step.running if not r.num_scheduled)
        return self.rng.choice(free) if free else None

    def bad_offer(self, step):
        stranger = Request("stranger", [1, 2], SamplingParams(max_tokens=1))
        choices = [stranger, 7, None, [stranger], "abc", [None], *self.ended[-1:], *step.batch[:1], step.batch[:1]]
        return self.rng.choice(choices)

    @hookimpl
    def chunking(self, step, request):
        self.note("chunking", step, request)
        most = min(request.num_pending, step.budget)
        if self.faults():
            return self.rng.choice([-1, most + 1, "3", 1.0, True, [1]])
        if self.chance(0.15):
            return None
        if step.batch and self.chance(0.1):
            return 0
        return self.rng.randint(1, most) if self.chance(self.params.cut_rate) else most

    @hookimpl
    def reservation(self, step, request):
        self.note("reservation", step, request)
        if self.faults():
            return self.rng.choice([-1, "3", 2.5, False])
        if not self.params.reserves or self.chance(0.2):
            return None
        return self.rng.choice([0, request.num_tokens, request.num_tokens + 3, 10**6, self.rng.randint(0, 30)])

    @hookimpl
    def preemption(self, step, request):
        self.note("preemption", step, request)
        self.note_queues("preemption", step)
        if self.faults():
            bad = [*step.waiting, *step.preempted, *self.ended[-1:], "nobody", 0]
            return self.rng.choice(bad)
        if self.chance(0.1):
            return None
        holds = request.is_waiting or step.batch or step.preempted
        if holds and self.chance(self.params.hold_rate):
            return HOLD
        residents = [r for r in dict.fromkeys((*step.running, *step.batch)) if r.is_resident]
        if step.batch and self.chance(0.4):
            return step.batch[0]  # others may have adopted what it was to fill
        return self.rng.choice(residents) if residents else HOLD

    @hookimpl
    def arrival(self, request):
        self.note("arrival", None, request)
        if self.faults():
            return self.rng.choice([False, 0, "no"])
        return Refusal("by chance") if self.chance(self.params.refusal_rate) else self.rng.choice([True, None])

    # Observers ----------------------------------------------------------------------------------------------

    @hookimpl
    def policy_attached(self, step):
        self.note("policy_attached", step)
        self.note_queues("policy_attached", step)

    @hookimpl
    def step_started(self, step):
        self.note("step_started", step)
        self.note_queues("step_started", step)
        self.faults()

    @hookimpl
    def step_finished(self, step, result):
        self.note("step_finished", step, *step.batch)
        self.log.append((list(result.token_ids), result.elapsed_ns, sorted(result.failed)))
        self.log.append((step.num_prefill_tokens, step.num_decodes, step.num_recomputed))

    @hookimpl
    def request_arrived(self, request):
        self.note("request_arrived", None, request)

    @hookimpl
    def request_admitted(self, step, request):
        self.note("request_admitted", step, request)

    @hookimpl
    def request_preempted(self, step, victim, request):
        self.note("request_preempted", step, victim)
        self.log.append(request.request_id if request is not None else None)

    @hookimpl
    def request_finished(self, request, reason):
        self.ended.append(request)
        self.log.append((reason, *look(request)))


def untouched(requests: Any) -> bool:
    return all(not r.num_scheduled for r in requests)


def ids(requests: Any) -> list[str]:
    return [r.request_id for r in requests]


def look(r: Request) -> tuple[Any, ...]:
    """All that a policy may see of a request."""
    num_cached = r.num_cached if r.is_resident else None  # what an undone admission leaves there says nothing
    counts = (r.num_tokens, r.num_computed, num_cached, r.num_scheduled, r.num_pending, r.max_tokens)
    history = (r.num_preemptions, r.num_recomputed, r.first_scheduled_ns, r.first_token_ns, r.last_token_ns)
    flags = (r.is_waiting, r.is_resident, r.is_prefilling, r.is_decode, r.is_finished, r.finish_reason)
    # Looking at tokens settles them, and what nobody looks at must be right as well.
    tokens = list(r.output_token_ids) if r.num_tokens % 5 == 0 or r.is_finished else None
    return (r.request_id, r.arrival_index, *counts, *history, *flags, list(r.block_table), tokens)
