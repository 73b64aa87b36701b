"""Entry point of the routers that come with Batchwright."""

from __future__ import annotations

from batchwright.hookspecs import hookimpl
from batchwright.router import Router
from batchwright.routers.least_outstanding import LeastOutstanding
from batchwright.routers.prefix_aware import PrefixAware
from batchwright.routers.random import Random
from batchwright.routers.round_robin import RoundRobin


@hookimpl
def register_routers() -> dict[str, type[Router]]:
    """In turn, by chance, by load, and by what caches hold."""
    return {
        "least_outstanding": LeastOutstanding,
        "prefix_aware": PrefixAware,
        "random": Random,
        "round_robin": RoundRobin,
    }
