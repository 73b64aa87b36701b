"""A replica by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from batchwright.card import Card
from batchwright.hookspecs import hookimpl
from batchwright.params import Params
from batchwright.router import Router

if TYPE_CHECKING:
    from batchwright.fleet.view import FleetView
    from batchwright.request import Request


class RandomParams(Params):
    """Parameters of :class:`Random`."""

    choices: int = Field(
        default=1,
        ge=1,
        description="How many replicas are drawn; of these the one with the fewest outstanding requests is taken. 1: "
        "chance alone; 2: the power of two choices.",
    )


class Random(Router):
    """A replica by chance; with ``choices`` above 1 the one with the fewest outstanding requests of so many drawn.

    Source: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE Transactions on Parallel and
    Distributed Systems 12(10), 2001: two choices instead of one make the longest queue exponentially shorter, and a
    third adds little. Draws follow the config's seed. A request costs O(choices).
    """

    Params: ClassVar[type[Params]] = RandomParams
    params: RandomParams
    card: ClassVar[Card] = Card(
        source="Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, IEEE TPDS 12(10), 2001",
        rules={
            "d servers are drawn independently and uniformly": "routing",
            "the customer joins the shortest queue of these, of equals any": "routing",
        },
        deviations=("drawn without replacement, and never more than there are", "of equals the one drawn first"),
        evidence={"property tested": "all replicas get their share; with two choices the longest queue is shorter"},
    )

    @hookimpl
    def routing(self, fleet: FleetView, request: Request) -> int:
        """One of those drawn."""
        drawn = fleet.rng.sample(range(len(fleet)), min(self.params.choices, len(fleet)))
        return min(drawn, key=lambda i: fleet[i].num_requests)
