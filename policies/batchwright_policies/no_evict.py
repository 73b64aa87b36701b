"""Nobody is started who could have to be evicted: TensorRT-LLM's guaranteed completion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from batchwright.card import Card
from batchwright.hookspecs import hookimpl
from batchwright.need import Need
from batchwright.ranked import Ordered
from batchwright.request import Request
from batchwright.step import Step


class NoEvict(Ordered):
    """A request starts once the blocks to its end are there, so nobody is ever evicted (GUARANTEED_NO_EVICT).

    Source: NVIDIA/TensorRT-LLM, commit 02a10fe, capacity scheduler policy ``GUARANTEED_NO_EVICT`` (its default),
    ``cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp``, class ``GuaranteedNoEvictScheduler``. Running requests go
    first; waiting ones start by arrival while the blocks of prompt + max_tokens - 1 tokens are free for each, and the
    first that does not fit stops the rest. Prompts may be cut.

    It needs honest ``max_tokens``: a limit far above the answer leaves most of the pool empty. No work is ever lost,
    and the gap between two tokens has no recompute in it. A step costs O(residents), whatever waits.
    """

    stationary = True
    scans_waiting = False
    reserves_all = True
    needs = (
        Need("admission", "reservation", "it evicts nobody", {"reserves_all": True}),
        Need("admission", "preemption", "it evicts nobody", {"preemptive": False}),
    )
    card: ClassVar[Card] = Card(
        source="NVIDIA/TensorRT-LLM, commit 02a10fe, cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp, "
        "GuaranteedNoEvictScheduler",
        rules={
            "requests in progress are always scheduled": "residents",
            "a request starts if the blocks to its completion are free, after those of all in progress": "reservation",
            "if one request does not fit, no later one is looked at": "admission",
        },
        deviations=(
            "blocks are taken at the start; there they are counted as reserved and taken as they fill",
            "a request whose prefix another one is just computing is not held back for it (beneficialToSkip)",
        ),
        evidence={
            "property tested": "never an eviction, on any pool; chunks beside decodes",
            "from the paper only": "its order: compared with the source's text, no decisions of it were recorded",
        },
    )

    def in_order(self, step: Step) -> Iterable[Request]:
        """By arrival."""
        return step.waiting

    @hookimpl
    def reservation(self, step: Step, request: Request) -> int:
        """All that it can ever need."""
        return request.num_prompt_tokens + request.max_tokens - 1
