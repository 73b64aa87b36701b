"""What a router sees of a fleet: figures of each replica, and nothing that could be changed."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from batchwright.request import Request
from batchwright.strict import Glass

if TYPE_CHECKING:
    from batchwright.fleet.replica import Replica


class ReplicaView:
    """One replica as it is now: what it has begun and what it has finished, and nothing of how its present step ends.

    Each figure costs O(1), but for ``outstanding_tokens``, O(requests that are prefilling), and ``num_cached``.
    """

    __slots__ = ("_replica",)

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    @property
    def index(self) -> int:
        """Its place in the fleet, from 0: what ``routing`` answers."""
        return self._replica.index

    @property
    def num_waiting(self) -> int:
        """Requests that wait, with those that were routed here and are taken when its present step ends."""
        return len(self._replica.scheduler.waiting) + len(self._replica.inbox)

    @property
    def num_running(self) -> int:
        """Residents: requests that hold KV blocks."""
        return len(self._replica.scheduler.running)

    @property
    def num_requests(self) -> int:
        """Outstanding requests: those that wait, and residents."""
        return self.num_waiting + self.num_running

    @property
    def outstanding_tokens(self) -> int:
        """Pending tokens of all its requests: known, and K and V not computed. A decode has one."""
        return self._replica.outstanding_tokens

    @property
    def num_blocks(self) -> int:
        """KV blocks of its pool."""
        return self._replica.scheduler.blocks.num_blocks

    @property
    def free_blocks(self) -> int:
        """KV blocks that nobody holds; they may still hold cached content."""
        return self._replica.scheduler.blocks.num_free

    @property
    def block_size(self) -> int:
        """Tokens of a KV block."""
        return self._replica.scheduler.blocks.block_size

    @property
    def kv_usage(self) -> float:
        """Share of its KV blocks that somebody holds, 0 to 1."""
        return 1 - self.free_blocks / self.num_blocks

    def num_cached(self, request: Request) -> int:
        """Tokens of the request's longest prefix that this replica's cache holds now; at least one token never is.

        Costs O(blocks of the prompt) at most: the cache is asked up to the first miss, each block hashed once for all
        replicas.
        """
        request = Glass.bare(request)
        blocks = self._replica.scheduler.blocks
        # What a request keeps of its last look-up is true of one cache only.
        kept = request._hits, request._hit_key
        request._hits, request._hit_key = array("i"), None
        num_hits = len(blocks.index.lookup(request)) if blocks.cache.enabled else 0
        request._hits, request._hit_key = kept
        return num_hits * blocks.block_size

    def __repr__(self) -> str:
        return (
            f"<Replica {self.index}: {self.num_waiting} waiting, {self.num_running} running, "
            f"{self.outstanding_tokens} outstanding tokens, {self.kv_usage:.0%} of the KV blocks>"
        )


class FleetView:
    """A fleet at the arrival of a request, read-only: ``fleet[i]`` is replica i, ``len(fleet)`` how many there are.

    Attributes:
        now: the present, in integer nanoseconds of the fleet's virtual clock.
        rng: seeded with the config's ``seed``, for routers that draw.
    """

    __slots__ = ("_now", "_replicas", "_rng")

    def __init__(self, replicas: Sequence[ReplicaView], rng: random.Random) -> None:
        self._replicas = tuple(replicas)
        self._rng = rng
        self._now = 0

    @property
    def now(self) -> int:
        """Nanoseconds of the fleet's virtual clock."""
        return self._now

    @property
    def now_s(self) -> float:
        """Seconds of the fleet's virtual clock."""
        return self._now / 1e9

    @property
    def rng(self) -> random.Random:
        """Draws of this fleet, seeded."""
        return self._rng

    def __len__(self) -> int:
        return len(self._replicas)

    def __iter__(self) -> Iterator[ReplicaView]:
        return iter(self._replicas)

    def __getitem__(self, index: int) -> ReplicaView:
        return self._replicas[index]

    def __repr__(self) -> str:
        return f"<Fleet of {len(self)} at {self.now_s:.3f} s>"
