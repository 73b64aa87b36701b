"""KV blocks where nothing is shared: without prefix cache each has one holder, and nobody looks for its content."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from batchwright.block_manager import BlockManager

if TYPE_CHECKING:
    from batchwright.prefix_cache import PrefixCache
    from batchwright.request import Request


class UnsharedBlocks(BlockManager):
    """A pool without references and without an index of contents; blocks are reused in the order of any other pool."""

    def __init__(self, num_blocks: int, block_size: int, cache: PrefixCache) -> None:
        """Takes what a ``BlockManager`` takes, with a cache that is off.

        Raises:
            ConfigError: the pool is empty, or the block size below 1.
        """
        super().__init__(num_blocks, block_size, cache)
        self._queue = deque(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._queue)

    @property
    def free(self) -> Iterator[int]:
        """Blocks that nobody holds, in the order in which they are taken."""
        return iter(self._queue)

    @property
    def references(self) -> list[int]:
        """Of each block, how many hold it."""
        free = set(self._queue)
        return [0 if block in free else 1 for block in range(self.num_blocks)]

    def append_each(self, requests: Sequence[Request]) -> None:
        """See ``BlockManager``."""
        take, size = self._queue.popleft, self.block_size
        for request in requests:
            request.block_table.append(take())
            request._room += size

    def _take(self, num_blocks: int) -> list[int]:
        take = self._queue.popleft
        return [take() for _ in range(num_blocks)]

    def _release_each(self, blocks: list[int]) -> None:
        if self._uncached_first:
            self._queue.extendleft(blocks)  # the last of them is reused first
        else:
            self._queue.extend(blocks)

    def deallocate(self, request: Request) -> None:
        """See ``BlockManager``."""
        table, request.block_table = request.block_table, []
        self._release_each(table[::-1])
        request._room = request._num_registered = 0
