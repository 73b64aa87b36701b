"""The steps of decodes that advance together, and whom each of them concerns.

A calendar says when a request must be looked at: where a block is full, and where it ends. What a step costs follows
from who is due in it, not from who runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from batchwright.block_manager import BlockManager
from batchwright.request import BY_ADMISSION, Request
from batchwright.roster_arrays import RosterArrays
from batchwright.roster_tokens import HALF, NEVER, NUM_BYTES, RECENT, ROW, RosterTokens, defer

Draw = Callable[[int, int, int], Sequence[int] | NDArray[np.uint32]]
"""Tokens of a request that follow from its seed and their places: of a seed, a place in the output, and how many."""


class RosterSteps:
    """Advances requests that get one token each in every step.

    Attributes:
        steps: how often it has advanced.
        last_ns: end of the step in which it advanced last.
        growing: who lacks a block in the next step, in order of admission.
        filling: whose last block the next step fills, in order of admission; where blocks are registered as they are
            scheduled.
        arrays: what a backend reads.
        tokens: the last ones.
        draw: makes tokens that were deferred: who reads them asks for them.
    """

    def __init__(self, blocks: BlockManager, arrays: RosterArrays, *, early: bool) -> None:
        """Takes the pool, and whether full blocks are registered when they are scheduled."""
        self._size = blocks.block_size
        self._early = early
        self._late = blocks.cache.enabled and not early
        self._register = blocks.index.register_next
        self._next_hash = blocks.index.next_hash
        self._settle_every = max(1, HALF // blocks.block_size)  # blocks
        self.steps = 0
        self.last_ns: int | None = None
        self.arrays = arrays
        self.tokens = RosterTokens(blocks.block_size)
        self.draw: Draw = _nobody_draws
        self._forget_dates()

    def _forget_dates(self) -> None:
        self._calendar: defaultdict[int, list[Request]] = defaultdict(list)
        self.growing: dict[Request, None] = {}
        self.filling: dict[Request, None] = {}
        self._growing_next: dict[Request, None] = {}

    # Advancing ----------------------------------------------------------------------------------------------

    def next_step(self, now: int) -> list[Request]:
        """Give each its next token, which is written, or deferred, already.

        Returns:
            Those whose output may end with it, in order of admission: they are at their last token, or have stop
            strings. Tell those who ``go_on``.
        """
        steps = self.steps = self.steps + 1
        self.last_ns = now
        if self.growing or self._growing_next:
            self.growing, self._growing_next = self._growing_next, {}
        due = self._calendar.pop(steps, None)
        if due is None:
            return []
        ending = []
        size, late, register, of_block = self._size, self._late, self._register, self.tokens.of_block
        early, growing, filling, every = self._early, self.growing, self.filling, self._settle_every
        next_due = steps + size if size <= HALF else 0
        # Who left and came back meanwhile may stand there twice.
        if len(due) > 1:
            due = sorted({r for r in due if r._due == steps and r._row >= 0}, key=BY_ADMISSION)
        elif due[0]._due != steps or due[0]._row < 0:
            return []
        for request in due:
            length = steps + request._offset
            if late and (length - 1) // size > request._num_registered:
                register(request, of_block(request))
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
                if length + size < request._end and size <= HALF:
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

    # Who is due ---------------------------------------------------------------------------------------------

    def due_next(self) -> Sequence[Request]:
        """Whom the end of the next step looks at; some of them may have left."""
        return self._calendar.get(self.steps + 1, ())

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
        elif steps > HALF or length + steps > request._end:
            steps = min(HALF, request._end - length)
        due = request._due = self.steps + steps
        self._calendar[due].append(request)

    # Tokens and blocks --------------------------------------------------------------------------------------

    def settle(self, request: Request) -> None:
        """Bring the tokens of a request over to itself."""
        first, last, tokens = len(request._known) - request._offset, self.steps, self.tokens
        if first == last:
            return
        if tokens.last_deferred < first:
            tokens.bring(request, first, last)
        elif tokens.last_written < first:
            defer(request, last - first)
        else:
            tokens.bring_mixed(request, first, last)

    def fill(self, requests: Iterable[Request], fresh: dict[Request, list[int]]) -> None:
        """These fill their last block with this step: register it, into ``fresh``; the step after may need another."""
        size, register, steps, ring = self._size, self._register, self.steps, self.tokens
        memory, in_ring = ring.memory, size <= HALF and ring.last_deferred == NEVER
        for request in requests:
            length, first = steps + request._offset, request._num_registered * size
            if length >= first + size:
                start = (first - request._offset) % RECENT
                if in_ring and first >= request._entry and start + size <= RECENT:  # as ``of_block``, most often
                    at = (request._row * ROW + start) * NUM_BYTES
                    tokens = memory[at : at + size * NUM_BYTES].tobytes()
                else:
                    tokens = ring.of_block(request)
                fresh[request] = register(request, tokens)
            if length == request._room:
                self._growing_next[request] = None

    def hashes_to_fill(self) -> list[int]:
        """Hashes of the blocks that ``fill`` would register."""
        size, next_hash, of_block = self._size, self._next_hash, self.tokens.of_block
        return [
            next_hash(request, of_block(request))
            for request in self.filling
            if (self.steps + request._offset) // size > request._num_registered
        ]


def _nobody_draws(seed: int, output_index: int, num_tokens: int) -> Sequence[int]:
    raise RuntimeError("tokens were deferred, and nobody said how they are drawn")
