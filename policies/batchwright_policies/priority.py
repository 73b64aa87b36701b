"""Priorities that evict."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from batchwright.card import Card
from batchwright.ranked import Ranked
from batchwright.request import Request


class Priority(Ranked):
    """The lowest ``priority`` number first, from the moment it arrives; equals by arrival.

    Source: preemptive static priorities (Liu and Layland, "Scheduling Algorithms for Multiprogramming in a
    Hard-Real-Time Environment", Journal of the ACM 20(1), 1973); that requests carry a number of which the lower goes
    first is vLLM's (vllm-project/vllm 0.32, ``--scheduling-policy priority``).

    A newcomer passes residents of a higher number where the batch or the budget is short, and evicts the worst of them
    for a seat or for blocks, if that suffices. Equal priorities never evict each other. When a resident lacks a block,
    the worst (priority, arrival) goes. Whoever has a high number waits as long as lower ones keep coming.

    A step costs O(log waiting) for each newcomer it looks at, and O(residents), or O(residents · log residents) when
    one passes a resident.
    """

    preemptive = True
    stationary = True
    card: ClassVar[Card] = Card(
        source="Liu and Layland, Journal of the ACM 20(1), 1973, preemptive static priorities; numbers as in "
        "vllm-project/vllm 0.32, --scheduling-policy priority",
        rules={
            "whoever has the most urgent priority runs, and interrupts others": "admission",
            "the lower number is the more urgent, then the earlier arrival": "rank",
            "the least urgent resident makes room": "preemption",
        },
        deviations=(
            "a newcomer evicts; in vLLM only a resident that lacks a block does",
            "who is evicted is recomputed, so one is evicted only if that makes the newcomer fit",
        ),
        evidence={"property tested": "one eviction for one seat; equals never evict each other"},
    )

    def rank(self, request: Request) -> int:
        """Its priority."""
        return request.priority

    def rank_holds(self, request: Request) -> float:
        """For ever: it never changes."""
        return inf
