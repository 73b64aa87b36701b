"""The clients of one run: who comes when, who gives up, and who waits for whose end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from batchwright.lab.aborts import Aborts
from batchwright.lab.ends import Ends
from batchwright.lab.materialize import Offer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from batchwright.engine import Engine
    from batchwright.request import Request


class Coming(Protocol):
    """What is asked of :class:`~batchwright.lab.arrivals.Arrivals`."""

    @property
    def waits(self) -> bool:
        """Whether arrivals follow ends."""
        ...

    @property
    def next_ns(self) -> int | None:
        """When the next request arrives."""
        ...

    def take(self) -> Offer:
        """The next request."""
        ...

    def ended(self, index: int, end_ns: int) -> None:
        """A request has ended."""
        ...


class Clients:
    """Arrivals and aborts of a run on some engines, for whoever drives these.

    Before each step of an engine: ``hear``, add what has arrived by then (``next_ns``, ``take``, and ``taken`` or
    ``refused`` of each), and abort who gives up (``leaving``); where somebody did, begin again, since that may bring an
    arrival.

    Attributes:
        arrivals: started already.
        any_may_leave: whether a client that may give up has come.
    """

    def __init__(self, arrivals: Coming, engines: Sequence[Engine]) -> None:
        self.arrivals = arrivals
        self._engines = engines
        self._aborts = Aborts()
        self.any_may_leave = False
        self._places: dict[Request, int] = {}  # of requests whose end is waited for: the places of their rows
        self._ends = [Ends(engine) for engine in engines] if arrivals.waits else []
        for ends, engine in zip(self._ends, engines, strict=False):
            engine.scheduler.register(ends, "ends")

    @property
    def next_ns(self) -> int | None:
        """When the next request arrives; see :class:`Coming`."""
        return self.arrivals.next_ns

    def take(self) -> Offer:
        """The next request."""
        return self.arrivals.take()

    def taken(self, offer: Offer) -> None:
        """A request is in."""
        if offer.row.gives_up:
            self.any_may_leave = True
            self._aborts.add(offer)
        if self.arrivals.waits:
            self._places[offer.request] = offer.place

    def refused(self, request: Request, index: int | None, now_ns: int) -> None:
        """A request is not taken; ``index`` is the place of its row, None where it was said to be in before."""
        place = self._places.pop(request, index)
        self._aborts.forget(request)
        if self.arrivals.waits and place is not None:
            self.arrivals.ended(place, now_ns)

    def hear(self) -> None:
        """Tell the arrivals who has ended."""
        for ends in self._ends:
            for request, when in ends.take():
                place = self._places.pop(request, None)
                if place is not None:
                    self.arrivals.ended(place, when)

    def leaving(self, now_ns: int) -> list[Request]:
        """Who gives up now; each is given once."""
        return self._aborts.due(now_ns, *self._engines) if self.any_may_leave else []

    def soonest(self, until_ns: int | None) -> int | None:
        """Up to when steps may be taken at once: the next arrival or abort, or this time."""
        when = self.arrivals.next_ns
        if until_ns is not None and (when is None or until_ns < when):
            when = until_ns
        if self.any_may_leave:
            leaves = self._aborts.next_ns()
            if leaves is not None and (when is None or leaves < when):
                when = leaves
        return when

    def most(self, num_steps: int | None) -> int | None:
        """How many of so many steps may be taken at once, before a client has enough."""
        left = self._aborts.steps_left() if self.any_may_leave else None
        return num_steps if left is None else left if num_steps is None else min(left, num_steps)
