"""Policies that decide by chance or by what they must not know, that keep what is gone, or lose their parameters."""

from __future__ import annotations

import random
import time
from typing import Any, ClassVar

from batchwright import Request, hookimpl
from testing.broken.sound import Limited, OneParam, Sound, caught_by

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
