"""Shortest predicted remaining answer first, with evictions."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from pydantic import Field

from batchwright.card import Card
from batchwright.policy import Params
from batchwright.ranked import Ranked
from batchwright.request import Request


class SrptParams(Params):
    """Parameters of :class:`Srpt`."""

    ageing: float = Field(
        default=10.0,
        ge=0,
        description="Tokens that a request gains on later ones for each second that it came before them. 0: no ageing.",
    )
    preemptible_share: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="A request that has more than this share of its predicted answer is passed and evicted by no "
        "newcomer any more. 1: always; 0: never, as with sjf.",
    )


class Srpt(Ranked):
    """The shortest predicted rest of an answer first; newcomers pass and evict, but nobody who is nearly done.

    Source: Shahout et al., "Don't Stop Me Now: Embedding Based Scheduling for LLMs" (TRAIL), ICLR 2025: shortest
    predicted remaining processing time with limited preemption. The rest is ``predicted_output_tokens`` (or
    ``max_tokens`` where nobody predicts) less what was sampled, at least one token, since predictions are exceeded.

    Limited preemption: evicting costs a recompute of all that was computed, which grows with age, so a request that
    has ``preemptible_share`` of its answer stays. Ageing is linear, as in ``sjf``. A wrong prediction only misorders.
    A step costs O(log waiting) for each newcomer it looks at, and O(residents), or O(residents · log residents) when
    one passes a resident.
    """

    Params = SrptParams
    params: SrptParams
    preemptive = True
    card: ClassVar[Card] = Card(
        source='Shahout et al., "Don\'t Stop Me Now: Embedding Based Scheduling for LLMs" (TRAIL), ICLR 2025, '
        "arXiv:2410.01035; its code, harvard-cns/TRAIL-llm-scheduling, commit 3c4bcd6",
        rules={
            "the shortest predicted remaining length first": "rank",
            "preemptible only while its age is below C times its prediction": "Params.preemptible_share",
            "a shorter newcomer takes the place of the longest": "preemption",
        },
        deviations=(
            "the prediction is not refined while the request runs: it is the caller's",
            "linear ageing, which the paper does not have",
        ),
        evidence={
            "property tested": "mean latency below FIFO's; degrades smoothly with the noise of the predictions",
            "from the paper only": "gains with refined predictions; its rules and the default share, C = 0.8: compared "
            "with what its repository says of the paper; on SGLang its authors measured C = 0 to be best",
        },
    )

    def rank(self, request: Request) -> float:
        """Predicted rest, with ageing; below all others once it is nearly done."""
        guess = request.predicted_output_tokens
        length = request.max_tokens if guess is None else guess
        done = request.num_output_tokens
        if request.is_resident and done > self.params.preemptible_share * length:
            return -inf
        return max(1, length - done) + self.params.ageing * request.arrival_s

    def rank_holds(self, request: Request) -> float:
        """For ever: it only falls as it runs."""
        return inf
