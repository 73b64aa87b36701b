"""KV blocks: who holds them, and which content can be shared.

Block ids say nothing of order; block tables do. What a block holds, and how it is found again, is in the prefix index.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from batchwright.errors import ConfigError
from batchwright.free_list import FreeList
from batchwright.prefix_cache import PrefixCache
from batchwright.prefix_index import PrefixIndex
from batchwright.request import RESIDENT, Request

_NO_HITS = array("i")
_FEW = 4
"""Blocks up to which they are taken one by one."""
_MANY = 40
"""Blocks from which on they are freed together: fewer cost less one by one."""


class BlockManager:
    """The pool of KV blocks.

    Attributes:
        num_blocks: blocks of the pool.
        block_size: tokens of a block.
        cache: settings of the prefix cache.
        index: what is in the blocks, and which of them can be shared.
        looked_up: waiting requests whose prefix was looked up since the last step began, and what was found first.

    Raises:
        ConfigError: the pool is empty, or the block size below 1.
    """

    index_class: type[PrefixIndex] = PrefixIndex

    def __init__(self, num_blocks: int, block_size: int, cache: PrefixCache | None = None) -> None:
        for name, value in (("num_blocks", num_blocks), ("block_size", block_size)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.cache = cache if cache is not None else PrefixCache()
        self._enabled = self.cache.enabled
        self._uncached_first = self.cache.reuse == "uncached_first"
        self._free = FreeList(num_blocks)
        self._references = array("i", bytes(4 * num_blocks))
        self._all_references: NDArray[np.int32] = np.frombuffer(self._references, dtype=np.int32)  # the same memory
        self.index = self.index_class(num_blocks, block_size, self.cache)
        self._registered = self.index.registered
        self.looked_up: dict[Request, array[int]] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds; they may still hold cached content."""
        return self._free.count

    @property
    def free(self) -> Iterator[int]:
        """Blocks that nobody holds, in the order in which they are taken."""
        return iter(self._free)

    @property
    def references(self) -> list[int]:
        """Of each block, how many hold it."""
        return self._references.tolist()

    def can_allocate(self, hits: array[int], num_tokens: int) -> bool:
        """Whether the free blocks suffice for a waiting request with these hits to hold ``num_tokens`` tokens."""
        total, num_free = max(-(-num_tokens // self.block_size), len(hits)), self.num_free
        if total <= num_free:
            return True
        if total - len(hits) > num_free:
            return False
        return total - self._num_held(hits) <= num_free

    def allocate(self, request: Request, hits: array[int], num_tokens: int) -> None:
        """Give a waiting request its prefix hits and blocks for ``num_tokens`` tokens; ``can_allocate`` first."""
        if hits:
            blocks = np.frombuffer(hits, dtype=np.int32)
            references = self._all_references.take(blocks)
            self._free.remove_all(blocks if not references.any() else blocks[references == 0])
            self._all_references[blocks] = references + 1  # no block is twice in a prefix
            request.block_table.extend(hits)
        self.looked_up.pop(request, None)
        request._num_registered = len(hits)
        request._room = len(hits) * self.block_size
        request._hits, request._hit_key = array("i"), None
        missing = -(-num_tokens // self.block_size) - len(hits)
        if missing > 0:
            self.append(request, missing)

    def can_append(self, request: Request, num_tokens: int) -> bool:
        """Whether the free blocks suffice for a resident to hold ``num_tokens`` tokens."""
        return num_tokens - request._room <= self.num_free * self.block_size

    def append(self, request: Request, num_blocks: int = 1) -> None:
        """Give a resident further blocks; ``can_append`` first."""
        request.block_table += self._take(num_blocks)
        request._room += num_blocks * self.block_size

    def append_each(self, requests: Sequence[Request]) -> None:
        """Give each of these residents one further block, in this order; there must be as many free."""
        size = self.block_size
        if len(requests) < _FEW:
            for request in requests:
                request.block_table.append(self._take_one())
                request._room += size
            return
        for request, block in zip(requests, self._take(len(requests)), strict=True):
            request.block_table.append(block)
            request._room += size

    def _take(self, num_blocks: int) -> list[int]:
        registered, references = self._registered, self._references
        blocks = self._free.take_all(num_blocks)
        for block in blocks:
            references[block] = 1
            if registered[block]:
                self.index.unregister(block)
        return blocks

    def _take_one(self) -> int:
        block = self._free.take()
        self._references[block] = 1
        if self._registered[block]:
            self.index.unregister(block)
        return block

    def take_back(self, request: Request, num_blocks: int) -> None:
        """Undo ``append``: the last blocks of a resident become free, last first."""
        taken = [request.block_table.pop() for _ in range(num_blocks)]
        self._release_each(taken)
        request._room -= num_blocks * self.block_size

    def deallocate(self, request: Request) -> None:
        """Free all blocks of a request, last to first; shared ones stay with the others that hold them."""
        table, request.block_table = request.block_table, []
        table.reverse()
        if len(table) < _MANY:
            self._release_each(table)
        else:
            self._release_all(np.array(table, dtype=np.int32))
        table.reverse()
        if request._run is not None:
            request._run.end(request._num_registered)
            request._run = None
        request._room = request._num_registered = 0

    def _release_each(self, blocks: list[int]) -> None:
        references = self._references
        free = [block for block in blocks if references[block] == 1]
        for block in blocks:
            references[block] -= 1
        if self._uncached_first:
            registered = self._registered
            for block in free:
                if not registered[block]:
                    self._free.put_first(block)
            free = [block for block in free if registered[block]]
        self._free.put_last(free)

    def _release_all(self, blocks: NDArray[np.int32]) -> None:
        """``_release_each`` of many; no block is twice in a table."""
        left = self._all_references.take(blocks) - 1
        self._all_references[blocks] = left
        blocks = blocks[left == 0]
        if self._uncached_first:
            cached = np.frombuffer(self._registered, dtype=np.uint8).take(blocks) != 0
            self._free.put_first_all(blocks[~cached][::-1])
            blocks = blocks[cached]
        self._free.put_last_all(blocks)

    def blocks_needed(self, request: Request, num_tokens: int) -> int:
        """Free blocks that a request would take to hold ``num_tokens`` tokens; free hits cost their block."""
        total = -(-num_tokens // self.block_size)
        if request._state == RESIDENT:
            return max(0, total - len(request.block_table))
        hits = self.lookup(request)
        return max(total, len(hits)) - self._num_held(hits)

    def _num_held(self, hits: array[int]) -> int:
        return int(np.count_nonzero(self._all_references.take(hits))) if hits else 0

    # Prefix cache -------------------------------------------------------------------------------------------

    def lookup(self, request: Request) -> array[int]:
        """The cached blocks of a waiting request's longest prefix; the array belongs to the core."""
        if not self._enabled:
            return _NO_HITS
        hits = self.index.lookup(request)
        if request not in self.looked_up:
            self.looked_up[request] = hits[:]
        return hits

    def is_as_found(self) -> bool:
        """Whether a look-up of each of ``looked_up`` finds what it found first."""
        return all(self.index.lookup(request) == found for request, found in self.looked_up.items())

    def hashes_of_next(self, num_blocks: int) -> list[int]:
        """Hashes of what is cached in the blocks that are taken next; at least as many must be free."""
        registered = self._registered
        return [self.index.hash_of(block) for block in islice(self._free, num_blocks) if registered[block]]

    def register(self, request: Request, num_tokens: int) -> list[int]:
        """Make the full blocks among a resident's first ``num_tokens`` tokens answer look-ups; returns the new ones."""
        return self.index.register(request, num_tokens) if self._enabled else []

    def unregister(self, block: int) -> None:
        """Forget the cached content of a block; another block with that content answers from now on."""
        if self._enabled:
            self.index.unregister(block)
