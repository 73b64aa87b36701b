"""The view of one step that hooks get: everything a policy may know, nothing it may change."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from batchwright.batch import Batch
from batchwright.errors import BackendError
from batchwright.limits import Limits
from batchwright.queues import QueueView
from batchwright.request import RESIDENT, Request

if TYPE_CHECKING:
    from batchwright.state import State


NOT_PREFILLING: tuple[Request, ...] = ()
"""Those who are prefilling, where none is."""


class Evictable(Sequence[Request]):
    """Residents in order of admission, less this step's batch, its victims and the asker; found lazily.

    ``evictable[-1]``, ``evictable[0]`` and truth cost a walk from that end to the first that qualifies.
    """

    __slots__ = ("_asker", "_running")

    def __init__(self, running: QueueView, asker: Request | None) -> None:
        self._running = running
        self._asker = asker

    def _qualifies(self, request: Request) -> bool:
        return request.is_resident and not request.num_scheduled and request is not self._asker

    def __iter__(self) -> Iterator[Request]:
        return filter(self._qualifies, self._running)

    def __reversed__(self) -> Iterator[Request]:
        return filter(self._qualifies, reversed(self._running))

    def __bool__(self) -> bool:
        return next(reversed(self), None) is not None

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: Any) -> Any:
        if index == -1 or index == 0:
            found = next(reversed(self) if index else iter(self), None)
            if found is None:
                raise IndexError("nobody can be evicted: test `if step.evictable` first")
            return found
        return list(self)[index]


class Step:
    """One step while it is built, and after it was executed.

    The queues are frozen while the step is built: who is admitted or evicted moves when the batch is complete.

    Attributes:
        now: start of the step, integer nanoseconds of the engine's clock.
        end: end of its execution; None before.
        index: number of the step, from 0.
        limits: the engine's :class:`~batchwright.limits.Limits`.
        waiting: waiting requests, in queue order.
        running: residents, in order of admission.
        batch: requests scheduled so far, in order; only while they stay in.
        budget: tokens left in this step.
        preempted: victims of this step, in order of eviction.
        sampled: requests that got a token, in batch order; once executed.
        finished: requests that ended with this step, in batch order; once executed.
        num_prefill_tokens: tokens of the batch that are not decodes; once the batch is complete.
        num_decodes: decodes in the batch; once it is complete.
        num_recomputed: tokens of the batch that were computed before an eviction; once executed.
        num_residents: residents now, with this step's admissions and without its victims.
        lacking: in ``preemption``: ``"seats"`` or ``"blocks"``; else None.
        events: what detectors reported in this step (thrash, starvation, faults), as records.
    """

    __slots__ = (
        "_aborted",
        "_admitted",
        "_asker",
        "_by_policy",
        "_decodes",
        "_fresh",
        "_grown",
        "_grown_by_one",
        "_num_advanced",
        "_num_riding",
        "_prefilling",
        "_state",
        "batch",
        "budget",
        "end",
        "events",
        "finished",
        "index",
        "lacking",
        "now",
        "num_decodes",
        "num_prefill_tokens",
        "num_recomputed",
        "num_residents",
        "preempted",
        "running",
        "sampled",
        "waiting",
    )

    def __init__(self, state: State, now: int, index: int) -> None:
        self._state = state
        self.now = now
        self.end: int | None = None
        self.index = index
        self.waiting = state.waiting
        self.running = state.running
        self.batch: list[Request] = []
        self.budget = state.limits.max_num_batched_tokens
        self.preempted: list[Request] = []
        self.sampled: Sequence[Request] = ()
        self.finished: Sequence[Request] = ()
        self.num_residents = len(state.residents)
        self.num_prefill_tokens = 0
        self.num_decodes = 0
        self.num_recomputed = 0
        self.lacking: Literal["seats", "blocks"] | None = None
        self.events: list[dict[str, Any]] = []
        # Core-private from here on.
        self._asker: Request | None = None
        self._aborted = False  # somebody of the batch was aborted after it was scheduled
        self._admitted: dict[Request, None] = {}  # by this step, still resident
        self._grown: dict[Request, int] = {}  # blocks taken in this step by who was resident before it
        self._grown_by_one: Sequence[Request] = ()  # further ones, of the roster
        self._fresh: dict[Request, list[int]] = {}  # blocks registered before they are computed (visible: scheduled)
        self._prefilling: tuple[Request, ...] | None = None
        self._by_policy = True  # not by the fallback
        self._num_riding = 0  # rows of the batch, its first, that are the roster
        self._num_advanced = 0  # of those who got a token, the first, who got it on the roster
        self._decodes: Sequence[Request] | None = None

    def _take_stock(self) -> None:
        """Look at the queues again; they are frozen from now on."""
        self.num_residents = len(self.running)
        self._prefilling = self._decodes = None

    @property
    def limits(self) -> Limits:
        """The engine's limits."""
        return self._state.limits

    @property
    def now_s(self) -> float:
        """Start of the step in seconds."""
        return self.now / 1e9

    @property
    def prefilling(self) -> Sequence[Request]:
        """Residents that have sampled no token since their admission, in order of admission."""
        if self._prefilling is None:
            self._prefilling = tuple(self._state.prefilling) if self._state.prefilling else NOT_PREFILLING
        return self._prefilling

    @property
    def decodes(self) -> Sequence[Request]:
        """The other residents; ``running`` itself when nothing is prefilling."""
        if self._decodes is None:
            if self._state.prefilling:
                prefilling = self._state.prefilling  # as it was before the step: a victim's own flag is down by now
                self._decodes = tuple(r for r in self.running if r not in prefilling)
            else:
                self._decodes = self.running
        return self._decodes

    @property
    def evictable(self) -> Evictable:
        """Residents in queue order without this step's batch, its victims and who asks; lazy."""
        return Evictable(self.running, self._asker)

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody holds; they may still hold cached content."""
        return self._state.blocks.num_free

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return self._state.blocks.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._state.blocks.block_size

    @property
    def rng(self) -> random.Random:
        """A random generator seeded by the engine's seed: the only source of chance a policy may use."""
        return self._state.rng

    def num_cached(self, request: Request) -> int:
        """Tokens of a waiting request that the prefix cache holds now; of a resident, those of its admission."""
        if request._state == RESIDENT:
            return request.num_cached
        blocks = self._state.blocks
        return len(blocks.lookup(request)) * blocks.block_size

    def blocks_needed(self, request: Request, num_tokens: int) -> int:
        """Free blocks that ``request`` would take to hold ``num_tokens`` tokens.

        A prefix hit that somebody holds costs nothing; one that lies free costs its block.
        """
        return self._state.blocks.blocks_needed(request, num_tokens)

    def predict_s(self, request: Request | None = None, num_tokens: int = 0) -> float:
        """Estimated seconds of the batch so far, with ``num_tokens`` of ``request`` added.

        Raises:
            BackendError: the backend has no cost estimate; declare ``uses_predict`` to be told at load.
        """
        rows, counts = list(self.batch), [r.num_scheduled for r in self.batch]
        if request is not None and num_tokens:
            rows.append(request)
            counts.append(num_tokens)
        if not rows:
            return 0.0
        predict = self._state.predict_s
        seconds = predict(Batch(self.index, self.block_size, rows, counts)) if predict is not None else None
        if seconds is None:
            raise BackendError("this backend has no cost estimate, so step.predict_s() cannot answer")
        return seconds
