"""Queues of requests: O(1) at both ends, O(1) removal, and read-only views that copy nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from batchwright.request import Request

Order = dict[Request, None]
"""An ordered set. The waiting queue is an ``OrderedDict``: it also takes a request at its head, and finds its first in
O(1) after any number of removals there. Residents are a plain ``dict``, which iterates three times as fast."""


def put_first(queue: OrderedDict[Request, None], request: Request) -> None:
    """Put a request at the head of a queue."""
    queue[request] = None
    queue.move_to_end(request, last=False)


class QueueView(Sequence[Request]):
    """A read-only view of a queue. Its ends cost O(1), other indices a walk."""

    __slots__ = ("_order",)

    def __init__(self, order: Order) -> None:
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._order)

    def __reversed__(self) -> Iterator[Request]:
        return reversed(self._order)

    def __contains__(self, request: object) -> bool:
        return request in self._order

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.start or 0, index.stop, index.step or 1
            if step > 0 <= start and stop is not None and stop >= 0:  # a head of it costs what it holds
                return list(islice(self._order, start, stop, step))
            return list(self._order)[index]
        if not -len(self._order) <= index < len(self._order):
            raise IndexError(f"place {index} of a queue of {len(self._order)}")
        walk = reversed(self._order) if index < 0 else iter(self._order)
        return next(islice(walk, -index - 1 if index < 0 else index, None))

    def __repr__(self) -> str:
        return f"[{', '.join(r.request_id for r in self._order)}]"
