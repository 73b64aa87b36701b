"""Policies with whom somebody gets no further, or that lose sight of who is there. The docstring says how."""

from __future__ import annotations

from batchwright import HOLD, hookimpl
from testing.broken.sound import OwnQueue, Sound, caught_by

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
