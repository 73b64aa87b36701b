"""Whose answer counts, where wrappers stand around a decision.

With a wrapper a decision is one call for all plugins, and what comes out does not say who made it. While a scheduler is
watched, each implementation around such a decision notes what it answered. Nothing else changes: what a wrapper gets,
and what the core gets, is what it would have been, or an iterator that passes everything on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from pluggy import HookImpl

from batchwright.decisions import Decisions
from batchwright.hookspecs import DECISIONS
from batchwright.request import Request


class Tap:
    """An iterable of offers that remembers what was taken from it.

    Attributes:
        offered: what was taken.
        is_over: it came to its end.
    """

    def __init__(self, offers: Any) -> None:
        self._offers = offers
        self.offered: list[Any] = []
        self.is_over = False

    def __iter__(self) -> Iterator[Any]:
        self._offers = iter(self._offers)
        return self

    def __next__(self) -> Any:
        try:
            offer = next(self._offers)
        except StopIteration:
            self.is_over = True
            raise
        offer = tapped(offer)
        self.offered.append(offer)
        return offer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._offers, name)  # ``close``, above all


def tapped(offers: Any) -> Any:
    """The same offers, through a tap where they can be read but once."""
    if isinstance(offers, (Request, Sequence)) or not hasattr(offers, "__iter__"):
        return offers
    return Tap(offers)


def members(offers: Iterable[Any]) -> Iterator[Request]:
    """The requests among offers and in the sequences among them."""
    for offer in offers:
        if isinstance(offer, Request):
            yield offer
        elif isinstance(offer, Tap):
            yield from members(offer.offered)
        elif isinstance(offer, Sequence):
            yield from (r for r in offer if isinstance(r, Request))


class Layers:
    """The implementations around the decisions of one scheduler that have wrappers."""

    def __init__(self) -> None:
        self._manager: Any = None
        self._originals: list[tuple[HookImpl, Callable[..., Any]]] = []
        self._answers: dict[str, list[tuple[str, Any]]] = {}  # of the last call, from the inside out

    def watch(self, decisions: Decisions) -> None:
        """Watch these decisions, if they are not watched already: plugins may have changed."""
        if decisions._manager is self._manager:
            return
        self.release()
        self._manager = decisions._manager
        for hook in DECISIONS:
            impls = getattr(self._manager.hook, hook).get_hookimpls()
            if not any(i.wrapper or i.hookwrapper for i in impls):
                continue
            self._answers[hook] = []
            for impl in impls:
                self._originals.append((impl, impl.function))
                impl.function = self._noting(hook, impl)

    def release(self) -> None:
        """Leave everything as it was."""
        for impl, function in self._originals:
            impl.function = function  # type: ignore[misc]
        self._originals, self._answers, self._manager = [], {}, None

    def has(self, hook: str) -> bool:
        """Whether wrappers stand around this decision."""
        return hook in self._answers

    def decider(self, hook: str) -> tuple[str, str]:
        """Who gave the answer of the last call, and whose answer it replaced (empty: nobody's)."""
        names = [name for name, _ in self._answers[hook]]
        return (names[-1], names[-2] if len(names) > 1 else "") if names else ("", "")

    def end_of_offers(self) -> str:
        """Whose offers came to their end first, from the inside out: nobody outside of it had a say in that."""
        answers = self._answers["admission"]
        for name, offers in answers:
            if not isinstance(offers, Tap) or offers.is_over:
                return name
        return answers[-1][0] if answers else ""

    def withheld(self) -> dict[Request, tuple[str, str]]:
        """Requests that somebody offered and a wrapper left out: the wrapper's name, and whose offer it was."""
        answers = self._answers.get("admission", [])
        last: dict[Request, int] = {}
        for place, (_, offers) in enumerate(answers):
            last.update(dict.fromkeys(members([offers]), place))
        outermost = len(answers) - 1
        return {r: (answers[i + 1][0], answers[i][0]) for r, i in last.items() if i < outermost}

    def _noting(self, hook: str, impl: HookImpl) -> Callable[..., Any]:
        function, name = impl.function, impl.plugin_name
        if impl.wrapper:
            return self._noting_wrapper(hook, name, function)
        if impl.hookwrapper:
            return self._noting_old_wrapper(hook, name, function)

        def answer(*args: Any) -> Any:
            value = function(*args)
            if value is None:
                return None
            self._answers[hook].clear()  # nobody outside of it has answered yet
            return self._note(hook, name, value)

        return answer

    def _noting_wrapper(self, hook: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrap(*args: Any) -> Generator[None, Any, Any]:
            around = function(*args)
            next(around)
            try:
                inner = yield
            except BaseException as error:
                try:
                    around.throw(error)
                except StopIteration as end:
                    return self._note(hook, name, end.value)
                raise RuntimeError(f"wrapper {name!r} of {hook} yielded twice") from None
            try:
                around.send(inner)
            except StopIteration as end:
                return inner if end.value is inner else self._note(hook, name, end.value)
            raise RuntimeError(f"wrapper {name!r} of {hook} yielded twice")

        return wrap

    def _noting_old_wrapper(self, hook: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrap(*args: Any) -> Generator[None, Any, None]:
            around = function(*args)
            next(around)
            outcome = yield
            inner = None if outcome.exception is not None else outcome.get_result()
            with suppress(StopIteration):
                around.send(outcome)
            if outcome.exception is None and outcome.get_result() is not inner:
                outcome.force_result(self._note(hook, name, outcome.get_result()))

        return wrap

    def _note(self, hook: str, name: str, value: Any) -> Any:
        value = tapped(value) if hook == "admission" else value
        self._answers[hook].append((name, value))
        return value
