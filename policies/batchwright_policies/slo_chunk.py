"""Prompts are cut so that a step keeps the decodes inside their SLO."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pydantic import Field

from batchwright.card import Card
from batchwright.hookspecs import hookimpl
from batchwright.need import Need
from batchwright.policy import Params
from batchwright.ranked import Ordered
from batchwright.request import Request
from batchwright.step import Step


class SloChunkParams(Params):
    """Parameters of :class:`SloChunk`."""

    tbt_s: float = Field(
        default=0.05, gt=0, description="Seconds between two tokens, for requests whose SLO has no tpot_s."
    )
    min_chunk: int = Field(
        default=16,
        ge=1,
        description="Tokens that a step takes of a prompt where decodes alone take longer than their SLO: there is "
        "nothing to keep then, and prompts go on.",
    )
    tile: int = Field(default=16, ge=1, description="Prompts are cut to a multiple of this many tokens.")


class SloChunk(Ordered):
    """Decodes in every step; of prompts as much as leaves the step inside the tightest SLO of those decodes.

    Source: Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024, section
    4.3 (the token budget follows from the TBT SLO); chosen anew in every step from the predicted time, as in Agrawal et
    al., "Medha: Efficiently Serving Multi-Million Context Length LLM Inference Requests Without Approximations", 2024
    (adaptive chunking). The SLO is the least ``slo.tpot_s`` of the decodes in the batch, or ``tbt_s``.

    While nobody decodes there is nothing to keep, and a prompt gets the whole budget. It needs a backend that predicts
    (``step.predict_s``), and keeps the SLO as well as that does. Bisection asks it O(log budget) times for a prompt
    that is cut, and only one a step is; the rest costs O(residents), whatever waits.
    """

    Params = SloChunkParams
    params: SloChunkParams
    uses_predict = True
    steady = True
    scans_waiting = False
    needs = (
        Need("chunking", "admission", "a decode left out of a step misses its target", {"decodes_every_step": True}),
    )
    card: ClassVar[Card] = Card(
        source='Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024, '
        'section 4.3; Agrawal et al., "Medha", 2024, arXiv:2409.17264, adaptive chunking',
        rules={
            "decodes run in every step, prompts fill the rest": "residents",
            "the largest chunk whose step stays inside the TBT SLO": "chunking",
            "chunks are aligned to tiles of the kernels": "Params.tile",
            "the chunk is chosen for each batch (adaptive chunking)": "_fits",
        },
        deviations=(
            "the time comes from the backend's own estimate, not from a profile of token budgets",
            "the cap binds only while somebody decodes",
        ),
        evidence={
            "property tested": "p99 of the gaps stays under the target on a simulated H100 where vllm_v1's does not",
            "from the paper only": "gains on hardware; its rules: compared with section 4.3, and with Medha's abstract",
        },
    )

    def __init__(self, params: SloChunkParams | None = None, **values: object) -> None:
        super().__init__(params, **values)
        self._target: float | None = None  # seconds this step may take; None while nobody decodes
        self._full = False  # a prompt was cut to the target: nothing more of prompts in this step

    def in_order(self, step: Step) -> Iterable[Request]:
        """By arrival."""
        return step.waiting

    @hookimpl
    def step_started(self, step: Step) -> None:
        """Find the tightest SLO of those that decode."""
        default = self.params.tbt_s
        slos = [r.slo for r in step.decodes]
        targets = [default if slo is None or slo.tpot_s is None else slo.tpot_s for slo in slos]
        self._target = min(targets, default=None)
        self._full = False

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        """All that is pending, or as much as leaves the step inside its target."""
        most = min(request.num_pending, step.budget)
        if self._full:
            return 0
        if self._target is None or self._fits(step, request, most):
            return most
        self._full = True
        tile = self.params.tile
        low, high = 0, -(-most // tile)  # tiles that fit, tiles that do not
        while high - low > 1:
            middle = (low + high) // 2
            if self._fits(step, request, middle * tile):
                low = middle
            else:
                high = middle
        if low or step.predict_s() <= self._target or any(r.is_prefilling for r in step.batch):
            return low * tile
        return min(most, self.params.min_chunk)  # the decodes alone take longer than that

    def _fits(self, step: Step, request: Request, num_tokens: int) -> bool:
        assert self._target is not None
        return step.predict_s(request, num_tokens) <= self._target
