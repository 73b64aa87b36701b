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

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from batchwright.block_manager import BlockManager
from batchwright.request import UNKNOWN, Request
from batchwright.roster_arrays import RosterArrays

if TYPE_CHECKING:
    from batchwright.step import Step

RECENT = 256
"""Tokens of a request that the roster keeps: before the last is lost, they are settled."""
_HALF = RECENT // 2
_ROW = RECENT + 16  # so that equal places of neighbouring rows do not share a cache set
_BYTES = 4
NOBODY, EVERYBODY = 0, 2**62
"""Admissions that are before, and after, any there is."""
BY_ADMISSION = attrgetter("_admission")

_OFFSET = attrgetter("_offset")
_NEVER = -1

Ints = NDArray[np.int32]
Rows = NDArray[np.intp]
Draw = Callable[[int, int, int], Sequence[int] | NDArray[np.uint32]]
"""Tokens of a request that follow from its seed and their places: of a seed, a place in the output, and how many."""


class Watcher(Protocol):
    """Told of who comes and goes; between the two each gets one token with each advance of the roster."""

    def entered(self, requests: Sequence[Request]) -> None:
        """These came."""

    def left(self, request: Request, first: int, last: int) -> None:
        """This one went: it was there for the advances number ``first`` up to ``last``, not included."""


