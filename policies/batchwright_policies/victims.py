"""Whom to evict when a resident lacks a block: policies for the preemption slot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from batchwright.card import Card
from batchwright.hookspecs import HOLD, Hold, hookimpl
from batchwright.need import Need
from batchwright.policy import Policy
from batchwright.request import Request
from batchwright.step import Step

_VICTIMS_ARE_WANTED = (
    Need("preemption", "reservation", "nobody is evicted where all blocks are reserved", {"reserves_all": False}),
)


def _residents(step: Step) -> list[Request]:
    """Everybody who holds blocks now, those of this step's batch and the one that asks too."""
    residents = [r for r in step.running if r.is_resident]
    return residents + [r for r in step.batch if r not in step.running]


class Newest(Policy):
    """Victim: the newest resident that is not in the batch, or who asks; nobody for a newcomer.

    Source: GeeeekExplorer/nano-vllm, commit bb823b3, ``nanovllm/engine/scheduler.py`` (the last of ``running`` is
    preempted). Decides preemption alone. Costs O(batch) at most.
    """

    needs = _VICTIMS_ARE_WANTED
    card: ClassVar[Card] = Card(
        source="GeeeekExplorer/nano-vllm, commit bb823b3, nanovllm/engine/scheduler.py",
        rules={"the last of the running queue is preempted, or the request itself if it is alone": "preemption"},
        evidence={"decisions replayed": "as the preemption of prefill_first"},
    )

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Request | Literal[Hold.HOLD]:
        """The newest outside the batch."""
        if request.is_waiting:
            return HOLD
        return step.evictable[-1] if step.evictable else request


class _Worst(Policy):
    """The resident that is highest in some measure, the latest arrival of equals; nobody for a newcomer."""

    needs = _VICTIMS_ARE_WANTED
    measure: Callable[[Request], Any]

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Request | Literal[Hold.HOLD]:
        """The highest of all residents, who asks and the batch included."""
        if request.is_waiting:
            return HOLD
        measure = type(self).measure
        return max(_residents(step), key=lambda r: (measure(r), r.arrival_index))


class Cheapest(_Worst):
    """Victim: the resident with the fewest computed tokens, so that the least is computed again.

    Source: the recompute cost of Kwon et al., "Efficient Memory Management for Large Language Model Serving with
    PagedAttention", SOSP 2023, section 4.5 (recomputation), which grows with the tokens computed. Whoever has just
    begun is evicted again and again until there is room. Decides preemption alone. Costs O(residents) an eviction.
    """

    card: ClassVar[Card] = Card(
        source='Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", '
        "SOSP 2023, section 4.5",
        rules={"recomputing a victim costs as much as it had computed": "measure"},
        deviations=("the paper evicts by arrival; the choice by cost is ours", "a cached prefix is not taken off"),
        evidence={"property tested": "wastes less than newest (scenario P7)"},
    )

    @staticmethod
    def measure(request: Request) -> int:
        """Fewest computed tokens."""
        return -request.num_computed


class LowestPriority(_Worst):
    """Victim: the resident with the highest ``priority`` number, the latest arrival of equals.

    Source: vllm-project/vllm 0.32, ``vllm/v1/core/sched/scheduler.py``, scheduling policy ``priority``:
    ``max(self.running, key=lambda r: (r.priority, r.arrival_time))``. Decides preemption alone. Costs O(residents) an
    eviction.
    """

    card: ClassVar[Card] = Card(
        source="vllm-project/vllm 0.32, vllm/v1/core/sched/scheduler.py, policy priority",
        rules={"the worst (priority, arrival) of the running requests is preempted": "measure"},
        evidence={"property tested": "a high number is evicted before a low one, from the batch too"},
    )

    @staticmethod
    def measure(request: Request) -> int:
        """Highest number."""
        return request.priority


class MostBlocks(_Worst):
    """Victim: the resident that holds the most KV blocks, so that one eviction makes the most room.

    Source: ours, as the opposite of ``cheapest``: the fewest evictions, each the most expensive. Shared blocks count,
    though they do not become free. Decides preemption alone. Costs O(residents) an eviction.
    """

    card: ClassVar[Card] = Card(
        source="Batchwright: largest first, as page replacement by size",
        rules={"whoever holds the most blocks makes room": "measure"},
        evidence={"property tested": "the largest resident is evicted"},
    )

    @staticmethod
    def measure(request: Request) -> int:
        """Most blocks."""
        return len(request.block_table)
