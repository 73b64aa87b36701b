"""Watching a policy at work: what it altered, what it raised, whom it looked at.

The hooks that a scheduler has bound are wrapped, so that decisions, observers and wrappers are all seen, whoever
brings them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from operator import attrgetter
from typing import Any

from batchwright.hookspecs import DECISIONS, OBSERVERS
from batchwright.queues import QueueView
from batchwright.request import Request
from batchwright.scheduler import Scheduler
from batchwright.step import Step
from batchwright.testing.gaze import Gaze

_LISTS = ("batch", "preempted", "prefilling", "decodes", "sampled", "finished")
_VALUES = (
    "now",
    "end",
    "index",
    "budget",
    "num_residents",
    "lacking",
    "num_prefill_tokens",
    "num_decodes",
    "free_blocks",
)
_APART = ("prompt_token_ids", "output_token_ids", "block_table")  # their lengths or contents are compared instead
_FIELDS = [n for n in dir(Request) if not n.startswith("_") and n not in _APART]
_lists_of, _values_of, _fields_of = attrgetter(*_LISTS), attrgetter(*_VALUES), attrgetter(*_FIELDS)
_Look = tuple[list[tuple[Any, tuple[Any, ...]]], tuple[Any, ...], tuple[Any, ...], dict[Request, tuple[Any, ...]]]
_END = object()


class Halt(BaseException):
    """Ends a run whose state a policy has altered: nothing that follows would mean anything."""


@dataclass(frozen=True)
class Fault:
    """Something that a policy did wrong in a run.

    Attributes:
        rule: of the contract (see ``docs/hooks.md``); ``observer``: an observer raised; ``stuck``: it never ends.
        error: what was raised, by its class.
        message: what happened.
        num_waiting, num_resident: when it happened.
    """

    hook: str
    rule: str
    error: str
    message: str
    scenario: str
    step: int | None
    num_waiting: int = 0
    num_resident: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """Faults of one kind."""
        return (self.hook, self.rule, self.error)


@dataclass(frozen=True)
class Mutation:
    """Something of the view that a hook altered."""

    hook: str
    what: str
    before: str
    after: str
    scenario: str
    step: int | None


class Watch:
    """The eyes on one scheduler.

    Attributes:
        faults: exceptions that hooks raised.
        mutations: what they altered; the run ends at the first.
        calls: of each hook, while somebody waited and somebody was resident.
        broken: what a policy may declare and an answer does not keep, to scenario and step of the first.
        gaze: which requests hooks look at, where that is counted.
    """

    def __init__(self, scheduler: Scheduler, scenario: str, is_thorough: bool, gaze: Gaze | None = None) -> None:
        """Takes an idle scheduler.

        Args:
            scheduler: its hooks are wrapped, now and whenever they are bound anew.
            scenario: for reports.
            is_thorough: whether every request is compared, and not only the view.
            gaze: told while a hook runs.
        """
        self.faults: list[Fault] = []
        self.mutations: list[Mutation] = []
        self.calls: Counter[str] = Counter()
        self.broken: dict[str, tuple[str, int]] = {}
        self.gaze = gaze
        self._scheduler = scheduler
        self._scenario = scenario
        self._is_thorough = is_thorough
        self._bind = scheduler._hooks.bind
        scheduler._hooks.bind = self._bind_and_wrap  # type: ignore[method-assign]
        self._bind_and_wrap()

    def _bind_and_wrap(self) -> None:
        self._bind()
        hooks = self._scheduler._hooks
        for hook in DECISIONS:
            decide = getattr(hooks, hook)
            if decide is not None:
                wrap = self._wrap_admission if hook == "admission" else self._wrap
                setattr(hooks, hook, wrap(hook, decide))
        for hook in OBSERVERS:
            setattr(hooks, hook, tuple((self._wrap(hook, call), name) for call, name in getattr(hooks, hook)))

    def _wrap(self, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def watched(*args: Any) -> Any:
            return self._call(hook, _step_of(args), call, *args)

        return watched

    def _wrap_admission(self, hook: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def watched(step: Step) -> Any:
            offers = self._call(hook, step, call, step)
            return self._each(step, offers) if hasattr(offers, "__iter__") else offers

        return watched

    def _each(self, step: Step, offers: Any) -> Iterator[Any]:
        """The offers, with an eye on the policy's code between them."""
        iterator = self._call("admission", step, iter, offers)
        try:
            while True:
                offer = self._call("admission", step, next, iterator, _END)
                if offer is _END:
                    return
                is_plain = isinstance(offer, (Request, list, tuple, QueueView)) or not hasattr(offer, "__iter__")
                yield offer if is_plain else self._each(step, offer)
        finally:
            if hasattr(iterator, "close"):
                self._call("admission", step, iterator.close)

    def _call(self, hook: str, step: Step | None, call: Callable[..., Any], *args: Any) -> Any:
        waiting, running = len(self._scheduler.waiting), len(self._scheduler.running)
        if waiting and running:
            self.calls[hook] += 1
        before = self._look(step)
        was_on = self.gaze.turn_on(step) if self.gaze is not None else False
        try:
            answer = call(*args)
            self._hold(hook, args, answer)
            return answer
        except Exception as error:
            rule = "observer" if hook in OBSERVERS else "raised"
            what = f"{type(error).__name__}: {error}"
            number = step.index if step is not None else None
            fault = Fault(hook, rule, type(error).__name__, what, self._scenario, number, waiting, running)
            self.faults.append(fault)
            raise
        finally:
            if self.gaze is not None:
                self.gaze.is_on = was_on
            self._compare(hook, step, before)

    def _hold(self, hook: str, args: Sequence[Any], answer: Any) -> None:
        """Whether an answer keeps what could be declared."""
        if hook == "preemption" and isinstance(answer, Request) and args[1].is_waiting:
            self.broken.setdefault("preemptive = False", (self._scenario, args[0].index))
        if hook == "reservation":
            request = args[1]
            if answer is None or answer < request.num_prompt_tokens + request.max_tokens - 1:
                self.broken.setdefault("reserves_all = True", (self._scenario, args[0].index))

    # What it altered ----------------------------------------------------------------------------------------

    def _look(self, step: Step | None) -> _Look:
        lists: list[tuple[Any, tuple[Any, ...]]] = []
        values: tuple[Any, ...] = ()
        if step is not None:
            lists += [(value, () if value is step.running else tuple(value)) for value in _lists_of(step)]
            values = _values_of(step)
        if not self._is_thorough:
            return lists, values, (), {}
        queues = [tuple(self._scheduler.waiting), tuple(self._scheduler.running)]
        there = [*queues[0], *queues[1]]
        if step is not None:
            queues += [tuple(step.waiting), tuple(step.running)]
            there += [*step.batch, *step.preempted, *step.finished]
        return lists, values, tuple(queues), {r: (*_fields_of(r), *r.block_table) for r in there}

    def _compare(self, hook: str, step: Step | None, before: _Look) -> None:
        after = self._look(step)
        if after == before and all(old is new for (old, _), (new, _) in zip(before[0], after[0], strict=True)):
            return
        what, old, new = _difference(before, after)
        if step is not None:  # or the engine would stumble before it can be left
            for name, (value, content) in zip(_LISTS, before[0], strict=True):
                if isinstance(value, list):
                    value[:] = content
                with suppress(AttributeError):  # some are properties
                    setattr(step, name, value)
        number = step.index if step is not None else None
        self.mutations.append(Mutation(hook, what, str(old), str(new), self._scenario, number))
        raise Halt


