"""Which waiting requests a policy looks at in a step: counted by queue views and requests that tell, not by time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from batchwright.queues import QueueView
from batchwright.request import Request
from batchwright.step import Step
from batchwright.testing.scenarios import KitRequest


class Gaze:
    """Notes request objects while hooks run.

    A request counts when a walk over ``step.waiting`` comes to it, or when an attribute of it is read; a slice of
    the queue counts whole, since it copies the whole. What a policy does with numbers of its own is not seen.

    Attributes:
        is_on: a hook is running.
        touched: ids of the objects it looked at in this step.
        request_type: requests of this class tell when they are looked at.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.touched: set[int] = set()
        self.request_type = _telling(self)

    def turn_on(self, step: Step | None) -> bool:
        """A hook begins; returns whether one was running already."""
        if step is not None and not isinstance(step.waiting, TellingView):
            step.waiting = TellingView(step.waiting, self)
        was_on, self.is_on = self.is_on, True
        return was_on


class TellingView(QueueView):
    """A view of a queue that tells whom it gave out."""

    __slots__ = ("_gaze",)

    def __init__(self, view: QueueView, gaze: Gaze) -> None:
        super().__init__(view._order)
        self._gaze = gaze

    def __iter__(self) -> Iterator[Request]:
        return self._tell(super().__iter__())

    def __reversed__(self) -> Iterator[Request]:
        return self._tell(super().__reversed__())

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        for request in self._order if isinstance(index, slice) else (found,):
            self._note(request)
        return found

    def _tell(self, requests: Iterator[Request]) -> Iterator[Request]:
        for request in requests:
            self._note(request)
            yield request

    def _note(self, request: Request) -> None:
        self._gaze.touched.add(id(request))


def _telling(gaze: Gaze) -> type[KitRequest]:
    class TellingRequest(KitRequest):
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if gaze.is_on:
                gaze.touched.add(id(self))
            return super().__getattribute__(name)

    return TellingRequest
