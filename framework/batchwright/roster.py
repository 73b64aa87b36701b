"""The decodes that advance together, as columns of arrays.

Where all decodes take one token in each step, nothing of a request changes that does not follow from the number of
steps. The roster keeps what is common (a count of steps), what a backend reads (arrays, one row a request), and when
each request must be looked at again: at the edge of a block and where it ends. What a step costs follows from who is
due in it, not from who runs.

A request on the roster has tokens of its own as far as they were settled; the later ones stand in the roster and are
brought over when somebody reads them. It leaves with all its values written down, and every request whose step is
decided one by one is not on the roster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from batchwright.block_manager import BlockManager
from batchwright.request import BY_ADMISSION, Request
from batchwright.roster_arrays import Ints, RosterArrays, Rows
from batchwright.roster_rows import RosterRows
from batchwright.roster_steps import RosterSteps
from batchwright.roster_tokens import RECENT, ROW

if TYPE_CHECKING:
    from batchwright.step import Step

NOBODY, EVERYBODY = 0, 2**62
"""Admissions that are before, and after, any there is."""

_OFFSET = attrgetter("_offset")


class Watcher(Protocol):
    """Told of who comes and goes; between the two each gets one token with each advance of the roster."""

    def entered(self, requests: Sequence[Request]) -> None:
        """These came."""

    def left(self, request: Request, first: int, last: int) -> None:
        """This one went: it was there for the advances number ``first`` up to ``last``, not included."""


class Roster(RosterSteps):
    """Decodes that take one token each in every step in which any does.

    Attributes:
        count: how many there are.
        advancing_to: number of an admission; those admitted up to it are in the batch of the present step.
        wait: waits for tokens that are not known yet; None where all are.
        version: another number whenever somebody came or went.
        watchers: told of it.
    """

    def __init__(self, blocks: BlockManager, *, early: bool) -> None:
        """Takes the pool, and whether full blocks are registered when they are scheduled."""
        self._rows = RosterRows()
        super().__init__(blocks, RosterArrays(self._rows.riders), early=early)
        self.wait: Callable[[], None] | None = None
        self.advancing_to = NOBODY
        self.version = 0
        self.watchers: list[Watcher] = []
        self._forget_all()

    def _forget_all(self) -> None:
        self.count = 0
        self._members: dict[Request, None] = {}  # in order of admission
        self._sum = 0  # of the offsets
        self._most: int | None = None  # largest of the offsets, where that is known
        self._ends: list[tuple[int, int, Request]] | None = None  # a heap of (steps at its end, admission, request)
        self._rows.clear()
        self._forget_dates()

    # Who is on it -------------------------------------------------------------------------------------------

    @property
    def order(self) -> Rows:
        """intp[count]: rows of the arrays in order of admission; never changed in place."""
        rows = self._rows
        if rows.gone or rows.come:
            rows.close_ranks()
        return rows.order

    def riders_of(self, order: Rows) -> list[Request | None]:
        """Who is in these rows now."""
        riders = self._rows.riders
        return [riders[row] for row in order.tolist()]

    @property
    def members(self) -> Collection[Request]:
        """Who is on it, in order of admission."""
        return self._members.keys()

    @property
    def newest(self) -> Request:
        """Who of them was admitted last."""
        return next(reversed(self._members))

    @property
    def num_tokens(self) -> int:
        """Tokens of all their requests."""
        return self._sum + self.count * self.steps

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest of their requests; there must be one."""
        if self._most is None:
            self._most = max(map(_OFFSET, self._members))
        return self._most + self.steps

    def num_steps_to_end(self) -> int:
        """In how many steps somebody ends by its length, if nobody did before; there must be somebody."""
        if self._ends is None:
            self._ends = [(r._end - r._offset, r._admission, r) for r in self._members]
            heapify(self._ends)
        ends = self._ends
        while (first := ends[0])[2]._row < 0 or first[2]._end - first[2]._offset != first[0]:
            heappop(ends)
        return first[0] - self.steps

    # Coming and going ---------------------------------------------------------------------------------------

    def enter(self, requests: Sequence[Request]) -> None:
        """Take decodes that are not on the roster, in order of admission."""
        rows, members = self._rows, self._members
        in_order = not self.count or next(reversed(members))._admission < requests[0]._admission
        if len(rows.vacant) < len(requests):
            rows.close_ranks()
            if len(rows.vacant) < len(requests):
                self._make_rows(self.count + len(requests))
        theirs = rows.vacant[-len(requests) :]
        for row, request in zip(theirs, requests, strict=True):  # what could fail comes first
            self.arrays.fill(row, request, self.steps)
        del rows.vacant[-len(requests) :]
        riders, alive, flat = rows.riders, rows.alive, self.tokens.flat
        steps, before = self.steps, (self.steps - 1) % RECENT
        for row, request in zip(theirs, requests, strict=True):
            known = request._known
            if request._unmade is not None and request._unmade[-1][1] == len(known):
                request._make_tokens()
            riders[row] = request
            flat[row * ROW + before] = known[-1]
            request._row = row
            request._entry = entry = len(known)
            request._offset = offset = entry - steps
            self._sum += offset
            if not self.count or (self._most is not None and offset > self._most):
                self._most = offset
            self.count += 1
            alive[row] = True
            members[request] = None
            if self._ends is not None:
                heappush(self._ends, (request._end - offset, request._admission, request))
            self._look_again(request, entry)
        self.version += 1
        rows.come += theirs
        if not in_order:
            self._put_in_order()
        if self._ends is not None and len(self._ends) > 2 * self.count + 64:
            self._ends = None  # most of it is of those who left
        for watcher in self.watchers:
            watcher.entered(requests)

    def _put_in_order(self) -> None:
        self._members = dict.fromkeys(sorted(self._members, key=BY_ADMISSION))
        self._rows.close_ranks()
        self._rows.set_order(np.array([r._row for r in self._members], dtype=np.intp))
        self._sort()

    def _make_rows(self, num: int) -> None:
        num = max(2 * len(self._rows.riders), num, 16)
        self._rows.make(num)
        self.tokens.make_rows(num)
        self.arrays.make_rows(num)

    def leave(self, request: Request) -> None:
        """Let one go, with its values written down."""
        rows, row, offset = self._rows, request._row, request._offset
        self._write_down(request)
        rows.riders[row] = None
        rows.alive[row] = False
        rows.gone.append(row)
        del self._members[request]
        self.count -= 1
        self.version += 1
        self._sum -= offset
        if offset == self._most:
            self._most = None
        for those in (self.growing, self.filling, self._growing_next):
            those.pop(request, None)
        if not self.count:
            self._forget_all()

    def disband(self) -> None:
        """Let all go."""
        for request in self._members:
            self._write_down(request)
        self._rows.riders[:] = [None] * len(self._rows.riders)
        self._rows.alive[:] = False
        self.advancing_to = NOBODY
        self.version += 1
        self._forget_all()

    def _write_down(self, request: Request) -> None:
        self.settle(request)
        request._last_token_ns = request._last_ns
        request._scheduled = request.num_scheduled
        request._row = -1
        for watcher in self.watchers:
            watcher.left(request, request._entry - request._offset, self.steps)

    # One token for each ---------------------------------------------------------------------------------------

    def advance(self, tokens: NDArray[np.uint32], now: int) -> list[Request]:
        """``next_step``, with the tokens that they get, in order of admission."""
        rows, ring = self._rows, self.tokens
        if rows.gone or rows.come:
            rows.close_ranks()
        steps = ring.last_written = self.steps
        place = steps % RECENT
        ring.flat[place:][rows.places] = tokens
        ring.deferred[place] = False
        return self.next_step(now)

    def advance_deferred(self, now: int) -> list[Request]:
        """``advance`` where nobody needs the tokens now: who reads them draws them."""
        ring = self.tokens
        steps = ring.last_deferred = self.steps
        ring.deferred[steps % RECENT] = True
        return self.next_step(now)

    # The last of them -----------------------------------------------------------------------------------------

    def last_tokens(self, order: Rows) -> Ints:
        """int32[n]: the last token of each of these rows."""
        place, rows = (self.steps - 1) % RECENT, self._rows
        if self.tokens.deferred[place]:
            riders = [r for r in self.riders_of(order) if r is not None]
            return np.array([r._tokens[-1] for r in riders], dtype=np.int32)
        return self.tokens.flat[place:].take(rows.places if order is rows.order else order * ROW)

    def put_last(self, order: Rows, tokens: NDArray[np.uint32]) -> None:
        """The last token of each of these rows, which was not known before."""
        self.tokens.flat[(self.steps - 1) % RECENT :][order * ROW] = tokens

    def put_last_of(self, request: Request, token: int) -> None:
        """The last token of one of them."""
        self.tokens.flat[request._row * ROW + (self.steps - 1) % RECENT] = token

    def last_token_of(self, request: Request) -> int:
        """The last token of one of them."""
        return int(self.tokens.flat[request._row * ROW + (self.steps - 1) % RECENT])


def roster_of(step: Step) -> Roster:
    """The roster of a step's scheduler, for an observer that watches it."""
    return step._state.roster