def _difference(before: _Look, after: _Look) -> tuple[str, Any, Any]:
    """What differs, as it was and as it is."""
    for name, (was, old), (now, new) in zip(_LISTS, before[0], after[0], strict=False):  # none without a step
        if old != new:
            return f"step.{name}", _names(old), _names(new)
        if was is not now:
            return f"step.{name}", "the list it was", "another object"
    for name, one, other in zip(_VALUES, before[1], after[1], strict=False):
        if one != other:
            return f"step.{name}", one, other
    for name, one, other in zip(
        ("waiting", "running", "step.waiting", "step.running"), before[2], after[2], strict=False
    ):
        if one != other:
            return name, _names(one), _names(other)
    for request, fields in before[3].items():
        now_fields = after[3].get(request, ())
        for name, one, other in zip(_FIELDS, fields, now_fields, strict=False):
            if one != other:
                return f"{name} of request {request.request_id!r}", one, other
        if fields != now_fields:
            place = len(_FIELDS)
            return f"block_table of request {request.request_id!r}", fields[place:], now_fields[place:]
    return "the queues", "one thing", "another"


def _step_of(args: Sequence[Any]) -> Step | None:
    return args[0] if args and isinstance(args[0], Step) else None


def _names(requests: Sequence[Any]) -> str:
    return "[" + ", ".join(str(getattr(r, "request_id", r)) for r in requests) + "]"
