"""Policies that each break one thing. The docstring says what; ``CAUGHT_BY`` which check is meant for it."""

from __future__ import annotations

import random
import time
from collections import deque
from typing import Any, ClassVar

from pydantic import Field

from batchwright import HOLD, Card, Params, Policy, Request, hookimpl

CAUGHT_BY: dict[type[Policy], str] = {}


def caught_by(check: str) -> Any:
    def note(cls: type[Policy]) -> type[Policy]:
        CAUGHT_BY[cls] = check
        return cls

    return note


class Sound(Policy):
    """Residents, then newcomers in order: nothing wrong with it."""

    @hookimpl
    def admission(self, step):
        yield step.decodes
        yield step.prefilling
        yield from self.newcomers(step)

    def newcomers(self, step):
        for request in step.waiting:
            yield request
            if not request.num_scheduled:
                return

    @hookimpl
    def preemption(self, step, request):
        if request.is_waiting:
            return HOLD
        return step.evictable[-1] if step.evictable else request


# Answers ------------------------------------------------------------------------------------------------------


@caught_by("answers")
class AnswersFractions(Sound):
    """Half of the tokens, as a float."""

    @hookimpl
    def chunking(self, step, request):
        return min(request.num_pending, step.budget) / 2


@caught_by("answers")
class RaisesNowAndThen(Sound):
    """Divides by zero where exactly three are resident."""

    @hookimpl
    def chunking(self, step, request):
        return max(1, min(request.num_pending, step.budget) // abs(len(step.running) - 3))


@caught_by("answers")
class ObserverRaises(Sound):
    """An observer reads a field that is not there."""

    @hookimpl
    def step_finished(self, step):
        return step.batch[0].num_output_token


# The view -----------------------------------------------------------------------------------------------------


@caught_by("no_mutation")
class SortsTheBatch(Sound):
    """Sorts the step's own list."""

    @hookimpl
    def preemption(self, step, request):
        step.batch.sort(key=lambda r: r.num_tokens)
        return super().preemption(step, request)


@caught_by("no_mutation")
class ShortensPrefilling(Sound):
    """Takes prompts out of what the step keeps of them."""

    @hookimpl
    def admission(self, step):
        yield step.decodes
        while step.prefilling:
            first, *step._prefilling = step.prefilling
            yield first
        yield from self.newcomers(step)


@caught_by("no_mutation")
class ForgetsVictims(Sound):
    """Clears the list of who was evicted."""

    @hookimpl
    def request_preempted(self, step):
        step.preempted.clear()


@caught_by("no_mutation")
class RaisesPriorities(Sound):
    """Ages requests by writing to them."""

    @hookimpl
    def step_started(self, step):
        for request in step.waiting:
            request.priority -= 1


@caught_by("no_mutation")
class RenamesClients(Sound):
    """Writes to a request when it arrives, where there is no step."""

    @hookimpl
    def request_arrived(self, request):
        request.client_id = "nobody"


@caught_by("no_mutation")
class LevelsWhoWaits(Sound):
    """Writes to those that wait when it takes over a live engine."""

    @hookimpl
    def policy_attached(self, step):
        for request in step.waiting:
            request.priority = 7


@caught_by("no_mutation")
class TakesMoreBudget(Sound):
    """Helps itself to tokens."""

    @hookimpl
    def admission(self, step):
        step.budget += 1
        return super().admission(step)


@caught_by("no_mutation")
class ReplacesTheBatch(Sound):
    """Puts another list in the place of the batch."""

    @hookimpl
    def step_started(self, step):
        step.batch = list(step.batch)


@caught_by("no_mutation")
class EmptiesBlockTables(Sound):
    """Forgets the blocks of who finished, which is the engine's business."""

    @hookimpl
    def step_finished(self, step):
        for request in step.running:
            request.block_table.clear()


# Budgets and offers -------------------------------------------------------------------------------------------


@caught_by("budgets")
class IgnoresTheBudget(Sound):
    """Whole prompts, whatever is left."""

    @hookimpl
    def chunking(self, step, request):
        return request.num_pending


@caught_by("budgets")
class ReservesLessThanNothing(Sound):
    """Subtracts what is computed from what is not."""

    @hookimpl
    def reservation(self, step, request):
        return -request.num_computed - 1


@caught_by("offers")
class OffersTwice(Sound):
    """Residents, and then residents again."""

    @hookimpl
    def admission(self, step):
        yield step.running
        yield from step.prefilling
        yield from self.newcomers(step)


@caught_by("offers")
class OffersTheDead(Sound):
    """Keeps offering whom it has seen, also when they are finished."""

    def __init__(self, params=None, **values):
        super().__init__(params, **values)
        self.seen: deque[Request] = deque(maxlen=3)

    @hookimpl
    def admission(self, step):
        yield step.running
        yield from self.newcomers(step)
        for request in self.seen:
            if not request.num_scheduled:
                yield request

    @hookimpl
    def request_finished(self, request):
        self.seen.append(request)


# Progress -----------------------------------------------------------------------------------------------------


@caught_by("progress")
class WaitsForMore(Sound):
    """Starts nobody until two wait: the last one never runs."""

    def newcomers(self, step):
        if len(step.waiting) > 1:
            yield from super().newcomers(step)


@caught_by("progress")
class ForgetsCutPrompts(Sound):
    """Decodes and newcomers; who was cut is never offered again."""

    @hookimpl
    def admission(self, step):
        yield step.decodes
        yield from self.newcomers(step)


@caught_by("progress")
class RefusesAll(Sound):
    """Takes nobody."""

    @hookimpl
    def arrival(self, request):
        from batchwright import Refusal

        return Refusal("closed")


@caught_by("exhaustion")
class NeverEvicts(Sound):
    """Holds, whatever lacks."""

    @hookimpl
    def preemption(self, step, request):
        return HOLD


@caught_by("exhaustion")
class EvictsTheWaiting(Sound):
    """Names a victim that holds nothing, where there is one."""

    @hookimpl
    def preemption(self, step, request):
        if request.is_waiting:
            return HOLD
        return step.waiting[0] if step.waiting else request


@caught_by("exhaustion")
class EvictsInCircles(Sound):
    """Newcomers evict residents, who come back and evict them."""

    preemptive = True

    @hookimpl
    def admission(self, step):
        yield from self.newcomers(step)
        yield [r for r in step.running if not r.num_scheduled]

    @hookimpl
    def preemption(self, step, request):
        if step.lacking == "seats":
            return HOLD
        return step.evictable[0] if step.evictable else (HOLD if request.is_waiting else request)


@caught_by("empty")
class NeedsSomebodyWaiting(Sound):
    """The smallest of an empty queue."""

    def newcomers(self, step):
        yield min(step.waiting, key=lambda r: r.num_tokens)


@caught_by("empty")
class NeedsSomebodyWhenAttached(Sound):
    """Looks at the first who waits, when it is attached."""

    @hookimpl
    def policy_attached(self, step):
        self.first = step.waiting[0].request_id


# Events between steps -----------------------------------------------------------------------------------------


class OwnQueue(Sound):
    """A queue of its own, kept as it should be."""

    def __init__(self, params=None, **values):
        super().__init__(params, **values)
        self.queue: dict[Request, None] = {}

    def newcomers(self, step):
        for request in list(self.queue):
            yield request
            if not request.num_scheduled:
                return

    @hookimpl
    def policy_attached(self, step):
        self.queue = dict.fromkeys(step.waiting)

    @hookimpl
    def request_arrived(self, request):
        self.queue[request] = None

    @hookimpl
    def request_preempted(self, victim):
        self.queue[victim] = None

    @hookimpl
    def request_admitted(self, request):
        self.queue.pop(request, None)

    @hookimpl
    def request_finished(self, request):
        self.queue.pop(request, None)


@caught_by("aborts")
class ForgetsAborts(OwnQueue):
    """Thinks that whoever waits will be admitted some day."""

    @hookimpl
    def request_finished(self, request, reason):
        if reason != "abort":
            self.queue.pop(request, None)


@caught_by("hot_swap")
class KnowsOnlyNewcomers(OwnQueue):
    """Starts from nothing when it is attached to a live engine."""

    @hookimpl
    def policy_attached(self, step):
        self.queue = {}


@caught_by("hot_swap")
class RemembersItsLastEngine(OwnQueue):
    """Adds to what it knew when it is attached once more."""

    @hookimpl
    def policy_attached(self, step):
        self.queue |= dict.fromkeys(step.waiting)


# Declarations -------------------------------------------------------------------------------------------------


@caught_by("declarations")
class CutsThoughItSaysNot(Sound):
    """Declares that it never cuts prompts, and lets the core cut them."""

    chunks = False

    @hookimpl
    def chunking(self, step, request):
        return min(request.num_pending, step.budget, 5)


@caught_by("declarations")
class EvictsForNewcomersThoughItSaysNot(Sound):
    """A composite would let it stand beside an admission that counts on its own."""

    @hookimpl
    def preemption(self, step, request):
        if request.is_waiting and not request.num_preemptions:
            return next((r for r in reversed(step.running) if r.is_resident), HOLD)
        return super().preemption(step, request)


@caught_by("declarations")
class ReservesLessThanItSays(Sound):
    """It declares that nobody will lack a block."""

    reserves_all = True

    @hookimpl
    def reservation(self, step, request):
        return request.num_tokens


@caught_by("declarations")
class CardLeadsNowhere(Sound):
    """A rule of its card is not in the code."""

    card = Card(source="nobody", rules={"the best goes first": "best"})


@caught_by("declarations")
class NeedsWords(Sound):
    """Something that is no Need."""

    needs = ("its own reservation",)  # type: ignore[assignment]


@caught_by("no_mutation")
class PutsItBack(Sound):
    """It alters the view and puts it back before it returns."""

    @hookimpl
    def chunking(self, step, request):
        before, request.priority = request.priority, 0
        request.priority = before
        return min(request.num_pending, step.budget)


@caught_by("no_mutation")
class ReadsTheCore(Sound):
    """It looks into what is private to the core."""

    @hookimpl
    def chunking(self, step, request):
        return min(request.num_pending, step.budget, len(step._state.requests) + 99)


@caught_by("declarations")
class PredictsInSecret(Sound):
    """Asks for times without saying so."""

    @hookimpl
    def chunking(self, step, request):
        most = min(request.num_pending, step.budget)
        return most if step.predict_s(request, most) < 10 else 1


@caught_by("declarations")
class WantsASettingThatIsNone(Sound):
    """A default for a limit that does not exist."""

    def defaults(self, limits):
        return {"max_num_resident": 8}


@caught_by("stationary")
class TakesTurns(Sound):
    """Decodes go round, though it says that they do not."""

    stationary = True

    @hookimpl
    def admission(self, step):
        shift = step.index % max(1, len(step.decodes))
        yield [*step.decodes[shift:], *step.decodes[:shift]]
        yield step.prefilling
        yield from self.newcomers(step)


@caught_by("complexity")
class SortsAllWhoWait(Sound):
    """Sorts the whole queue in every step, though it says that it does not look at all."""

    scans_waiting = False

    def newcomers(self, step):
        for request in sorted(step.waiting, key=lambda r: r.num_tokens):
            yield request
            if not request.num_scheduled:
                return


@caught_by("complexity")
class RanksItsOwnList(OwnQueue):
    """The same on a list of its own."""

    scans_waiting = False

    def newcomers(self, step):
        yield from sorted(self.queue, key=lambda r: r.priority)[:1]


@caught_by("complexity")
class SlicesTheQueue(Sound):
    """Eight of the queue, for which the whole is copied."""

    scans_waiting = False

    def newcomers(self, step):
        for request in step.waiting[:8]:
            yield request
            if not request.num_scheduled:
                return


# Chance, secrets, leaks ---------------------------------------------------------------------------------------


@caught_by("deterministic")
class GlobalChance(Sound):
    """Draws from the generator of the process."""

    def newcomers(self, step):
        for request in step.waiting:
            if request is step.waiting[0] or random.random() < 0.7:
                yield request


@caught_by("deterministic")
class SortsByAddress(Sound):
    """An order that no other process has."""

    def newcomers(self, step):
        yield from sorted(step.waiting, key=id)


@caught_by("deterministic")
class LooksAtTheClock(Sound):
    """Real time, and not the engine's."""

    def newcomers(self, step):
        for request in step.waiting:
            if not step.batch or int(time.monotonic() * 1000) % 3:
                yield request


@caught_by("deterministic")
class WalksASet(Sound):
    """Offers by the order of a set of ids."""

    def newcomers(self, step):
        by_id = {r.request_id: r for r in step.waiting}
        for request_id in set(by_id):
            yield by_id[request_id]


@caught_by("deterministic")
class SharesItsState(Sound):
    """A list of the class, not of the object."""

    seen: ClassVar[list[int]] = []

    @hookimpl
    def request_arrived(self, request):
        self.seen.append(request.num_tokens)

    def newcomers(self, step):
        waiting = list(step.waiting)
        yield from waiting if len(self.seen) // 10 % 2 else reversed(waiting)


@caught_by("no_oracle")
class KnowsTheEnd(Sound):
    """Shortest first, by a length that is hidden; read past strict mode, which would see it before."""

    def newcomers(self, step):
        for request in sorted(step.waiting, key=lambda r: Request._end.__get__(r)):
            yield request
            if not request.num_scheduled:
                return


@caught_by("no_leaks")
class KeepsTheEnded(Sound):
    """A history that only grows."""

    def __init__(self, params=None, **values):
        super().__init__(params, **values)
        self.history: list[tuple[str, Request]] = []

    @hookimpl
    def request_finished(self, request, reason):
        self.history.append((reason, request))


@caught_by("no_leaks")
class KeepsCounts(Sound):
    """A count for each id that ever was."""

    def __init__(self, params=None, **values):
        super().__init__(params, **values)
        self.counts: dict[str, int] = {}

    @hookimpl
    def request_admitted(self, request):
        self.counts[request.request_id] = self.counts.get(request.request_id, 0) + 1


# Parameters ---------------------------------------------------------------------------------------------------


class OneParam(Params):
    most: int = Field(default=3, ge=1, description="Newcomers a step at most.")


class Limited(Sound):
    """At most so many newcomers a step: nothing wrong with it."""

    Params = OneParam

    def newcomers(self, step):
        for number, request in enumerate(step.waiting):
            if number == self.params.most:
                return
            yield request


@caught_by("params")
class DropsParams(Limited):
    """Has its own idea of the parameters."""

    def __init__(self, params=None, **values):
        super().__init__()


@caught_by("params")
class TakesNoParams(Sound):
    """No config could make it."""

    def __init__(self):
        super().__init__()


@caught_by("params")
class SwallowsUnknownKeys(Limited):
    """Takes any key."""

    class Params(OneParam):
        model_config: ClassVar[Any] = {"extra": "ignore"}


@caught_by("params")
class RoundsParams(Limited):
    """Keeps the parameters that it was given, and decides by others."""

    made: ClassVar[int] = 0

    @classmethod
    def from_values(cls, values):
        policy = super().from_values(values)
        policy.most_newcomers = 1
        return policy

    most_newcomers = 2

    def newcomers(self, step):
        for number, request in enumerate(step.waiting):
            if number == self.most_newcomers:
                return
            yield request
