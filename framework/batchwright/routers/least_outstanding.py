"""The replica with the least to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from batchwright.card import Card
from batchwright.hookspecs import hookimpl
from batchwright.params import Params
from batchwright.router import Router

if TYPE_CHECKING:
    from batchwright.fleet.view import FleetView
    from batchwright.request import Request


class LeastOutstandingParams(Params):
    """Parameters of :class:`LeastOutstanding`."""

    by: Literal["requests", "tokens"] = Field(
        default="requests",
        description="What is counted: requests that have not ended, or their pending tokens (prompts, or what is left "
        "of them; a decode has one).",
    )


class LeastOutstanding(Router):
    """The replica with the fewest outstanding requests, or tokens; of equals the one that got none for longest.

    Source: ``least_conn`` of nginx (``ngx_http_upstream_least_conn_module``), "least outstanding requests" of AWS
    Application Load Balancers. It levels work where requests differ in length, and looks at no cache. A request costs
    O(replicas).
    """

    Params: ClassVar[type[Params]] = LeastOutstandingParams
    params: LeastOutstandingParams
    card: ClassVar[Card] = Card(
        source="nginx, ngx_http_upstream_least_conn_module, without weights; AWS ELB, routing algorithm "
        "least_outstanding_requests",
        rules={
            "the server with the fewest requests that have not ended": "routing",
            "of equals in turn": "_passed",
        },
        deviations=("counting pending tokens (by=tokens) is an addition",),
        evidence={"property tested": "no replica gets a request while another has fewer"},
    )

    def __init__(self, params: LeastOutstandingParams | None = None, **values: object) -> None:
        super().__init__(params, **values)
        self._order: dict[int, None] = {}  # replicas, the one that got a request last behind all others

    @hookimpl
    def routing(self, fleet: FleetView, request: Request) -> int:
        """The least one."""
        tokens = self.params.by == "tokens"
        order = self._order or dict.fromkeys(range(len(fleet)))
        place = min(order, key=lambda i: fleet[i].outstanding_tokens if tokens else fleet[i].num_requests)
        self._order = self._passed(order, place)
        return place

    @staticmethod
    def _passed(order: dict[int, None], place: int) -> dict[int, None]:
        """The order with one put behind all others."""
        del order[place]
        order[place] = None
        return order
