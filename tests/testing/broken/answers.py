"""Policies that each break one thing in what they answer, offer or write to. The docstring says what."""

from __future__ import annotations

from collections import deque

from batchwright import Request, hookimpl
from testing.broken.sound import Sound, caught_by

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