class Roster:
    """Decodes that take one token each in every step in which any does.

    Attributes:
        count: how many there are.
        steps: how often the roster has advanced.
        last_ns: end of the step in which it advanced last.
        advancing_to: number of an admission; those admitted up to it are in the batch of the present step.
        growing: who lacks a block in the next step, in order of admission.
        filling: whose last block the next step fills, in order of admission; where blocks are registered as they are
            scheduled.
        arrays: what a backend reads.
        wait: waits for tokens that are not known yet; None where all are.
        version: another number whenever somebody came or went.
        watchers: told of it.
        draw: makes tokens that were deferred: who reads them asks for them.
    """

    def __init__(self, blocks: BlockManager, *, early: bool) -> None:
        """Takes the pool, and whether full blocks are registered when they are scheduled."""
        self._size = blocks.block_size
        self._early = early
        self._late = blocks.cache.enabled and not early
        self._register = blocks.index.register_next
        self._next_hash = blocks.index.next_hash
        self._settle_every = max(1, _HALF // blocks.block_size)  # blocks
        self.steps = 0
        self.last_ns: int | None = None
        self.wait: Callable[[], None] | None = None
        self._settled: list[Request] = []  # with an unknown token
        self.advancing_to = NOBODY
        self.version = 0
        self.watchers: list[Watcher] = []
        self.draw: Draw = _nobody_draws
        # Whether the tokens of a step, by its place in the rows, were deferred; and the last steps of either kind.
        self._deferred = bytearray(RECENT)
        self._last_deferred = self._last_written = _NEVER
        self._tokens: Ints = np.zeros((0, _ROW), dtype=np.int32)
        self._flat = self._tokens.reshape(-1)  # the same memory
        self._bytes = memoryview(b"")  # the same memory
        self._alive: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._riders: list[Request | None] = []
        self.arrays = RosterArrays(self._riders)
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._members: dict[Request, None] = {}  # in order of admission
        self._order: Rows = np.zeros(0, dtype=np.intp)
        self._places = self._order
        self._gone: list[int] = []  # rows whose request left, and which the order still names
        self._come: list[int] = []  # rows at its end, which it does not name yet
        self._sum = 0  # of the offsets
        self._most: int | None = None  # largest of the offsets, where that is known
        self._ends: list[tuple[int, int, Request]] | None = None  # a heap of (steps at its end, admission, request)
        self._vacant = list(range(len(self._riders) - 1, -1, -1))
        self._calendar: defaultdict[int, list[Request]] = defaultdict(list)
        self.growing: dict[Request, None] = {}
        self.filling: dict[Request, None] = {}
        self._growing_next: dict[Request, None] = {}

    # Who is on it -------------------------------------------------------------------------------------------

    @property
    def order(self) -> Rows:
        """intp[count]: rows of the arrays in order of admission; never changed in place."""
        if self._gone or self._come:
            self._close_ranks()
        return self._order

    def _close_ranks(self) -> None:
        order = self._order
        if self._come:
            order = np.concatenate((order, np.array(self._come, dtype=np.intp)))
            self._come = []
        if self._gone:
            order = order[self._alive[order]]
            self._vacant += self._gone
            self._gone = []
        self._set_order(order)

    def _set_order(self, order: Rows) -> None:
        self._order = order
        self._places = order * _ROW

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

    def enter(self, requests: Sequence[Request]) -> None:
        """Take decodes that are not on the roster, in order of admission."""
        in_order = not self.count or self.newest._admission < requests[0]._admission
        if len(self._vacant) < len(requests):
            self._close_ranks()
            if len(self._vacant) < len(requests):
                self._make_rows(self.count + len(requests))
        rows = self._vacant[-len(requests) :]
        for row, request in zip(rows, requests, strict=True):  # what could fail comes first
            self.arrays.fill(row, request, self.steps)
        del self._vacant[-len(requests) :]
        steps, before = self.steps, (self.steps - 1) % RECENT
        for row, request in zip(rows, requests, strict=True):
            known = request._known
            if request._unmade is not None and request._unmade[-1][1] == len(known):
                request._make_tokens()
            self._riders[row] = request
            self._flat[row * _ROW + before] = known[-1]
            request._row = row
            request._entry = entry = len(known)
            request._offset = offset = entry - steps
            self._sum += offset
            if not self.count or (self._most is not None and offset > self._most):
                self._most = offset
            self.count += 1
            self._alive[row] = True
            self._members[request] = None
            if self._ends is not None:
                heappush(self._ends, (request._end - offset, request._admission, request))
            self._look_again(request, entry)
        self.version += 1
        self._come += rows
        if not in_order:
            self._members = dict.fromkeys(sorted(self._members, key=BY_ADMISSION))
            self._close_ranks()
            self._set_order(np.array([r._row for r in self._members], dtype=np.intp))
            self._sort()
        if self._ends is not None and len(self._ends) > 2 * self.count + 64:
            self._ends = None  # most of it is of those who left
        for watcher in self.watchers:
            watcher.entered(requests)

    def _make_rows(self, num: int) -> None:
        old = len(self._riders)
        new = max(2 * old, num, 16)
        tokens = np.zeros((new, _ROW), dtype=np.int32)
        tokens[:old] = self._tokens
        self._tokens = tokens
        self._flat = tokens.reshape(-1)
        self._bytes = self._flat.view(np.uint8).data
        self._alive = np.concatenate((self._alive, np.zeros(new - old, dtype=np.bool_)))
        self._riders += [None] * (new - old)
        self._vacant += range(new - 1, old - 1, -1)
        self.arrays.make_rows(new)

    def leave(self, request: Request) -> None:
        """Let one go, with its values written down."""
        row, offset = request._row, request._offset
        self._write_down(request)
        self._riders[row] = None
        self._alive[row] = False
        self._gone.append(row)
        del self._members[request]
        self.count -= 1
        self.version += 1
        self._sum -= offset
        if offset == self._most:
            self._most = None
        for those in (self.growing, self.filling, self._growing_next):
            those.pop(request, None)
        if not self.count:
            self._clear()

    def disband(self) -> None:
        """Let all go."""
        for request in self._members:
            self._write_down(request)
        self._riders[:] = [None] * len(self._riders)
        self._alive[:] = False
        self.advancing_to = NOBODY
        self.version += 1
        self._clear()

    def _write_down(self, request: Request) -> None:
        self.settle(request)
        request._last_token_ns = request._last_ns
        request._scheduled = request.num_scheduled
        request._row = -1
        for watcher in self.watchers:
            watcher.left(request, request._entry - request._offset, self.steps)

    # Advancing ----------------------------------------------------------------------------------------------

    def advance(self, tokens: NDArray[np.uint32], now: int) -> list[Request]:
        """Give each its next token, in order of admission.

        Returns:
            Those whose output may end with it, in the same order: they are at their last token, or have stop strings.
            Tell those who ``go_on``.
        """
        if self._gone or self._come:
            self._close_ranks()
        steps = self._last_written = self.steps
        place = steps % RECENT
        self._flat[place:][self._places] = tokens
        self._deferred[place] = False
        return self.next_step(now)

    def advance_deferred(self, now: int) -> list[Request]:
        """``advance`` where nobody needs the tokens now: who reads them draws them."""
        steps = self._last_deferred = self.steps
        self._deferred[steps % RECENT] = True
        return self.next_step(now)

    def next_step(self, now: int) -> list[Request]:
        """``advance``, where the tokens are written, or deferred, already."""
        steps = self.steps = self.steps + 1
        self.last_ns = now
        if self.growing or self._growing_next:
            self.growing, self._growing_next = self._growing_next, {}
        due = self._calendar.pop(steps, None)
        if due is None:
            return []
        ending = []
        size, late, register, block_tokens = self._size, self._late, self._register, self.block_tokens
        early, growing, filling, every = self._early, self.growing, self.filling, self._settle_every
        next_due = steps + size if size <= _HALF else 0
        # Who left and came back meanwhile may stand there twice.
        if len(due) > 1:
            due = sorted({r for r in due if r._due == steps and r._row >= 0}, key=BY_ADMISSION)
        elif due[0]._due != steps or due[0]._row < 0:
            return []
        for request in due:
            length = steps + request._offset
            if late and (length - 1) // size > request._num_registered:
                register(request, block_tokens(request))
            if next_due and length + size < request._end and request._stop_check is None:
                # As ``_look_again`` has it for most: a block is full, and the next will be before anything else.
                if early:
                    filling[request] = None
                elif length > request._room:
                    growing[request] = None
                if length // size % every == 0:
                    self.settle(request)
                request._due = next_due
                self._calendar[next_due].append(request)
            elif length < request._end and request._stop_check is None:
                self._look_again(request, length)
            else:
                ending.append(request)
        return ending

    def next_steps(self, most: int, blocks: BlockManager, free: list[int]) -> list[Request]:
        """``next_step`` at most so often, with the blocks that it takes, where none is registered and nobody has stop
        strings: up to a step with which somebody ends, or that lacks a block.

        Args:
            most: steps at most.
            blocks: the pool.
            free: gets how many blocks are free after each step that was taken.

        Returns:
            Those who end with the last of them, in order of admission.
        """
        calendar, size, every = self._calendar, self._size, self._settle_every
        steps, num_free, growing = self.steps, blocks.num_free, self.growing
        last = steps + most
        ending: list[Request] = []
        while steps < last:
            if growing:
                if len(growing) > num_free:
                    break
                requests = [*growing]
                blocks.append_each(requests)
                self.arrays.grew(requests)
                num_free -= len(requests)
                growing = self.growing = {}
            steps += 1
            free.append(num_free)
            due = calendar.pop(steps, None)
            if due is None:
                continue
            self.steps = steps
            if len(due) > 1:  # who left and came back meanwhile may stand there twice
                due = sorted({r for r in due if r._due == steps and r._row >= 0}, key=BY_ADMISSION)
            elif due[0]._due != steps or due[0]._row < 0:
                continue
            for request in due:
                length = steps + request._offset
                if length + size < request._end and size <= _HALF:
                    if length > request._room:
                        growing[request] = None
                    if length // size % every == 0:
                        self.settle(request)
                    request._due = steps + size
                    calendar[steps + size].append(request)
                elif length < request._end:
                    self._look_again(request, length)
                else:
                    ending.append(request)
            if ending:
                break
        self.steps = steps
        return ending

    def go_on(self, requests: Sequence[Request]) -> None:
        """These might have ended, and did not."""
        for request in requests:
            self._look_again(request, request.num_tokens)
        self._sort()

    def _sort(self) -> None:
        self.growing = dict.fromkeys(sorted(self.growing, key=BY_ADMISSION))
        self.filling = dict.fromkeys(sorted(self.filling, key=BY_ADMISSION))

    def _look_again(self, request: Request, length: int) -> None:
        """Note what the next step brings a request of this length, and after how many it must be looked at again.

        When a block is full: then it is registered, and another is needed; one step before that where blocks are
        registered as they are scheduled; and when it ends.
        """
        size = self._size
        if self._early:
            if not length % size:
                self.filling[request] = None
            if length > request._room:
                self.growing[request] = None
            steps = size - length % size
        else:
            if length > request._room:
                self.growing[request] = None
            steps = -length % size + 1
        if length // size % self._settle_every == 0:
            self.settle(request)
        if request._stop_check is not None:
            steps = 1  # it is asked of each token
        elif steps > _HALF or length + steps > request._end:
            steps = min(_HALF, request._end - length)
        due = request._due = self.steps + steps
        self._calendar[due].append(request)

    def fill(self, requests: Iterable[Request], fresh: dict[Request, list[int]]) -> None:
        """These fill their last block with this step: register it, into ``fresh``; the step after may need another."""
        size, register, steps, memory = self._size, self._register, self.steps, self._bytes
        in_ring = size <= _HALF and self._last_deferred == _NEVER
        for request in requests:
            length, first = steps + request._offset, request._num_registered * size
            if length >= first + size:
                start = (first - request._offset) % RECENT
                if in_ring and first >= request._entry and start + size <= RECENT:  # as ``block_tokens``, most often
                    at = (request._row * _ROW + start) * _BYTES
                    tokens = memory[at : at + size * _BYTES].tobytes()
                else:
                    tokens = self.block_tokens(request)
                fresh[request] = register(request, tokens)
            if length == request._room:
                self._growing_next[request] = None

    # Several steps at once ------------------------------------------------------------------------------------

    @property
    def most_ahead(self) -> int:
        """Steps whose tokens can be written ahead: more would overwrite some that are not settled."""
        return max(1, RECENT // 4)

    def num_steps_to_end(self) -> int:
        """In how many steps somebody ends by its length, if nobody did before; there must be somebody."""
        if self._ends is None:
            self._ends = [(r._end - r._offset, r._admission, r) for r in self._members]
            heapify(self._ends)
        ends = self._ends
        while (first := ends[0])[2]._row < 0 or first[2]._end - first[2]._offset != first[0]:
            heappop(ends)
        return first[0] - self.steps

    def write_ahead(self, tokens: NDArray[np.uint32]) -> None:
        """Tokens of the next steps, for ``next_step``: uint32[steps, count], rows in order of admission."""
        order, place = self.order, self.steps % RECENT
        first = tokens[: RECENT - place]
        self._tokens[order, place : place + len(first)] = first.T
        if len(first) < len(tokens):
            self._tokens[order, : len(tokens) - len(first)] = tokens[len(first) :].T
        self._last_written = self.steps + len(tokens) - 1
        self._note_deferred(len(tokens), False)

    def defer_ahead(self, num_steps: int, draw: Draw) -> None:
        """The same, where nobody needs these tokens now: who reads them draws them."""
        self.draw = draw
        self._last_deferred = self.steps + num_steps - 1
        self._note_deferred(num_steps, True)

    def _note_deferred(self, num_steps: int, deferred: bool) -> None:
        place = self.steps % RECENT
        first = min(num_steps, RECENT - place)
        self._deferred[place : place + first] = bytes([deferred]) * first
        if first < num_steps:
            self._deferred[: num_steps - first] = bytes([deferred]) * (num_steps - first)

    def skip(self, most: int) -> int:
        """``next_step``, at most so often and as long as nobody is due and nobody lacks a block; how often it was."""
        if self.growing or self.filling or self._growing_next:
            return 0
        calendar, steps = self._calendar, self.steps
        due = steps + 1
        last = steps + most
        while due <= last and due not in calendar:
            due += 1
        self.steps = due - 1
        return due - 1 - steps

    def due_next(self) -> Sequence[Request]:
        """Whom the end of the next step looks at; some of them may have left."""
        return self._calendar.get(self.steps + 1, ())

    def hashes_to_fill(self) -> list[int]:
        """Hashes of the blocks that ``fill`` would register."""
        size, next_hash = self._size, self._next_hash
        return [
            next_hash(request, self.block_tokens(request))
            for request in self.filling
            if (self.steps + request._offset) // size > request._num_registered
        ]

    # Tokens -------------------------------------------------------------------------------------------------

    def settle(self, request: Request) -> None:
        """Bring the tokens of a request over to itself."""
        first, last = len(request._known) - request._offset, self.steps
        if first == last:
            return
        if self._last_deferred < first:
            self._bring(request, first, last)
        elif self._last_written < first:
            _defer(request, last - first)
        else:
            while first < last:
                deferred, place = self._deferred[first % RECENT], first + 1
                while place < last and self._deferred[place % RECENT] == deferred:
                    place += 1
                if deferred:
                    _defer(request, place - first)
                else:
                    self._bring(request, first, place)
                first = place

    def _bring(self, request: Request, first: int, last: int) -> None:
        """Its tokens of these steps."""
        known = request._known
        start, row = first % RECENT, request._row * _ROW
        end = start + last - first
        if end > RECENT:
            known.frombytes(self._bytes[(row + start) * _BYTES : (row + RECENT) * _BYTES])
            start, end = 0, end - RECENT
        known.frombytes(self._bytes[(row + start) * _BYTES : (row + end) * _BYTES])
        if known[-1] == UNKNOWN:
            self._settled.append(request)

    def block_tokens(self, request: Request) -> bytes:
        """The tokens of the next block that a request can register; it is full, and its last."""
        size = self._size
        first = request._num_registered * size
        start = (first - request._offset) % RECENT
        if start + size <= RECENT and first >= request._entry and size <= _HALF and self._last_deferred == _NEVER:
            at = (request._row * _ROW + start) * _BYTES
            return self._bytes[at : at + size * _BYTES].tobytes()
        return request._tokens[first : first + size].tobytes()

    def last_tokens(self, order: Rows) -> Ints:
        """int32[n]: the last token of each of these rows."""
        if self._deferred[(self.steps - 1) % RECENT]:
            riders = [r for r in self.riders_of(order) if r is not None]
            return np.array([r._tokens[-1] for r in riders], dtype=np.int32)
        return self._flat[(self.steps - 1) % RECENT :].take(self._places if order is self._order else order * _ROW)

    # Tokens that come later -----------------------------------------------------------------------------------

    def riders_of(self, order: Rows) -> list[Request | None]:
        """Who is in these rows now."""
        return [self._riders[row] for row in order.tolist()]

    def put_last(self, order: Rows, tokens: NDArray[np.uint32]) -> None:
        """The last token of each of these rows, which was not known before."""
        self._flat[(self.steps - 1) % RECENT :][order * _ROW] = tokens

    def put_last_of(self, request: Request, token: int) -> None:
        """The last token of one of them."""
        self._tokens[request._row, (self.steps - 1) % RECENT] = token

    def last_token_of(self, request: Request) -> int:
        """The last token of one of them."""
        return int(self._tokens[request._row, (self.steps - 1) % RECENT])

    def take_settled(self) -> list[Request]:
        """Who took over a token that was not known, since the last call."""
        settled, self._settled = self._settled, []
        return settled


_ZEROS = bytes(_BYTES * RECENT)


def _defer(request: Request, num: int) -> None:
    """Zeros in the place of its next tokens, which are made when somebody reads them."""
    known = request._known
    first = len(known)
    known.frombytes(_ZEROS[: _BYTES * num])
    last = len(known)
    unmade = request._unmade
    if unmade is None:
        request._unmade = [(first, last)]
    elif unmade[-1][1] == first and unmade[-1][0] >= request.num_prompt_tokens:
        unmade[-1] = (unmade[-1][0], last)
    else:
        unmade.append((first, last))


def _nobody_draws(seed: int, output_index: int, num_tokens: int) -> Sequence[int]:
    raise RuntimeError("tokens were deferred, and nobody said how they are drawn")


def roster_of(step: Step) -> Roster:
    """The roster of a step's scheduler, for an observer that watches it."""
    return step._state.roster
