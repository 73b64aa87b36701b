"""Residents first, then newcomers: the policy of vLLM's V1 scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Literal

from pydantic import Field

from batchwright.card import Card
from batchwright.hookspecs import HOLD, Hold, hookimpl
from batchwright.lazy_heap import LazyHeap
from batchwright.limits import Limits
from batchwright.policy import Params, Policy
from batchwright.request import Request
from batchwright.step import Step


class VllmV1Params(Params):
    """Parameters of :class:`VllmV1`, with vLLM's names."""

    scheduling_policy: Literal["fcfs", "priority"] = Field(
        default="fcfs",
        description="Who is admitted first and evicted last: first come, first served; or the lower priority number "
        "first, then the earlier arrival.",
    )
    long_prefill_token_threshold: int | None = Field(
        default=None,
        ge=1,
        description="Most tokens of one prompt in a step while more than one request is in the system; a lone prompt "
        "gets the whole budget. None: no such cap (vLLM's 0).",
    )


class VllmV1(Policy):
    """All residents, then waiting requests unless somebody was evicted; any prompt may be cut (vLLM V1's policy).

    Source: vllm-project/vllm 0.32, ``vllm/v1/core/sched/scheduler.py``. Residents run in order of admission, decodes
    and cut prompts alike; admission stops at the first waiting request that does not fit. A newcomer must find free
    blocks for its whole present length, but takes only those of its first chunk, and evicts nobody. When a resident
    lacks a block, ``fcfs`` evicts the newest resident, ``priority`` the one with the worst (priority, arrival),
    which may be the asker itself or one that is in the batch already.

    Its defaults are vLLM's: ``max_num_seqs`` bounds the residents as well, and a block is shared as soon as it is
    scheduled. A step costs O(residents) and, under ``priority``, O(log waiting) for each admission.
    """

    Params = VllmV1Params
    stationary = True
    steady = True
    scans_waiting = False
    params: VllmV1Params
    card: ClassVar[Card] = Card(
        source="vllm-project/vllm 0.32, vllm/v1/core/sched/scheduler.py",
        rules={
            "running requests first, decodes and cut prompts alike": "admission",
            "nobody is started in a step in which somebody was preempted": "admission",
            "a waiting request starts if its whole present length finds free blocks": "admission",
            "the first that does not fit stops the rest": "admission",
            "any prompt is cut to the budget": "chunking",
            "long prompts are capped while others are there": "Params.long_prefill_token_threshold",
            "blocks are taken chunk by chunk": "reservation",
            "fcfs preempts the last of the running queue; priority the worst (priority, arrival)": "preemption",
            "max_num_seqs bounds the running requests": "defaults",
            "blocks are shared as soon as they are scheduled; who has no hash is reused first": "defaults",
        },
        deviations=(
            "no speculative tokens, encoder inputs, LoRA limits or transfers of K and V",
            "no watermark of free blocks",
        ),
        evidence={
            "decisions replayed": "260 workloads recorded from its own scheduler, 120 of them with prefix caching, "
            "every field of 21,296 steps",
        },
    )

    def __init__(self, params: VllmV1Params | None = None, **values: object) -> None:
        super().__init__(params, **values)
        self._by_priority = self.params.scheduling_policy == "priority"
        self._queue: LazyHeap[Request] = LazyHeap(_place)  # who waits, where priorities order them

    def defaults(self, limits: Limits) -> Mapping[str, Any]:
        """vLLM's bound on residents and its prefix cache."""
        return {
            "max_num_residents": limits.max_num_seqs,
            "prefix_cache.visible": "scheduled",
            "prefix_cache.reuse": "uncached_first",
            "prefix_cache.duplicates": "oldest",
        }

    @hookimpl
    def admission(self, step: Step) -> Iterator[Request | Sequence[Request]]:
        """Residents in order of admission, then waiting ones that fit whole, unless somebody was evicted."""
        if not self._by_priority or (not step.prefilling and step.free_blocks >= len(step.running)):
            yield step.running  # nobody can come to evict itself before others had their turn
        else:
            for request in step.running:
                if request.is_resident:
                    yield request
                    if request.is_waiting:
                        return  # it was the worst itself, and those behind it stay out of this step
        if step.preempted:
            return
        for request in self._queue.in_order() if self._by_priority else step.waiting:
            if not step.budget or step.blocks_needed(request, request.num_tokens) > step.free_blocks:
                return
            yield request
            if not request.num_scheduled:
                return

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        """What is pending, up to the budget and, under contention, to the threshold."""
        num_tokens = min(request.num_pending, step.budget)
        threshold = self.params.long_prefill_token_threshold
        if threshold is not None and len(step.waiting) + len(step.running) > 1:
            return min(num_tokens, threshold)
        return num_tokens

    @hookimpl
    def reservation(self, step: Step, request: Request) -> int:
        """Blocks for the first chunk only."""
        return 0

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Request | Literal[Hold.HOLD]:
        """The newest resident, or the one with the worst (priority, arrival); nobody for a newcomer."""
        if request.is_waiting:
            return HOLD
        if self._by_priority:
            return max((r for r in chain(step.running, step.batch) if r.is_resident), key=_place)
        return step.evictable[-1] if step.evictable else request

    # Under ``priority`` the waiting queue is kept as a heap, so that a step does not look at all who wait.

    @hookimpl
    def policy_attached(self, step: Step) -> None:
        """Take over who waits."""
        self._queue.fill(step.waiting if self._by_priority else ())

    @hookimpl
    def step_started(self, step: Step) -> None:
        """Begin anew where a fault kept an observer from seeing somebody come or go."""
        if self._by_priority and len(self._queue) != len(step.waiting):
            self._queue.fill(step.waiting)

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        """It waits from now on."""
        if self._by_priority:
            self._queue.push(request)

    @hookimpl
    def request_preempted(self, victim: Request) -> None:
        """It waits again."""
        if self._by_priority:
            self._queue.push(victim)

    @hookimpl
    def request_admitted(self, request: Request) -> None:
        """It waits no longer."""
        self._queue.discard(request)

    @hookimpl
    def request_finished(self, request: Request) -> None:
        """It waits no longer, if it did."""
        self._queue.discard(request)


def _place(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival_index
