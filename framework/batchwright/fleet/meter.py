"""How many tokens wait at a replica, kept as they come and go."""

from __future__ import annotations

from batchwright.hookspecs import hookimpl
from batchwright.request import Request


class WaitingTokens:
    """Sums the tokens of waiting requests, so that a router's look costs nothing per request that waits.

    Attributes:
        total: tokens of all who wait; all of them are pending.
    """

    name = "waiting tokens"

    def __init__(self) -> None:
        self.total = 0
        self._of: dict[Request, int] = {}

    def _put(self, request: Request) -> None:
        self._drop(request)
        self._of[request] = request.num_tokens
        self.total += request.num_tokens

    def _drop(self, request: Request) -> None:
        self.total -= self._of.pop(request, 0)

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        """It waits."""
        self._put(request)

    @hookimpl
    def request_admitted(self, request: Request) -> None:
        """It does not wait any more."""
        self._drop(request)

    @hookimpl
    def request_preempted(self, victim: Request) -> None:
        """It waits again, with what it has put out so far."""
        self._put(victim)

    @hookimpl
    def request_finished(self, request: Request) -> None:
        """It may have waited still."""
        self._drop(request)
