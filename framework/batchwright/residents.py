"""Residents by rank, as far as somebody asks: whether a newcomer passes one, and who ranks worst."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from typing import Any

from batchwright.lazy_heap import LazyHeap
from batchwright.request import Request
from batchwright.step import Step


class Residents:
    """Who is resident, by (rank, arrival).

    From step to step only a bound is kept, which no rank exceeds: a resident is looked at when it was admitted, and
    again when its rank may have risen. The order is made in a step in which a newcomer passes one or somebody is
    evicted: O(n log n) once, and then O(log n) for each that is evicted or admitted. Within a step the ranks of
    residents are taken to stay.
    """

    def __init__(self, rank: Callable[[Request], Any], holds: Callable[[Request], float | None]) -> None:
        """Takes what gives a rank, and for how many more output tokens that does not rise; None: nobody knows."""
        self._rank = rank
        self._holds = holds
        self.clear()

    def clear(self) -> None:
        """Know nothing: all are looked at when somebody asks."""
        self._due: dict[Request, float] = {}  # index of the step in which its rank may exceed the bound
        self._calendar: LazyHeap[Request] = LazyHeap(self._due.__getitem__)
        self._is_bounded = False
        self._bound: Any = None
        self._index = -1  # of the step whose order stands here
        self._order: list[tuple[Any, int, Request]] = []
        self._newcomers: set[Request] = set()
        self._num_looked = self._num_victims = 0

    def add(self, request: Request) -> None:
        """It is resident from now on."""
        self._due[request] = 0
        self._calendar.push(request)

    def discard(self, request: Request) -> None:
        """It is resident no longer, if it was."""
        self._calendar.discard(request)
        self._due.pop(request, None)
        if request.is_finished:  # the step is over
            self._order.clear()
            self._index = -1

    def look_again(self) -> None:
        """Ranks rose that were said to hold."""
        self._is_bounded = False

    def any_after(self, step: Step, rank: Any) -> bool:
        """Whether a resident ranks worse than that: O(1) while the bound says no, else the order is made."""
        if self._index != step.index and self._says_no(step, rank):
            return False
        worst = next(self.worst_first(step), None)
        return worst is not None and rank < worst[0]

    def in_order(self, step: Step) -> list[tuple[Any, int, Request]]:
        """(rank, arrival, request) of each, the lowest first; some may have been evicted in this step."""
        if self._index != step.index:
            self._make_order(step)
        return self._order

    def worst_first(self, step: Step) -> Iterator[tuple[Any, Request]]:
        """Rank and request of each who is resident now, those that this step admitted too, the worst first."""
        order = self.in_order(step)
        self._join_newcomers(step)
        while order and not order[-1][-1].is_resident:
            order.pop()
        return ((rank, request) for rank, _, request in reversed(order) if request.is_resident)

    def _says_no(self, step: Step, rank: Any) -> bool:
        if not self._is_bounded or len(self._due) != len(step.running):
            return False  # the latter: somebody was evicted in this step, or came or went while an observer failed
        while (request := self._calendar.first()) is not None and self._due[request] <= step.index:
            now, holds = self._rank(request), self._holds(request)
            if holds is None:
                return False
            self._due[request] = step.index + 1 + holds  # a step gives it one token at most
            if self._bound < now:
                self._bound = now
        return not rank < self._bound

    def _make_order(self, step: Step) -> None:
        self._order = sorted((self._rank(r), r.arrival_index, r) for r in step.running if r.is_resident)
        self._index = step.index
        self._newcomers.clear()
        self._num_looked, self._num_victims = 0, len(step.preempted)
        holds = [self._holds(request) for *_, request in self._order]
        self._is_bounded = bool(holds) and None not in holds
        if self._is_bounded:
            self._bound = self._order[-1][0]
            self._due.clear()
            for (*_, request), num in zip(self._order, holds, strict=True):
                self._due[request] = step.index + 1 + (num or 0)
            self._calendar.fill(self._due)

    def _join_newcomers(self, step: Step) -> None:
        """Put who was admitted in this step into the order: only what was appended to the batch since is looked at."""
        gone = len(step.preempted) - self._num_victims  # at most so many left the batch
        start = max(0, self._num_looked - gone)
        for request in step.batch[start:]:
            if request not in step.running and request not in self._newcomers:
                self._newcomers.add(request)
                insort(self._order, (self._rank(request), request.arrival_index, request))
        self._num_looked, self._num_victims = len(step.batch), len(step.preempted)
