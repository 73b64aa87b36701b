"""Base classes of policies that put requests in an order.

``Ordered``: residents, then waiting requests in an order of the policy's own. ``Ranked``: by a rank, lowest first, and
if it is ``preemptive``, newcomers pass and evict residents of a worse rank. Neither can strand residents: whatever
becomes of a newcomer, everybody who is resident is offered room in every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from batchwright.hookspecs import HOLD, Hold, hookimpl
from batchwright.lazy_heap import LazyHeap
from batchwright.limits import Limits
from batchwright.policy import Policy
from batchwright.request import Request
from batchwright.residents import Residents
from batchwright.step import Step


class Queue(Protocol):
    """What a ``Ranked`` policy keeps its waiting requests in; a ``LazyHeap`` of requests is one."""

    def __len__(self) -> int:
        """How many wait."""
        ...

    def push(self, item: Request, /) -> None:
        """It waits from now on, or is ranked anew."""

    def discard(self, item: Request, /) -> None:
        """It waits no longer."""

    def fill(self, items: Iterable[Request], /) -> None:
        """These wait and no others."""

    def first(self) -> Request | None:
        """Who is offered room first."""

    def in_order(self) -> Iterator[Request]:
        """Who waits, first to last, as far as one looks."""
        ...


class Ordered(Policy):
    """Residents, then waiting requests in the order of ``in_order``, until the first that does not fit.

    Nobody is evicted to let a newcomer in, and nobody is let in while residents are evicted for want of blocks, so
    residents always go on. ``max_num_seqs`` bounds the residents as well, by default. Chunking, reservation and
    preemption are the core's unless the policy says otherwise. Apart from ``in_order`` a step costs O(residents).
    """

    steady: bool = True

    def __init_subclass__(cls, **values: Any) -> None:
        """A class that offers residents room in a way of its own says itself whether it is steady."""
        super().__init_subclass__(**values)
        said = next(place for place, base in enumerate(cls.__mro__) if "steady" in vars(base))
        if any("residents" in vars(base) for base in cls.__mro__[:said]):
            cls.steady = False

    def defaults(self, limits: Limits) -> Mapping[str, Any]:
        """A resident always finds a place in the batch."""
        return {"max_num_residents": limits.max_num_seqs}

    def in_order(self, step: Step) -> Iterable[Request]:
        """Waiting requests in the order in which they are offered room.

        Asked once a step, only when there may be room, and consumed as far as there is. Look at ``num_scheduled``
        after each to see whether it entered.
        """
        raise NotImplementedError(f"{type(self).__name__} must say in_order(step): who waits, first to last")

    def residents(self, step: Step) -> Iterator[Sequence[Request]]:
        """Offers to residents: decodes, then prompts that were cut.

        A class that overrides it is not ``steady``, unless it says so: then it leaves no decode out.
        """
        yield step.decodes
        if step.prefilling:
            yield step.prefilling

    @hookimpl
    def admission(self, step: Step) -> Iterator[Request | Sequence[Request]]:
        """Residents, then newcomers in order while there is room."""
        yield from self.residents(step)
        limits = step.limits
        seats = limits.max_num_residents
        if not step.waiting or step.preempted or not step.free_blocks:
            return
        if not step.budget or len(step.batch) >= limits.max_num_seqs or (seats and step.num_residents >= seats):
            return
        for request in self.in_order(step):
            yield request
            full = not step.budget or len(step.batch) >= limits.max_num_seqs
            if full or not request.num_scheduled:
                return


class Ranked(Ordered):
    """Waiting requests by ``rank``, lowest first; equal ranks by arrival.

    When a resident lacks a block, the resident of the worst (rank, arrival) is evicted, which may be the one that
    asks. A newcomer evicts nobody, unless the policy is ``preemptive``: then it passes residents that rank worse where
    the budget or the batch is short, and evicts them for a seat or for blocks, the worst first and only if that
    suffices. Equal ranks never do that to each other, so no two requests evict one another in turns.

    A step costs O(log waiting) for each newcomer it looks at, O(residents · log residents) in a step in which a
    newcomer passes one, and then O(log residents) for each that is evicted. While nobody passes, residents are offered
    as a whole, and a preemptive policy that says how long a rank ``rank_holds`` does not look at them either.

    Attributes:
        preemptive: whether newcomers pass and evict residents of a worse rank.
        scans_waiting: False: a step looks at few of those who wait (a declaration that ``check_policy`` tests).
        queue: who waits.
    """

    preemptive: bool = False
    scans_waiting: bool = False
    steady: bool = True

    def __init__(self, params: Any = None, **values: Any) -> None:
        super().__init__(params, **values)
        self.queue: Queue = self.make_queue()
        self._residents = Residents(self.rank, self.rank_holds)

    def make_queue(self) -> Queue:
        """What keeps the waiting requests in order."""
        return LazyHeap(self._place)

    def rank(self, request: Request) -> Any:
        """The request's rank, lowest first: anything that can be compared.

        Of a waiting request it may rise by itself; when it falls, call ``self.queue.push(request)``. Of a resident it
        may change at will between steps, but see ``rank_holds``.
        """
        raise NotImplementedError(f"{type(self).__name__} must say rank(request): the lowest goes first")

    def rank_holds(self, request: Request) -> float | None:
        """For how many more output tokens the rank of a resident does not rise above what it is now.

        ``math.inf``: as long as it is resident. None, the default: nobody knows, so where a newcomer may pass, each
        step looks at all residents. When a rank rises all the same, call ``look_again``.
        """
        return None

    def look_again(self) -> None:
        """Ranks of residents rose though ``rank_holds`` said that they would not: look at all of them."""
        self._residents.look_again()

    def defaults(self, limits: Limits) -> Mapping[str, Any]:
        """Seats for as many as a batch holds; of a preemptive policy, residents may pause."""
        return {} if self.preemptive else super().defaults(limits)

    def in_order(self, step: Step) -> Iterator[Request]:
        """Waiting requests, lowest rank first."""
        return self.queue.in_order()

    def residents(self, step: Step) -> Iterator[Sequence[Request]]:
        """Offers to residents; by rank where not all of them can run."""
        if len(step.running) > _places(step):
            yield [request for *_, request in self._residents.in_order(step)]
        else:
            yield step.decodes
            if step.prefilling:
                yield sorted(step.prefilling, key=self._place)

    @hookimpl
    def admission(self, step: Step) -> Iterator[Request | Sequence[Request]]:
        """Residents and newcomers; of a preemptive policy, one by rank among the other."""
        if len(self.queue) != len(step.waiting):  # a fault kept an observer from seeing somebody come or go
            self.queue.fill(step.waiting)
        if not self.preemptive:
            yield from super().admission(step)
            return
        best = self.queue.first() if step.waiting else None
        if best is None:
            yield from self.residents(step)
        elif len(step.running) < _places(step):
            yield step.decodes  # a token each; newcomers take the blocks of those that rank worse
            yield from self._merged(step, sorted((*self._place(r), r) for r in step.prefilling))
        elif self._residents.any_after(step, self.rank(best)):
            yield from self._merged(step, self._residents.in_order(step))
        else:
            yield from self.residents(step)

    def _merged(self, step: Step, places: list[tuple[Any, int, Request]]) -> Iterator[Request | Sequence[Request]]:
        """Residents and newcomers by rank; once a newcomer was blocked, residents only."""
        ranks, residents = [rank for rank, *_ in places], [request for *_, request in places]
        start = end = num_victims = 0
        lowest: Any = None  # rank of the victims
        for newcomer in self.in_order(step):
            rank = self.rank(newcomer)
            for victim in step.preempted[num_victims:]:
                now = self.rank(victim)
                lowest = now if not num_victims or now < lowest else lowest
                num_victims += 1
            if num_victims and not rank < lowest:
                break  # it ranks behind one that was just evicted, or is that one
            while end < len(residents) and not rank < ranks[end]:
                end += 1
            if end > start:
                yield residents[start:end]
                start = end
            if not step.budget or len(step.batch) >= step.limits.max_num_seqs:
                break
            yield newcomer
            if not newcomer.num_scheduled:
                break
        if start < len(residents):
            yield residents[start:]

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Request | Literal[Hold.HOLD]:
        """The resident that ranks worst; for a newcomer only one that ranks worse than it."""
        if not request.is_waiting:
            return next(victim for _, victim in self._residents.worst_first(step))
        if not self.preemptive:
            return HOLD
        rank = self.rank(request)
        nobody_moved = step.num_residents == len(step.running) and not step.preempted
        if nobody_moved and not self._residents.any_after(step, rank):
            return HOLD
        lacking = step.blocks_needed(request, request.num_tokens) - step.free_blocks
        worst, places = None, self._residents.worst_first(step)
        while (place := next(places, None)) is not None and rank < place[0]:
            worst = worst or place[1]
            lacking -= len(place[1].block_table)
            if lacking <= 0:
                return worst
        return HOLD

    def _place(self, request: Request) -> tuple[Any, int]:
        return self.rank(request), request.arrival_index

    # Who waits, and who is resident, is kept as it changes, so that a step does not look at all of them.

    @hookimpl
    def policy_attached(self, step: Step) -> None:
        """Take over who waits."""
        self.queue.fill(step.waiting)
        self._residents.clear()

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        """It waits from now on."""
        self.queue.push(request)

    @hookimpl
    def request_admitted(self, request: Request) -> None:
        """It waits no longer."""
        self.queue.discard(request)
        self._residents.add(request)

    @hookimpl
    def request_preempted(self, step: Step, victim: Request) -> None:
        """It waits again."""
        self.queue.push(victim)
        self._residents.discard(victim)

    @hookimpl
    def request_finished(self, request: Request) -> None:
        """It waits no longer, if it did."""
        self.queue.discard(request)
        self._residents.discard(request)


def _places(step: Step) -> int:
    """Residents that can run in one step, whatever else does."""
    return min(step.limits.max_num_seqs, step.limits.max_num_batched_tokens)
