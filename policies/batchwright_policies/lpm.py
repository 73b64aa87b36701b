"""Longest cached prefix first: SGLang's policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from pydantic import Field

from batchwright.card import Card
from batchwright.hookspecs import hookimpl
from batchwright.policy import Params
from batchwright.ranked import Ordered
from batchwright.request import Request
from batchwright.step import Step

_SAME_PREFIX = 32  # tokens; SGLang's IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD and ..._DEPRIORITIZE_THRESHOLD


class LpmParams(Params):
    """Parameters of :class:`Lpm`."""

    fifo_above: int = Field(
        default=128,
        ge=1,
        description="With more waiting requests than this, first come, first served: it bounds what a step looks at.",
    )
    max_passes: int | None = Field(
        default=None,
        ge=1,
        description="Ageing: whoever was passed by this many later requests goes first. None: no ageing, as in the "
        "source, where a stream of cached prompts starves an uncached one.",
    )


class Lpm(Ordered):
    """Waiting requests by the length of their cached prefix, the longest first (SGLang's policy).

    Source: sgl-project/sglang, commit 00550cd, ``python/sglang/srt/managers/schedule_policy.py``, ``lpm``. Whoever has
    the most tokens in the prefix cache goes first; equals by arrival. Of waiting requests that share their first 32
    tokens and have no more than that cached, only the first is offered early: when it is computed the others hit it.
    Long queues fall back to first come, first served.

    It saves the most prefill, and starves who shares nothing: set ``max_passes``, or use ``hrrn``. A step costs
    O(residents), and where there is room the look-up and sorting of at most ``fifo_above`` prefixes, whatever waits.
    """

    Params = LpmParams
    params: LpmParams
    scans_waiting = False  # but for a bounded number
    card: ClassVar[Card] = Card(
        source="sgl-project/sglang, commit 00550cd, python/sglang/srt/managers/schedule_policy.py, policy lpm",
        rules={
            "sort the waiting queue by the matched prefix, the longest first": "in_order",
            "with more than 128 waiting, first come, first served": "Params.fifo_above",
            "in-batch prefix caching: of equal uncached prefixes one goes now, the rest last": "_by_prefix",
            "stop at the first that does not fit": "admission",
        },
        deviations=(
            "decodes run in every step, as with --enable-mixed-chunk; there a step is of prompts or of decodes",
            "no share of max_tokens is reserved for running requests (new_token_ratio)",
            "equals go by arrival; there they stand as the step before left them",
            "a prefix is matched by whole blocks; the in-batch check looks at the prompt alone, not at what an evicted "
            "one had answered",
            "when a decode lacks a block the newest resident outside the batch is evicted, not the one with the "
            "fewest output tokens",
            "ageing (max_passes) is an addition, off by default",
        ),
        evidence={
            "property tested": "computes fewer prompt tokens than FIFO; ageing bounds passes, without it one starves",
            "from the paper only": "its order: compared with the source's text, no decisions of it were recorded",
        },
    )

    def __init__(self, params: LpmParams | None = None, **values: object) -> None:
        super().__init__(params, **values)
        self._passes: dict[Request, int] = {}  # of those that some later request passed

    def in_order(self, step: Step) -> Iterable[Request]:
        """By cached prefix, or by arrival in a long queue; whoever was passed too often first."""
        if len(step.waiting) > self.params.fifo_above:
            return step.waiting
        most = self.params.max_passes
        aged = [r for r, passes in self._passes.items() if most is not None and passes >= most and r in step.waiting]
        if not aged:
            return self._by_prefix(step, step.waiting)
        aged.sort(key=lambda r: r.arrival_index)
        return [*aged, *self._by_prefix(step, [r for r in step.waiting if r not in aged])]

    def _by_prefix(self, step: Step, waiting: Iterable[Request]) -> list[Request]:
        cached = {request: step.num_cached(request) for request in waiting}
        last: set[Request] = set()
        prefixes: set[tuple[int, ...]] = set()
        for request, length in cached.items():
            if length <= _SAME_PREFIX <= request.num_prompt_tokens:
                prefix = tuple(request.prompt_token_ids[:_SAME_PREFIX])
                if prefix in prefixes:
                    last.add(request)
                prefixes.add(prefix)
        return sorted(cached, key=lambda r: (r in last, -cached[r], r.arrival_index))

    @hookimpl
    def policy_attached(self, step: Step) -> None:
        """Nobody was passed yet."""
        self._passes.clear()

    @hookimpl
    def request_admitted(self, step: Step, request: Request) -> None:
        """It passed whoever came before it and still waits."""
        self._passes.pop(request, None)
        if self.params.max_passes is not None and len(step.waiting) <= self.params.fifo_above:
            for other in step.waiting:
                if other.arrival_index < request.arrival_index:
                    self._passes[other] = self._passes.get(other, 0) + 1

    @hookimpl
    def request_finished(self, request: Request) -> None:
        """Forget it."""
        self._passes.pop(request, None)
