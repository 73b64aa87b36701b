"""A batch runs to its end before the next one starts: FasterTransformer's policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from batchwright.card import Card
from batchwright.hookspecs import hookimpl
from batchwright.need import Need
from batchwright.ranked import Ordered
from batchwright.request import Request
from batchwright.step import Step


class StaticBatch(Ordered):
    """A batch is formed when nobody is resident, and runs until its last request ends (FasterTransformer's policy).

    Source: NVIDIA/FasterTransformer, served by request-level batching, as Orca's section 2 and figure 3 describe it
    (Yu et al., OSDI 2022). Waiting requests form a batch by arrival, up to ``max_num_seqs`` and the token budget, with
    all blocks that they can ever need. Nobody joins until all of them are done.

    The baseline that continuous batching is measured against: who ends early leaves its place empty, and who arrives
    just after the start waits for the longest. A step costs O(residents), whatever waits.
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
        source='NVIDIA/FasterTransformer, as described in Yu et al., "Orca", OSDI 2022, section 2; the same rule as '
        "STATIC_BATCH of NVIDIA/TensorRT-LLM, commit 02a10fe, cpp/tensorrt_llm/batch_manager/capacityScheduler.cpp",
        rules={
            "the engine processes one batch of requests to its end": "admission",
            "requests that arrive meanwhile wait for the next batch": "admission",
            "memory for the longest answer is set aside when the batch starts": "reservation",
            "prompts are computed whole": "chunking",
        },
        deviations=(
            "a request that ends early is answered at once and costs nothing more; there it is padded to the end",
            "prompts are not padded to the longest of the batch",
            "a batch starts with who is there: no delay to fill it, which Triton's dynamic batcher allows",
        ),
        evidence={
            "property tested": "nobody is admitted while anybody of the batch runs",
            "from the paper only": "the cost of padding, which is left out",
        },
    )

    def in_order(self, step: Step) -> Iterable[Request]:
        """By arrival."""
        return step.waiting

    @hookimpl
    def admission(self, step: Step) -> Iterator[Request | Sequence[Request]]:
        """The batch, as long as anybody of it is there; then the next one."""
        if step.running:
            yield from self.residents(step)
        else:
            yield from super().admission(step)

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        """The whole prompt, or nothing yet."""
        return request.num_pending if request.num_pending <= step.budget else 0

    @hookimpl
    def reservation(self, step: Step, request: Request) -> int:
        """All that it can ever need."""
        return request.num_prompt_tokens + request.max_tokens - 1
