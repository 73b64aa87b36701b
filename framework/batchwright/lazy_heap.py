"""A heap whose items leave, and change their rank, without being looked for."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)


class LazyHeap(Generic[Item]):
    """Items, lowest rank first, kept in order and never sorted.

    A change costs O(log n), amortised: who is discarded stays in the heap until it comes up, or until such outnumber
    the others. A rank may *rise* while its item is in: it is looked at again when the item comes up. When one falls,
    ``push`` the item again. Equal ranks keep the order in which they were pushed.
    """

    __slots__ = ("_aside", "_entries", "_heap", "_look", "_num_pushed", "_rank")

    def __init__(self, rank: Callable[[Item], Any]) -> None:
        """Takes what gives an item's rank: anything that can be compared."""
        self._rank = rank
        self._heap: list[tuple[Any, int, Item]] = []
        self._entries: dict[Item, tuple[Any, int, Item]] = {}  # of the items that are in: an entry not here is dead
        self._aside: list[tuple[Any, int, Item]] = []  # taken from the heap by the look under way
        self._look = 0
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: object) -> bool:
        return item in self._entries

    def push(self, item: Item) -> None:
        """Put an item in, or rank it anew."""
        self._num_pushed += 1
        entry = self._entries[item] = (self._rank(item), self._num_pushed, item)
        heapq.heappush(self._heap, entry)
        self._prune()

    def discard(self, item: Item) -> None:
        """Take an item out, if it is in."""
        self._entries.pop(item, None)
        self._prune()

    def fill(self, items: Iterable[Item]) -> None:
        """Hold these items and no others: O(n)."""
        self._entries = {item: (self._rank(item), number, item) for number, item in enumerate(items)}
        self._num_pushed = len(self._entries)
        self._aside.clear()
        self._heap = list(self._entries.values())
        heapq.heapify(self._heap)

    def first(self) -> Item | None:
        """The item of the lowest rank; None if there is none."""
        aside = next((entry for entry in self._aside if self._entries.get(entry[-1]) is entry), None)
        top = self._heap[0] if self._settle() else None
        if aside is not None and (top is None or aside[:2] < top[:2]):
            return aside[-1]
        return None if top is None else top[-1]

    def in_order(self) -> Iterator[Item]:
        """Items, lowest rank first, as far as one looks: O(log n) each. They stay in until they are discarded.

        One such look at a time: the next one ends it.
        """
        self._restore()
        self._look += 1
        look = self._look
        try:
            while look == self._look and self._settle():
                entry = heapq.heappop(self._heap)
                self._aside.append(entry)
                yield entry[-1]
        finally:
            if look == self._look:
                self._restore()

    def _settle(self) -> bool:
        """Make the top of the heap one that is in, under its present rank; False: there is none.

        Raises:
            ValueError: more ranks rose than there are items, so one rose twice.
        """
        heap, left = self._heap, len(self._entries)
        while heap:
            rank, number, item = heap[0]
            if self._entries.get(item) is not heap[0]:
                heapq.heappop(heap)
            elif rank < (now := self._rank(item)):
                if not left:
                    raise ValueError(
                        f"the rank of {item} rises each time it is asked for (from {rank!r} to {now!r} within one "
                        "look), so nobody is ever first: it may follow from the request, the step and the time of the "
                        "step, not from a clock or from chance"
                    )
                left -= 1
                entry = self._entries[item] = (now, number, item)
                heapq.heapreplace(heap, entry)
            else:
                return True
        return False

    def _restore(self) -> None:
        for entry in self._aside:
            if self._entries.get(entry[-1]) is entry:
                heapq.heappush(self._heap, entry)
        self._aside.clear()

    def _prune(self) -> None:
        """Let go of the dead where they outnumber the living; who is aside stays aside."""
        if len(self._heap) > 2 * len(self._entries) + 100:
            self._heap = [entry for entry in self._heap if self._entries.get(entry[-1]) is entry]
            heapq.heapify(self._heap)
        if not self._entries:
            self._aside.clear()
