"""As many as fit this step, the newest paused when blocks run out: TensorRT-LLM's policy of greed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

from batchwright.card import Card
from batchwright.hookspecs import HOLD, Hold, hookimpl
from batchwright.need import Need
from batchwright.ranked import Ordered
from batchwright.request import Request
from batchwright.step import Step


class MaxUtilization(Ordered):
    """Everybody who fits now is started; when blocks run out the last started is paused (MAX_UTILIZATION).

    Source: NVIDIA/TensorRT-LLM, commit 02a10fe, capacity scheduler policy ``MAX_UTILIZATION``,
    ``cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp``, class ``MaxUtilizationScheduler``. A request needs blocks
    for its present length only, whatever ``max_tokens`` says. In a step in which somebody is paused nobody starts.

    The pool is as full as it can be, at the price of recomputing whoever is paused. A step costs O(residents),
    whatever waits.
    """

    stationary = True
    steady = True
    scans_waiting = False
    needs = (
        Need("admission", "reservation", "blocks set aside are blocks not used", {"reserves_all": False}),
        Need("admission", "preemption", "whoever runs is paused for want of blocks only", {"preemptive": False}),
    )
    card: ClassVar[Card] = Card(
        source="NVIDIA/TensorRT-LLM, commit 02a10fe, cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp, "
        "MaxUtilizationScheduler",
        rules={
            "requests in order, each if its blocks of this step are free": "admission",
            "a request that starts needs the blocks of its prompt": "reservation",
            "if there is no room, the last started of those not yet scheduled is paused, perhaps itself": "preemption",
            "who stands behind a paused one is not looked at": "admission",
        },
        deviations=(
            "a paused request is recomputed, less its cached prefix",
            "started requests come before waiting ones; there all stand in one list by arrival, where a waiting one "
            "that does not fit pauses those that were started behind it",
            "a batch that is full pauses nobody; there it pauses the last started",
            "a request whose prefix another one is just computing is not held back for it (beneficialToSkip)",
        ),
        evidence={
            "property tested": "fills the pool, pauses the last started, starts nobody in that step",
            "from the paper only": "its order: compared with the source's text, no decisions of it were recorded",
        },
    )

    def in_order(self, step: Step) -> Iterable[Request]:
        """By arrival; who was paused stands at the head."""
        return step.waiting

    @hookimpl
    def reservation(self, step: Step, request: Request) -> int:
        """Its present length."""
        return request.num_tokens

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Request | Literal[Hold.HOLD]:
        """The last started that is not in the batch yet, or who asks; nobody for a newcomer."""
        if request.is_waiting:
            return HOLD
        return step.evictable[-1] if step.evictable else request
