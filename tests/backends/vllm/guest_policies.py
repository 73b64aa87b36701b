"""Policies that misbehave; in a file of their own, since a watchdog knows policies by theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from batchwright import Policy, hookimpl
from batchwright.request import Request
from batchwright.step import Step


class Noted(Policy):
    """Residents, then who waits, as in vLLM; keeps what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, Any]] = []

    @hookimpl
    def admission(self, step: Step) -> Iterator[Request | Sequence[Request]]:
        yield step.running
        for request in step.waiting:
            yield request
            if not request.num_scheduled:
                return

    @hookimpl
    def step_finished(self, step: Step) -> None:
        self.calls.append(("step", {r.request_id: r.num_scheduled for r in step.batch}))

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        self.calls.append(("arrived", request.request_id))

    @hookimpl
    def request_admitted(self, step: Step, request: Request) -> None:
        assert request.is_resident
        self.calls.append(("admitted", request.request_id))

    @hookimpl
    def request_preempted(self, step: Step, victim: Request) -> None:
        assert victim.is_waiting
        self.calls.append(("preempted", victim.request_id))

    @hookimpl
    def request_finished(self, request: Request, reason: str) -> None:
        assert request.is_finished
        self.calls.append(("finished", (request.request_id, reason)))


class Raises(Noted):
    @hookimpl
    def admission(self, step: Step) -> Iterator[Request | Sequence[Request]]:
        yield step.running
        if step.index % 2:
            raise RuntimeError("I am ill")


class Offers(Noted):
    """A rule is broken every other step: somebody is offered twice."""

    @hookimpl
    def admission(self, step: Step) -> Iterator[Request | Sequence[Request]]:
        for request in (*step.running, *step.waiting):
            yield request
            if request.num_scheduled and step.index % 2:
                yield request


class Slow(Noted):
    @hookimpl
    def admission(self, step: Step) -> Iterator[Request | Sequence[Request]]:
        while True:
            yield step.running[:0]


class Hangs(Noted):
    """It never comes back from a call."""

    @hookimpl
    def admission(self, step: Step) -> Iterator[Request | Sequence[Request]]:
        if step.index % 8:
            yield step.running
            yield from step.waiting
        while step.index % 8 == 0:
            pass


class Idle(Noted):
    @hookimpl
    def admission(self, step: Step) -> Iterator[Request | Sequence[Request]]:
        return iter(())


class Cuts(Noted):
    """Chunks that vLLM cannot be made to run: it cuts the last prompt of a step only."""

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        return min(7, request.num_pending, step.budget)


class Blind(Noted):
    @hookimpl
    def step_finished(self, step: Step) -> None:
        raise RuntimeError("I see nothing")


class Late:
    """No policy: it counts the ends of steps."""

    def __init__(self) -> None:
        self.steps = 0

    @hookimpl
    def step_finished(self, step: Step) -> None:
        self.steps += 1
