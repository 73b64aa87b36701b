"""Highest response ratio next, where service is the prefill that the cache leaves."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import ClassVar

from pydantic import Field

from batchwright.card import Card
from batchwright.policy import Params
from batchwright.ranked import Ordered
from batchwright.request import Request
from batchwright.step import Step


class HrrnParams(Params):
    """Parameters of :class:`Hrrn`."""

    base_tokens: int = Field(
        default=64,
        ge=0,
        description="What a request costs beside its prefill, in prompt tokens: its steps and its answer. 0: a cached "
        "request goes far ahead, as with lpm; large: first come, first served.",
    )

    scan: int = Field(
        default=128,
        ge=1,
        description="Oldest waiting requests that a step compares; the rest move up as these are admitted.",
    )


class Hrrn(Ordered):
    """Whoever has waited longest for the service it needs goes first (highest response ratio next).

    Source: Brinch Hansen, "An Analysis of Response Ratio Scheduling", IFIP Congress 1971; on a prefix cache as in
    sgl-project/sglang, commit 00550cd, policy ``hrrn``. The response ratio is (waiting + service) / service. Service is
    taken as the prompt tokens that the prefix cache leaves to compute, and ``base_tokens`` for all the rest; the ratio
    orders alike in tokens and in seconds.

    Of two that came together the better cached goes first, and every wait ends, since a ratio grows without bound. The
    order moves by itself, so it is not kept: a step costs O(residents), and where there is room the look-up and sorting
    of at most ``scan`` prefixes, whatever waits.
    """

    Params = HrrnParams
    params: HrrnParams
    scans_waiting = False  # but for a bounded number
    card: ClassVar[Card] = Card(
        source='Brinch Hansen, "An Analysis of Response Ratio Scheduling", IFIP Congress 1971; on a prefix cache as in '
        "sgl-project/sglang, commit 00550cd, python/sglang/srt/managers/schedule_policy.py, policy hrrn",
        rules={
            "the highest (waiting + service) / service goes first": "in_order",
            "service is known in advance": "in_order",
            "no job is interrupted": "admission",
        },
        deviations=(
            "service is the prefill left by the prefix cache, and a constant: how long an answer will be is not known",
            "waiting counts from the arrival, through a preemption too",
            "SGLang measures waiting in prompt tokens computed meanwhile, and has nothing like base_tokens: whoever is "
            "cached whole goes first there",
            "SGLang puts requests last that share an uncached prefix with one before; its equals go by id",
            "only the oldest scan requests are compared; SGLang goes by arrival with more than 128 waiting",
        ),
        evidence={
            "property tested": "about lpm's mean latency and a lower p99; every wait ends",
            "from the paper only": "SGLang's order: compared with its text, no decisions of it were recorded",
        },
    )

    def in_order(self, step: Step) -> Iterable[Request]:
        """The oldest by response ratio, then the others by arrival."""
        oldest = list(islice(step.waiting, self.params.scan))
        later = islice(step.waiting, self.params.scan, None)

        places = {}
        for request in oldest:
            service = self.params.base_tokens + request.num_tokens - step.num_cached(request)
            places[request] = ((request.arrival_ns - step.now) / service, service, request.arrival_index)
        oldest.sort(key=places.__getitem__)
        yield from oldest
        yield from later
