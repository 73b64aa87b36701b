"""Who has ended, and when, for arrivals that wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from batchwright.hookspecs import hookimpl

if TYPE_CHECKING:
    from batchwright.engine import Engine
    from batchwright.request import Request


class Ends:
    """Collects the ends of one engine's requests. Register it as a plugin."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._told: list[tuple[Request, int]] = []

    @hookimpl
    def request_finished(self, request: Request) -> None:
        """It has ended; with overlap it may turn out that it has not."""
        self._told.append((request, self._engine.clock.now_ns()))

    def take(self) -> Iterator[tuple[Request, int]]:
        """Who has ended since the last call, and when: with the last token, or when it was told."""
        if not self._told:
            return
        awaited = self._engine.scheduler.awaited
        told, self._told = self._told, []
        for request, when in told:
            if awaited is not None and request in awaited.ended:
                self._told.append((request, when))  # its last token is still being computed
            elif request.is_finished:
                last = request.last_token_ns
                is_whole = request.finish_reason not in ("abort", "error") and last is not None
                yield request, last if is_whole and last is not None else when
