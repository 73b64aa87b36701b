"""Who waits, in the place of vLLM's queue: while it makes a step, it sees those whom the policy lets in, in order."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.request_queue import RequestQueue  # pyright: ignore[reportMissingImports]

if TYPE_CHECKING:
    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]


_NOBODY: deque[Any] = deque()


class GuestQueue(RequestQueue):  # type: ignore[misc]  # vLLM has no types where it is not installed
    """First come, first served, with a gate. Whatever vLLM does costs O(1), and the gate costs what it lets in."""

    def __init__(self) -> None:
        self._all: OrderedDict[VllmRequest, None] = OrderedDict()
        self._offered: deque[VllmRequest] | None = None

    def open(self, offered: Iterable[VllmRequest]) -> None:
        """From now on only these can be taken, in this order."""
        self._offered = deque(request for request in offered if request in self._all)

    def shut(self) -> None:
        """From now on nobody can be taken."""
        self._offered = _NOBODY

    def close(self) -> None:
        """All can be taken again, in order of arrival."""
        self._offered = None

    def add_request(self, request: VllmRequest) -> None:
        """At the end."""
        self._all[request] = None

    def pop_request(self) -> VllmRequest:
        """Take the first out."""
        if self._offered is None:
            return self._all.popitem(last=False)[0]
        request = self._offered.popleft()
        del self._all[request]
        return request

    def peek_request(self) -> VllmRequest:
        """The first."""
        if self._offered is not None:
            return self._offered[0]
        return next(iter(self._all))

    def prepend_request(self, request: VllmRequest) -> None:
        """At the head; while the gate is open it is not let in."""
        self._all[request] = None
        self._all.move_to_end(request, last=False)

    def prepend_requests(self, requests: Iterable[VllmRequest]) -> None:
        """At the head, the last of them first."""
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: VllmRequest) -> None:
        """Take it out."""
        del self._all[request]

    def remove_requests(self, requests: Iterable[VllmRequest]) -> None:
        """Take them out, those that are here."""
        for request in requests:
            self._all.pop(request, None)

    def __bool__(self) -> bool:
        return bool(self._all if self._offered is None else self._offered)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, request: object) -> bool:
        return request in self._all

    def __iter__(self) -> Iterator[VllmRequest]:
        return iter(self._all)
