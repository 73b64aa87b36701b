"""Decodes never wait for prompts: Sarathi-Serve's policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from batchwright.card import Card
from batchwright.hookspecs import HOLD, Hold, hookimpl
from batchwright.limits import Limits
from batchwright.need import Need
from batchwright.policy import Params, Policy
from batchwright.request import Request
from batchwright.step import Step


class StallFreeParams(Params):
    """Parameters of :class:`StallFree`."""

    chunk_size: int = Field(
        default=512,
        ge=1,
        description="Most tokens of a step, decodes included; prompts are cut to what the decodes leave. It bounds "
        "the time of a step and so the gap between two tokens. Static as in the source: a lone prompt is cut to it "
        "as well, whatever the budget would allow.",
    )


class StallFree(Policy):
    """Decodes, then partial prompts, then new ones, within a chunk of tokens (Sarathi-Serve's policy).

    Source: Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024;
    microsoft/sarathi-serve, ``sarathi/core/scheduler/sarathi_scheduler.py`` (static chunk size). Every decode gets its
    token in every step, and prompts share the rest of ``chunk_size`` in order, so no prompt ever stalls a decode. A
    newcomer takes the blocks of its whole present length, nobody overtakes one that does not fit, and when a decode
    lacks a block the newest resident outside the batch is evicted.

    Of decodes that outnumber ``chunk_size``, which a live swap can bring, all run, and prompts go on when fewer are
    left. As in its source ``max_num_seqs`` bounds the residents as well, by default. A step costs O(residents it
    schedules), whatever waits.
    """

    Params = StallFreeParams
    stationary = True
    steady = True
    scans_waiting = False
    needs = (Need("admission", "chunking", "a whole prompt stalls the decodes beside it", {"chunks": True}),)
    params: StallFreeParams
    card: ClassVar[Card] = Card(
        source='Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024, '
        "Algorithm 3; microsoft/sarathi-serve, commit 13f16cf, sarathi/core/scheduler/sarathi_scheduler.py",
        rules={
            "every decode first (lines 6-8)": "admission",
            "then prompts that were begun (9-12), then new ones up to the first that does not fit (13-20)": "admission",
            "prompts are cut to what the decodes leave of the chunk (lines 11, 15)": "chunking",
            "one static chunk size": "Params.chunk_size",
            "a request takes the blocks of its whole prompt when it starts": "reservation",
            "a decode that lacks a block preempts the last of the running queue, else itself": "preemption",
            "max_num_seqs bounds the running requests": "defaults",
        },
        deviations=(
            "residents go by admission; there by arrival, so whoever was preempted is before who came after it again",
            "a decode that lacks a block preempts any prompt that goes on; there one that came after it, else itself",
            "no chunk that shrinks as a prompt goes on (enable_dynamic_chunking_schedule), no pipeline stages",
            "prompts share cached prefixes",
        ),
        evidence={
            "property tested": "a decode never waits for a prompt, and no step with a prompt is above the chunk",
            "from the paper only": "its order of requests: from the source's text, no decisions of it were recorded",
        },
    )

    def defaults(self, limits: Limits) -> Mapping[str, Any]:
        """A resident always finds a place in the batch."""
        return {"max_num_residents": limits.max_num_seqs}

    @hookimpl
    def admission(self, step: Step) -> Iterator[Request | Sequence[Request]]:
        """Decodes, then prompts that go on, then waiting ones up to the first that does not fit."""
        yield step.decodes
        for request in step.prefilling:
            if not self._left(step):
                return
            yield request
        for request in step.waiting:
            if not self._left(step):
                return
            yield request
            if not request.num_scheduled:
                return

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        """What is pending, up to what is left of the chunk and of the budget."""
        return min(request.num_pending, self._left(step))

    @hookimpl
    def reservation(self, step: Step, request: Request) -> int:
        """Blocks for the whole present length."""
        return request.num_tokens

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Request | Literal[Hold.HOLD]:
        """The newest resident that is not in the batch; nobody for a newcomer."""
        if request.is_waiting:
            return HOLD
        return step.evictable[-1] if step.evictable else request

    def _left(self, step: Step) -> int:
        """Tokens that may still enter this step."""
        used = step.limits.max_num_batched_tokens - step.budget
        return max(0, min(self.params.chunk_size - used, step.budget))
