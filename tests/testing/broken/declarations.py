"""Policies that are not what they say of themselves. The docstring says where."""

from __future__ import annotations

from batchwright import HOLD, Card, hookimpl
from testing.broken.sound import OwnQueue, Sound, caught_by


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


@caught_by("steady")
class LeavesADecodeOut(Sound):
    """One decode pauses every other step, though it says that all run when nobody can come in."""

    steady = True

    @hookimpl
    def admission(self, step):
        yield step.decodes if step.index % 2 or len(step.decodes) < 2 else list(step.decodes)[1:]
        yield step.prefilling
        yield from self.newcomers(step)


@caught_by("stationary")
class CountsStepsAside(Sound):
    """Whom it takes next depends on how many steps it was told of, though it says that steps alone change nothing."""

    stationary = True

    def __init__(self, params=None, **values):
        super().__init__(params, **values)
        self.num_steps = 0

    @hookimpl
    def step_started(self, step):
        self.num_steps += 1

    def newcomers(self, step):
        waiting = list(step.waiting)
        if len(step.decodes) + 1 >= len(step.running) and self.num_steps % 2:
            waiting.reverse()
        for request in waiting:
            yield request
            if not request.num_scheduled:
                return


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
