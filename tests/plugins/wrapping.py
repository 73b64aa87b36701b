"""Plugins that wrap the hook ``admission``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from batchwright import Request, Step, hookimpl


class Filters:
    """Wraps admission: leaves requests of a client out, as a wrapper of the iterable."""

    name = "filters"

    def __init__(self, client_id: str, until: int) -> None:
        self._client_id, self._until = client_id, until

    @hookimpl(wrapper=True)
    def admission(self, step: Step) -> Any:
        offers = yield
        return self._kept(step, offers)

    def _kept(self, step: Step, offers: Any) -> Iterator[Request]:
        for offer in offers:
            for request in [offer] if isinstance(offer, Request) else offer:
                if request.client_id != self._client_id or step.index >= self._until:
                    yield request


class Reverses:
    """Wraps admission: the waiting in the reverse order."""

    name = "reverses"

    @hookimpl(wrapper=True)
    def admission(self, step: Step) -> Any:
        yield
        return [step.running, *reversed(step.waiting)]
