"""The last tokens of decodes that advance together: a ring, with a row for each of them and a place for each step.

What a backend gives for a step is written at once for all. A request takes its tokens over before they are overwritten,
and when somebody reads them. Where nobody needs the tokens of a step, its place only says that they were deferred.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from batchwright.request import UNKNOWN, Request
from batchwright.roster_arrays import Ints, Rows

RECENT = 256
"""Tokens of a request that the ring keeps: before the last is lost, they are settled."""
HALF = RECENT // 2
MOST_AHEAD = RECENT // 4
"""Steps whose tokens can be written ahead: more would overwrite some that are not settled."""
ROW = RECENT + 16  # so that equal places of neighbouring rows do not share a cache set
NUM_BYTES = 4
NEVER = -1

_ZEROS = bytes(NUM_BYTES * RECENT)


class RosterTokens:
    """The ring of one roster; the place of a step is its number modulo ``RECENT``.

    Attributes:
        flat: int32[rows * ROW]: one row behind the other.
        memory: the same, as bytes.
        deferred: whether the tokens of a step, by its place, were deferred.
        last_deferred, last_written: the last steps of either kind; ``NEVER`` where there was none.
    """

    def __init__(self, block_size: int) -> None:
        """Makes one without rows."""
        self._size = block_size
        self._tokens: Ints = np.zeros((0, ROW), dtype=np.int32)
        self.flat = self._tokens.reshape(-1)  # the same memory
        self.memory = memoryview(b"")
        self.deferred = bytearray(RECENT)
        self.last_deferred = self.last_written = NEVER
        self._settled: list[Request] = []  # with an unknown token

    def make_rows(self, num: int) -> None:
        """Have so many rows."""
        tokens = np.zeros((num, ROW), dtype=np.int32)
        tokens[: len(self._tokens)] = self._tokens
        self._tokens = tokens
        self.flat = tokens.reshape(-1)
        self.memory = self.flat.view(np.uint8).data

    # Several steps at once ------------------------------------------------------------------------------------

    def write_ahead(self, steps: int, order: Rows, tokens: NDArray[np.uint32]) -> None:
        """Tokens of the steps from this number on: uint32[num, n], of the n rows of the order."""
        place = steps % RECENT
        first = tokens[: RECENT - place]
        self._tokens[order, place : place + len(first)] = first.T
        if len(first) < len(tokens):
            self._tokens[order, : len(tokens) - len(first)] = tokens[len(first) :].T
        self.last_written = steps + len(tokens) - 1
        self._note_deferred(steps, len(tokens), False)

    def defer_ahead(self, steps: int, num: int) -> None:
        """Nobody needs the tokens of so many steps from this number on: who reads them draws them."""
        self.last_deferred = steps + num - 1
        self._note_deferred(steps, num, True)

    def _note_deferred(self, steps: int, num: int, deferred: bool) -> None:
        place = steps % RECENT
        first = min(num, RECENT - place)
        self.deferred[place : place + first] = bytes([deferred]) * first
        if first < num:
            self.deferred[: num - first] = bytes([deferred]) * (num - first)

    # Of one request -------------------------------------------------------------------------------------------

    def bring(self, request: Request, first: int, last: int) -> None:
        """A request takes over its tokens of these steps, of which none is deferred."""
        known, memory = request._known, self.memory
        start, row = first % RECENT, request._row * ROW
        end = start + last - first
        if end > RECENT:
            known.frombytes(memory[(row + start) * NUM_BYTES : (row + RECENT) * NUM_BYTES])
            start, end = 0, end - RECENT
        known.frombytes(memory[(row + start) * NUM_BYTES : (row + end) * NUM_BYTES])
        if known[-1] == UNKNOWN:
            self._settled.append(request)

    def bring_mixed(self, request: Request, first: int, last: int) -> None:
        """A request takes over its tokens of these steps, of which some may be deferred."""
        while first < last:
            deferred, end = self.deferred[first % RECENT], first + 1
            while end < last and self.deferred[end % RECENT] == deferred:
                end += 1
            if deferred:
                defer(request, end - first)
            else:
                self.bring(request, first, end)
            first = end

    def of_block(self, request: Request) -> bytes:
        """The tokens of the next block that a request can register; it is full, and its last."""
        size = self._size
        first = request._num_registered * size
        start = (first - request._offset) % RECENT
        if start + size <= RECENT and first >= request._entry and size <= HALF and self.last_deferred == NEVER:
            at = (request._row * ROW + start) * NUM_BYTES
            return self.memory[at : at + size * NUM_BYTES].tobytes()
        return request._tokens[first : first + size].tobytes()

    def take_settled(self) -> list[Request]:
        """Who took over a token that was not known, since the last call."""
        settled, self._settled = self._settled, []
        return settled


def defer(request: Request, num: int) -> None:
    """Zeros in the place of its next tokens, which are made when somebody reads them."""
    known = request._known
    first = len(known)
    known.frombytes(_ZEROS[: NUM_BYTES * num])
    last = len(known)
    unmade = request._unmade
    if unmade is None:
        request._unmade = [(first, last)]
    elif unmade[-1][1] == first and unmade[-1][0] >= request.num_prompt_tokens:
        unmade[-1] = (unmade[-1][0], last)
    else:
        unmade.append((first, last))
