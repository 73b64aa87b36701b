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
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from batchwright.block_manager import BlockManager
from batchwright.request import UNKNOWN, Request
from batchwright.roster_arrays import RosterArrays

RECENT = 256
"""Tokens of a request that the roster keeps: before the last is lost, they are settled."""
_HALF = RECENT // 2
_ROW = RECENT + 16  # so that equal places of neighbouring rows do not share a cache set
_BYTES = 4
NOBODY, EVERYBODY = 0, 2**62
"""Admissions that are before, and after, any there is."""
BY_ADMISSION = attrgetter("_admission")

Ints = NDArray[np.int32]
Rows = NDArray[np.intp]


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
        self._tokens: Ints = np.zeros((0, _ROW), dtype=np.int32)
        self._flat = self._tokens.reshape(-1)  # the same memory
        self._bytes = memoryview(b"")  # the same memory
        self._alive: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)
        self._riders: list[Request | None] = []
        self.arrays = RosterArrays(self._riders)
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self._order: Rows = np.zeros(0, dtype=np.intp)
        self._places = self._order
        self._gone: list[int] = []  # rows whose request left, and which the order still names
        self._vacant = list(range(len(self._riders) - 1, -1, -1))
        self._calendar: defaultdict[int, list[Request]] = defaultdict(list)
        self.growing: dict[Request, None] = {}
        self.filling: dict[Request, None] = {}
        self._growing_next: dict[Request, None] = {}
        self._first_end_of: Rows | None = None  # the order of which ``_first_end`` is true
        self._first_end = 0

    # Who is on it -------------------------------------------------------------------------------------------

    @property
    def order(self) -> Rows:
        """intp[count]: rows of the arrays in order of admission; never changed in place."""
        if self._gone:
            self._close_ranks()
        return self._order

    def _close_ranks(self) -> None:
        self._set_order(self._order[self._alive[self._order]])
        self._vacant += self._gone
        self._gone = []

    def _set_order(self, order: Rows) -> None:
        self._order = order
        self._places = order * _ROW

    @property
    def newest(self) -> Request:
        """Who of them was admitted last."""
        request: Request | None = self._riders[self.order[-1]]
        assert request is not None
        return request

    def enter(self, requests: Sequence[Request]) -> None:
        """Take decodes that are not on the roster, in order of admission."""
        order = self.order
        in_order = not self.count or self.newest._admission < requests[0]._admission
        if len(self._vacant) < len(requests):
            self._make_rows(self.count + len(requests))
        rows = self._vacant[-len(requests) :]
        for row, request in zip(rows, requests, strict=True):  # what could fail comes first
            self.arrays.fill(row, request, self.steps)
        del self._vacant[-len(requests) :]
        before = (self.steps - 1) % RECENT
        for row, request in zip(rows, requests, strict=True):
            self._riders[row] = request
            self._tokens[row, before] = request._known[-1]
            request._row, request._entry = row, len(request._known)
            request._offset = request._entry - self.steps
            self._look_again(request, request._entry)
        self._alive[rows] = True
        self.count += len(requests)
        order = np.concatenate((order, np.array(rows, dtype=np.intp)))
        if not in_order:
            riders = sorted((r for r in self._riders if r is not None), key=BY_ADMISSION)
            order = np.array([r._row for r in riders], dtype=np.intp)
            self._sort()
        self._set_order(order)

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
        row = request._row
        self._write_down(request)
        self._riders[row] = None
        self._alive[row] = False
        self._gone.append(row)
        self.count -= 1
        for those in (self.growing, self.filling, self._growing_next):
            those.pop(request, None)
        if not self.count:
            self._clear()

    def disband(self) -> None:
        """Let all go."""
        for request in self._riders:
            if request is not None:
                self._write_down(request)
        self._riders[:] = [None] * len(self._riders)
        self._alive[:] = False
        self.advancing_to = NOBODY
        self._clear()

    def _write_down(self, request: Request) -> None:
        self.settle(request)
        request._last_token_ns = request._last_ns
        request._scheduled = request.num_scheduled
        request._row = -1

    # Advancing ----------------------------------------------------------------------------------------------

    def advance(self, tokens: NDArray[np.uint32], now: int) -> list[Request]:
        """Give each its next token, in order of admission.

        Returns:
            Those whose output may end with it, in the same order: they are at their last token, or have stop strings.
            Tell those who ``go_on``.
        """
        if self._gone:
            self._close_ranks()
        self._flat[self.steps % RECENT :][self._places] = tokens
        return self.next_step(now)

    def next_step(self, now: int) -> list[Request]:
        """``advance``, where the tokens are written already."""
        steps = self.steps = self.steps + 1
        self.last_ns = now
        self.growing, self._growing_next = self._growing_next, {}
        due = self._calendar.pop(steps, None)
        if due is None:
            return []
        ending = []
        size, late, register, block_tokens = self._size, self._late, self._register, self.block_tokens
        early, growing, filling, every = self._early, self.growing, self.filling, self._settle_every
        next_due = steps + size if size <= _HALF else 0
        next_time = self._calendar[next_due] if next_due else []
        # Who left and came back meanwhile may stand there twice.
        if len(due) > 1:
            due = sorted({r for r in due if r._due == steps and r._row >= 0}, key=BY_ADMISSION)
        elif not due or due[0]._due != steps or due[0]._row < 0:
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
                next_time.append(request)
            elif length < request._end and request._stop_check is None:
                self._look_again(request, length)
            else:
                ending.append(request)
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
        size, register = self._size, self._register
        for request in requests:
            length = self.steps + request._offset
            if length // size > request._num_registered:
                fresh[request] = register(request, self.block_tokens(request))
            if length == request._room:
                self._growing_next[request] = None

    # Several steps at once ------------------------------------------------------------------------------------

    @property
    def most_ahead(self) -> int:
        """Steps whose tokens can be written ahead: more would overwrite some that are not settled."""
        return max(1, RECENT // 4)

    def num_steps_to_end(self) -> int:
        """In how many steps somebody may end by its length; there must be somebody."""
        order = self.order
        if self._first_end_of is not order:
            self._first_end_of = order
            self._first_end = min(r._end - r._offset for r in self._riders if r is not None)
        return self._first_end - self.steps

    def write_ahead(self, tokens: NDArray[np.uint32]) -> None:
        """Tokens of the next steps, for ``next_step``: uint32[steps, count], rows in order of admission."""
        order, place = self.order, self.steps % RECENT
        first = tokens[: RECENT - place]
        self._tokens[order, place : place + len(first)] = first.T
        if len(first) < len(tokens):
            self._tokens[order, : len(tokens) - len(first)] = tokens[len(first) :].T

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
        known = request._known
        num = self.steps + request._offset - len(known)
        if num:
            start = (len(known) - request._offset) % RECENT
            first, end = request._row * _ROW, start + num
            if end > RECENT:
                known.frombytes(self._bytes[(first + start) * _BYTES : (first + RECENT) * _BYTES])
                start, end = 0, end - RECENT
            known.frombytes(self._bytes[(first + start) * _BYTES : (first + end) * _BYTES])
            if known[-1] == UNKNOWN:
                self._settled.append(request)

    def block_tokens(self, request: Request) -> bytes:
        """The tokens of the next block that a request can register; it is full, and its last."""
        size = self._size
        first = request._num_registered * size
        start = (first - request._offset) % RECENT
        if start + size <= RECENT and first >= request._entry and size <= _HALF:
            at = (request._row * _ROW + start) * _BYTES
            return self._bytes[at : at + size * _BYTES].tobytes()
        self.settle(request)
        return request._known[first : first + size].tobytes()

    def last_tokens(self, order: Rows) -> Ints:
        """int32[n]: the last token of each of these rows."""
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
