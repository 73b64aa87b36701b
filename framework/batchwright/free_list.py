"""Free KV blocks, in the order in which they are reused."""

from __future__ import annotations

from collections.abc import Iterator


class FreeList:
    """A doubly linked list of block ids over two flat lists: put, take, and removal from anywhere, all O(1).

    A prefix hit takes its blocks from the middle of this list: 255 of 60,000 in a fraction of a millisecond, where a
    search in a ``deque`` takes tens.

    Attributes:
        count: blocks in the list.
    """

    __slots__ = ("_next", "_previous", "count")

    def __init__(self, num_blocks: int) -> None:
        # Index num_blocks is the sentinel: its next is the head, its previous the tail.
        self._next = [*range(1, num_blocks + 1), 0]
        self._previous = [num_blocks, *range(num_blocks)]
        self.count = num_blocks

    def take(self) -> int:
        """Remove and return the head. Never called on an empty list: the scheduler counts before it takes."""
        following: list[int] = self._next
        block = following[-1]
        head = following[-1] = following[block]
        self._previous[head] = len(following) - 1
        self.count -= 1
        return block

    def remove_all(self, blocks: list[int]) -> None:
        """Remove many blocks from wherever they stand."""
        following, preceding = self._next, self._previous
        for block in blocks:
            before, after = preceding[block], following[block]
            following[before] = after
            preceding[after] = before
        self.count -= len(blocks)

    def put_last(self, block: int) -> None:
        """Add a block that will be reused after all the others."""
        end = len(self._next) - 1
        tail = self._previous[end]
        self._next[tail] = self._previous[end] = block
        self._previous[block] = tail
        self._next[block] = end
        self.count += 1

    def put_first(self, block: int) -> None:
        """Add a block that will be reused next."""
        end = len(self._next) - 1
        head = self._next[end]
        self._next[end] = self._previous[head] = block
        self._previous[block] = end
        self._next[block] = head
        self.count += 1

    def __iter__(self) -> Iterator[int]:
        end = len(self._next) - 1
        block = self._next[end]
        while block != end:
            yield block
            block = self._next[block]
