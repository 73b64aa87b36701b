"""Earliest deadline first."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from batchwright.card import Card
from batchwright.ranked import Ranked
from batchwright.request import Request


class Edf(Ranked):
    """The earliest deadline first; a newcomer passes and evicts whose deadline is later.

    Source: Liu and Layland, "Scheduling Algorithms for Multiprogramming in a Hard-Real-Time Environment", Journal of
    the ACM 20(1), 1973 (deadline-driven scheduling). The deadline is ``deadline_s``, or the arrival plus the SLO's
    ``ttft_s``; whoever has neither goes last.

    Where all deadlines can be met it meets them, up to what a recompute costs; in overload it works for those that are
    late already, and many miss: pair it with load shedding. A step costs O(log waiting) for each newcomer it looks at,
    and O(residents), or O(residents · log residents) when one passes a resident.
    """

    preemptive = True
    stationary = True
    card: ClassVar[Card] = Card(
        source="Liu and Layland, Journal of the ACM 20(1), 1973, deadline-driven scheduling",
        rules={
            "at any time the request of the nearest deadline runs": "rank",
            "it interrupts others": "admission",
            "the latest deadline makes room": "preemption",
        },
        deviations=(
            "many requests run at once; the theorem on feasible sets is of one processor and free preemption",
            "who is evicted is recomputed, so one is evicted only if that makes the newcomer fit",
        ),
        evidence={"property tested": "meets deadlines that can be met, where FIFO misses some"},
    )

    def rank(self, request: Request) -> float:
        """Its deadline in seconds of the engine's clock."""
        if request.deadline_s is not None:
            return request.deadline_s
        if request.slo is not None and request.slo.ttft_s is not None:
            return request.arrival_s + request.slo.ttft_s
        return inf

    def rank_holds(self, request: Request) -> float:
        """For ever: it never changes."""
        return inf
