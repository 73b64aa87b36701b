"""One replica after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from batchwright.card import Card
from batchwright.hookspecs import hookimpl
from batchwright.params import Params
from batchwright.router import Router

if TYPE_CHECKING:
    from batchwright.fleet.view import FleetView
    from batchwright.request import Request


class RoundRobin(Router):
    """One replica after the other, whatever they do.

    Source: the default of load balancers (nginx, ``ngx_http_upstream_module``, without weights). Each gets as many
    requests, not as much work; requests that share a prefix are scattered. A request costs O(1).
    """

    card: ClassVar[Card] = Card(
        source="nginx, ngx_http_upstream_module, its default method without weights",
        rules={"requests go to the servers in turn": "routing"},
        evidence={"property tested": "of any n requests in a row each of n replicas gets one"},
    )

    def __init__(self, params: Params | None = None, **values: object) -> None:
        super().__init__(params, **values)
        self._next = 0

    @hookimpl
    def routing(self, fleet: FleetView, request: Request) -> int:
        """The next one."""
        place = self._next % len(fleet)
        self._next = place + 1
        return place
