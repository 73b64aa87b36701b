"""Iteration-level scheduling: Orca's policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from batchwright.card import Card
from batchwright.hookspecs import hookimpl
from batchwright.need import Need
from batchwright.ranked import Ordered
from batchwright.request import Request
from batchwright.step import Step


class Orca(Ordered):
    """First come, first served by iteration; prompts whole; room for the longest answer from the start (Orca's policy).

    Source: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022,
    Algorithm 1 (``Select``). Requests join and leave the batch between any two iterations; whoever joins has its whole
    prompt computed beside the others' decodes. Admission goes by arrival, takes the blocks of prompt + max_tokens - 1
    tokens, and stops at the first that does not fit, so nobody is evicted.

    It needs honest ``max_tokens``: what is declared and not used stays empty. A long prompt makes the step long for
    all. A step costs O(residents), whatever waits.
    """

    chunks = False
    stationary = True
    scans_waiting = False
    reserves_all = True
    needs = (
        Need("admission", "chunking", "its prompts run whole", {"chunks": False}),
        Need("admission", "reservation", "it evicts nobody", {"reserves_all": True}),
        Need("admission", "preemption", "it evicts nobody", {"preemptive": False}),
    )
    card: ClassVar[Card] = Card(
        source='Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022',
        rules={
            "the batch is chosen anew at each iteration (section 3)": "admission",
            "at most max_bs requests (Algorithm 1, Select)": "defaults",
            "by arrival, until one finds no room (Select)": "in_order",
            "memory for max_tokens is reserved when a request is first scheduled (Select)": "reservation",
            "prompts run whole, beside decodes (selective batching)": "chunking",
        },
        deviations=(
            "memory is counted in KV blocks, and prompts share cached prefixes",
            "one step at a time: Algorithm 1 keeps n_workers batches in a pipeline",
            "max_num_batched_tokens bounds a step; the paper bounds only its requests",
        ),
        evidence={
            "property tested": "whole prompts join running decodes; nobody is evicted, nobody overtakes",
            "from the paper only": "the pipeline of n_workers batches",
        },
    )

    def in_order(self, step: Step) -> Iterable[Request]:
        """By arrival."""
        return step.waiting

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        """The whole prompt, or nothing yet."""
        return request.num_pending if request.num_pending <= step.budget else 0

    @hookimpl
    def reservation(self, step: Step, request: Request) -> int:
        """All that it can ever need."""
        return request.num_prompt_tokens + request.max_tokens - 1
