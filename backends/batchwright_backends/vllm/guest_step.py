"""What a policy sees of a step of vLLM's scheduler, before vLLM makes it."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

from batchwright.errors import BackendError
from batchwright.limits import Limits
from batchwright_backends.vllm.guest_request import Guest


class Pool(Protocol):
    """What is asked of vLLM's KV blocks."""

    num_blocks: int
    block_size: int
    num_spare: int

    def num_free(self) -> int:
        """Blocks that nobody holds."""
        ...

    def num_hit(self, guest: Guest) -> int:
        """Tokens of a waiting request that the prefix cache holds."""
        ...

    def needed(self, guest: Guest, num_tokens: int) -> int:
        """Free blocks that it would take to hold so many tokens."""
        ...

    def take(self, guest: Guest, num_tokens: int) -> None:
        """It is to compute up to so many tokens."""
        ...

    def given_back(self, guest: Guest) -> int:
        """Blocks that become free when it is evicted."""
        ...


class Line(Sequence[Guest]):
    """Requests in order, with removal of any in O(1)."""

    def __init__(self) -> None:
        self._guests: OrderedDict[Guest, None] = OrderedDict()
        self._whole: tuple[Guest, ...] | None = ()

    @property
    def whole(self) -> tuple[Guest, ...]:
        """All of them; made anew only where somebody came or went."""
        if self._whole is None:
            self._whole = tuple(self._guests)
        return self._whole

    def append(self, guest: Guest) -> None:
        """At the end."""
        self._guests[guest] = None
        self._whole = None

    def prepend(self, guest: Guest) -> None:
        """At the head."""
        self._guests[guest] = None
        self._guests.move_to_end(guest, last=False)
        self._whole = None

    def discard(self, guest: Guest) -> None:
        """It is here no longer, if it was."""
        if guest in self._guests:
            del self._guests[guest]
            self._whole = None

    def __len__(self) -> int:
        return len(self._guests)

    def __iter__(self) -> Iterator[Guest]:
        return iter(self._guests)

    def __reversed__(self) -> Iterator[Guest]:
        return reversed(self._guests)

    def __contains__(self, guest: object) -> bool:
        return guest in self._guests

    def __getitem__(self, index: Any) -> Any:
        if index == 0 or index == -1:
            found = next(iter(self._guests) if index == 0 else reversed(self._guests), None)
            if found is None:
                raise IndexError("nobody is here")
            return found
        return self.whole[index]


class GuestStep:
    """One step; attributes as of :class:`~batchwright.step.Step`.

    Args:
        index: number of the step.
        now: nanoseconds of the scheduler's clock.
        limits: those of vLLM.
        waiting, running: who waits, and who holds blocks.
        prefilling: those of the latter who have sampled no token since their admission.
        pool: vLLM's KV blocks.
        rng: seeded.
    """

    # As every step begins.
    end: int | None = None
    sampled: Sequence[Guest] = ()
    finished: Sequence[Guest] = ()
    num_prefill_tokens = num_decodes = num_recomputed = 0
    lacking: Literal["seats", "blocks"] | None = None
    asker: Guest | None = None
    _decodes: Sequence[Guest] | None = None

    def __init__(
        self,
        index: int,
        now: int,
        limits: Limits,
        waiting: Line,
        running: Line,
        prefilling: Line,
        pool: Pool,
        rng: random.Random,
    ) -> None:
        self.index = index
        self.now = now
        self.limits = limits
        self.waiting = waiting
        self.running = running
        self.rng = rng
        self.budget = limits.max_num_batched_tokens
        self.batch: list[Guest] | tuple[Guest, ...] = []
        self.preempted: list[Guest] = []
        self.num_residents = len(running)
        self.events: list[dict[str, Any]] = []
        self.free_blocks = pool.num_free()
        self._pool = pool
        self._prefilling = prefilling

    @property
    def now_s(self) -> float:
        """Start of the step in seconds."""
        return self.now / 1e9

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool."""
        return self._pool.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._pool.block_size

    @property
    def prefilling(self) -> Sequence[Guest]:
        """Residents that have sampled no token since their admission, in order of admission."""
        return self._prefilling.whole

    @property
    def decodes(self) -> Sequence[Guest]:
        """The other residents; ``running`` itself when nothing is prefilling."""
        if not self._prefilling:
            return self.running
        if self._decodes is None:
            self._decodes = tuple(guest for guest in self.running if guest not in self._prefilling)
        return self._decodes

    @property
    def evictable(self) -> Sequence[Guest]:
        """Residents in queue order without this step's batch, its victims and who asks."""
        return [g for g in self.running if g.is_resident and not g.num_scheduled and g is not self.asker]

    def num_cached(self, guest: Guest) -> int:
        """Tokens of a waiting request that the prefix cache holds now; of a resident, those of its admission."""
        return guest.num_cached if guest.is_resident else self._pool.num_hit(guest)

    def blocks_needed(self, guest: Guest, num_tokens: int) -> int:
        """Free blocks that it would take to hold so many tokens."""
        return self._pool.needed(guest, num_tokens)

    def predict_s(self, guest: Guest | None = None, num_tokens: int = 0) -> float:
        """Never: vLLM has no estimate of a step's time.

        Raises:
            BackendError: always.
        """
        raise BackendError("vLLM has no cost estimate, so step.predict_s() cannot answer")
