"""Clients that give up."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from batchwright.lab.materialize import Offer

if TYPE_CHECKING:
    from batchwright.engine import Engine
    from batchwright.request import Request


class Aborts:
    """Who aborts when, of one run.

    A client looks between two steps: it gives up at the end of the step in which its time ran out, or in which it got
    its last token.
    """

    def __init__(self) -> None:
        self._timed: list[tuple[int, int, Request]] = []  # a heap: when, place of the row
        self._counted: dict[Request, int] = {}

    def add(self, offer: Offer) -> None:
        """This request was taken."""
        request, row = offer.request, offer.row
        if row.abort_after_s is not None:
            when = request.arrival_ns + round(row.abort_after_s * 1e9)
            heappush(self._timed, (when, offer.place, request))
        if row.abort_after_tokens is not None:
            self._counted[request] = row.abort_after_tokens

    def forget(self, request: Request) -> None:
        """This request was not taken after all."""
        self._counted.pop(request, None)

    def next_ns(self) -> int | None:
        """When the next of them gives up by the clock."""
        timed = self._timed
        while timed and timed[0][2].is_finished:
            heappop(timed)
        return timed[0][0] if timed else None

    def steps_left(self) -> int | None:
        """How many steps of decodes may pass before one of them has all the tokens it wants; None: no matter."""
        self._forget()
        return min((num - request.num_output_tokens for request, num in self._counted.items()), default=None)

    def due(self, now_ns: int, *engines: Engine) -> list[Request]:
        """Who gives up now; each is given once. Of a fleet, all its engines."""
        found: list[Request] = []
        while (when := self.next_ns()) is not None and when <= now_ns:
            found.append(heappop(self._timed)[2])
        self._forget()
        if self._counted:
            enough = [r for r, num in self._counted.items() if _num_delivered(r, engines) >= num]
            for request in enough:
                del self._counted[request]
            found += [request for request in enough if request not in found]
        return found

    def _forget(self) -> None:
        ended = [request for request in self._counted if request.is_finished]
        for request in ended:
            del self._counted[request]


def _num_delivered(request: Request, engines: tuple[Engine, ...]) -> int:
    """Its output tokens, without one that is still being computed."""
    for engine in engines:
        awaited = engine.scheduler.awaited
        if awaited is not None and request in awaited.rows and not awaited.has_token(request):
            return request.num_output_tokens - 1
    return request.num_output_tokens
