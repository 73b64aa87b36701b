"""Policies that break the contract, one rule each: for scenario A2 and the tests of the rules.

Each is the default policy but for one hook, which breaks its rule on its first call and on some later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from batchwright import Policy, Request, Step, hookimpl
from batchwright.plugins import load_plugins
from toolbox import make_request

PrefillFirst: Any = load_plugins().policy("prefill_first")


@dataclass(frozen=True)
class Fault:
    """One way to break a rule.

    Attributes:
        hook, rule: what ``PolicyError`` must say.
        act: what the hook does or returns instead of its decision.
        says: a part of the message.
        value: what ``PolicyError.value`` must be, given the error; not looked at where it is None.
    """

    hook: str
    rule: str
    act: Callable[..., Any]
    says: str
    value: Callable[[Any], bool] | None = None


class Culprit(PrefillFirst):
    """The default policy, with one fault."""

    def __init__(self, fault: Fault, every: int = 5, most: int = 3) -> None:
        """Breaks the rule on the first call of the hook and on each ``every``-th, but at most so many times."""
        super().__init__()
        self._fault = fault
        self._every = every
        self._most = most
        self.num_calls = 0
        self.num_broken = 0
        self.finished: list[Request] = []
        self.stranger = make_request("stranger", 4, 4)

    def _breaks(self, hook: str) -> bool:
        if hook != self._fault.hook:
            return False
        self.num_calls += 1
        ready = self.finished or "finished" not in self._fault.says
        due = self.num_broken == 0 or self.num_calls % self._every == 0
        breaks = bool(ready) and due and self.num_broken < self._most
        self.num_broken += breaks
        return breaks

    @hookimpl
    def request_finished(self, request: Request) -> None:
        self.finished.append(request)

    @hookimpl
    def admission(self, step: Step) -> Any:
        if self._breaks("admission"):
            return self._fault.act(self, step)
        return super().admission(step)

    @hookimpl
    def chunking(self, step: Step, request: Request) -> Any:
        if self._breaks("chunking"):
            return self._fault.act(self, step, request)
        return super().chunking(step, request)

    @hookimpl
    def reservation(self, step: Step, request: Request) -> Any:
        if self._breaks("reservation"):
            return self._fault.act(self, step, request)
        return request.num_tokens

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Any:
        if self._breaks("preemption"):
            return self._fault.act(self, step, request)
        return super().preemption(step, request)


class Broken(RuntimeError):
    """What faulty policies raise."""


def _raise(*_: Any) -> Any:
    raise Broken("no idea")


def _offers(*offers: Any) -> Callable[..., Iterator[Any]]:
    """An admission that does its work, then yields what it must not."""

    def act(policy: Culprit, step: Step) -> Iterator[Any]:
        yield from PrefillFirst.admission(policy, step)
        for offer in offers:
            yield offer(policy, step) if callable(offer) else offer

    return act


def _first(policy: Culprit, step: Step) -> Request:
    return (*step.running, *step.waiting)[0]


def _raises_midway(policy: Culprit, step: Step) -> Iterator[Any]:
    yield step.running
    yield list(step.waiting)
    raise Broken("no idea")


def _bad_at_close(policy: Culprit, step: Step) -> Iterator[Any]:
    try:
        yield list(step.waiting)
        yield step.running
        yield 5
    finally:
        raise Broken("no idea")


def _never_closes(policy: Culprit, step: Step) -> Iterator[Any]:
    try:
        yield 5
    except GeneratorExit:
        yield 6


def _endless(policy: Culprit, step: Step) -> Iterator[Any]:
    while True:
        yield []


def _bad_sequence(policy: Culprit, step: Step) -> Any:
    class Raising:
        def __iter__(self) -> Iterator[Any]:
            raise Broken("no idea")

    return iter([step.running, Raising()])


FAULTS: dict[str, Fault] = {
    "admission raises": Fault("admission", "raised", _raise, "Broken: no idea", lambda v: isinstance(v, Broken)),
    "admission raises midway": Fault(
        "admission", "raised", _raises_midway, "Broken: no idea", lambda v: isinstance(v, Broken)
    ),
    "admission raises when closed": Fault("admission", "type", _bad_at_close, "", None),
    "admission does not close": Fault("admission", "type", _never_closes, "", None),
    "admission returns a number": Fault("admission", "type", lambda p, s: 5, "iterable of requests", lambda v: v == 5),
    "admission returns True": Fault(
        "admission", "type", lambda p, s: True, "iterable of requests", lambda v: v is True
    ),
    "admission yields None": Fault("admission", "type", _offers(None), "neither a request nor", lambda v: v is None),
    "admission yields a number": Fault("admission", "type", _offers(7), "neither a request nor", lambda v: v == 7),
    "admission yields a string": Fault("admission", "type", _offers("abc"), "'a': not a request", lambda v: v == "a"),
    "admission yields a list with None": Fault(
        "admission", "type", _offers([None]), "None: not a request", lambda v: v is None
    ),
    "admission yields what raises": Fault(
        "admission", "raised", _bad_sequence, "Broken: no idea", lambda v: isinstance(v, Broken)
    ),
    "admission yields a stranger": Fault(
        "admission",
        "unknown",
        _offers(lambda p, s: p.stranger),
        "'stranger', which is not of this engine",
        lambda v: v.request_id == "stranger",
    ),
    "admission yields a finished one": Fault(
        "admission", "unknown", _offers(lambda p, s: p.finished[-1]), "which is finished", lambda v: v.is_finished
    ),
    "admission yields one twice": Fault(
        "admission", "twice", _offers(lambda p, s: s.batch[0]), "twice", lambda v: isinstance(v, Request)
    ),
    "admission yields a list with one twice": Fault(
        "admission", "twice", lambda p, s: iter([[_first(p, s)] * 2]), "twice", lambda v: isinstance(v, Request)
    ),
    "admission yields nothing": Fault("admission", "progress", lambda p, s: iter(()), "nothing is scheduled", None),
    "admission never ends": Fault("admission", "endless", _endless, "does it ever end?", None),
    "chunking raises": Fault("chunking", "raised", _raise, "Broken: no idea", lambda v: isinstance(v, Broken)),
    "chunking returns a float": Fault("chunking", "type", lambda p, s, r: 1.0, "an int, not 1.0", lambda v: v == 1.0),
    "chunking returns True": Fault("chunking", "type", lambda p, s, r: True, "an int, not True", lambda v: v is True),
    "chunking returns text": Fault("chunking", "type", lambda p, s, r: "4", "an int, not '4'", lambda v: v == "4"),
    "chunking below 0": Fault(
        "chunking", "range", lambda p, s, r: -1, "-1 tokens, allowed are 0 to", lambda v: v == -1
    ),
    "chunking above what is pending": Fault(
        "chunking", "range", lambda p, s, r: r.num_pending + 1, "allowed are 0 to", lambda v: isinstance(v, int)
    ),
    "chunking above the budget": Fault(
        "chunking", "range", lambda p, s, r: s.budget + 1, "left in the budget", lambda v: isinstance(v, int)
    ),
    "reservation raises": Fault("reservation", "raised", _raise, "Broken: no idea", lambda v: isinstance(v, Broken)),
    "reservation returns a float": Fault("reservation", "type", lambda p, s, r: 4.5, "not 4.5", lambda v: v == 4.5),
    "reservation returns False": Fault("reservation", "type", lambda p, s, r: False, "not False", lambda v: v is False),
    "reservation below 0": Fault("reservation", "range", lambda p, s, r: -3, "at least 0", lambda v: v == -3),
    "preemption raises": Fault("preemption", "raised", _raise, "Broken: no idea", lambda v: isinstance(v, Broken)),
    "preemption returns a number": Fault(
        "preemption", "type", lambda p, s, r: 0, "a request or HOLD", lambda v: v == 0
    ),
    "preemption returns an id": Fault(
        "preemption", "type", lambda p, s, r: r.request_id, "a request or HOLD", lambda v: isinstance(v, str)
    ),
    "preemption names a stranger": Fault(
        "preemption", "victim", lambda p, s, r: p.stranger, "not a resident", lambda v: v.request_id == "stranger"
    ),
    "preemption names a finished one": Fault(
        "preemption", "victim", lambda p, s, r: p.finished[-1], "is finished", lambda v: v.is_finished
    ),
    "preemption names a waiting one": Fault(
        "preemption",
        "victim",
        lambda p, s, r: next(iter(s.waiting)) if s.waiting else p.stranger,
        "it holds no blocks",
        lambda v: not v.is_resident,
    ),
}


class BadArrival(Policy):
    """Answers ``arrival`` with what it is given, or raises it."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self._answer = answer

    @hookimpl
    def arrival(self, request: Request) -> Any:
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer
