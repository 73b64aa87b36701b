"""What policies that break one thing are made of: what is sound, and the list of which check catches which."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from batchwright import HOLD, Params, Policy, Request, hookimpl

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
