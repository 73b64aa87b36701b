"""Shortest predicted job first."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from batchwright.card import Card
from batchwright.policy import Params
from batchwright.ranked import Ranked
from batchwright.request import Request


class SjfParams(Params):
    """Parameters of :class:`Sjf`."""

    ageing: float = Field(
        default=10.0,
        ge=0,
        description="Tokens that a request gains on later ones for each second that it came before them. A request is "
        "passed only by those that arrive within (its length - theirs) / ageing seconds after it. 0: no ageing.",
    )


class Sjf(Ranked):
    """The shortest predicted answer first, with ageing; nobody is evicted for it.

    Source: Fu et al., "Efficient LLM Scheduling by Learning to Rank", NeurIPS 2024, and Qiu et al., "Efficient
    Interactive LLM Serving with Proxy Model-based Sequence Length Prediction", 2024 (shortest job first on predicted
    lengths). Waiting requests go by ``predicted_output_tokens``, or ``max_tokens`` where nobody predicts.

    Ageing is linear in time, so it amounts to adding ``ageing`` times the arrival to the length once: the order of
    those who wait never changes by itself. It needs predictions; where they are all the same it is first come, first
    served. A step costs O(log waiting) for each newcomer it looks at, and O(residents).
    """

    Params = SjfParams
    params: SjfParams
    stationary = True
    card: ClassVar[Card] = Card(
        source='Fu et al., "Efficient LLM Scheduling by Learning to Rank", NeurIPS 2024, arXiv:2408.15792; Qiu et al., '
        '"Efficient Interactive LLM Serving with Proxy Model-based Sequence Length Prediction", 2024, arXiv:2404.08509',
        rules={
            "the waiting queue is ordered by predicted output length": "rank",
            "running requests are not interrupted": "preemptive",
            "a request that waited long is moved forward": "Params.ageing",
        },
        deviations=(
            "a length instead of a learned rank; a rank may be given as the predicted length",
            "linear ageing; with Fu et al. whoever did not run for so many steps goes first for so many steps",
            "running requests are not interrupted, as with Qiu et al.; Fu et al. sort them among the waiting ones",
        ),
        evidence={
            "property tested": "mean latency below FIFO's; the bound of ageing on who passes",
            "from the paper only": "gains with a learned predictor; its rules: compared with the code of Fu et al. "
            "(hao-ai-lab/vllm-ltr, commit 8886f1e, vllm/core/scheduler.py), no decisions of it were recorded",
        },
    )

    def rank(self, request: Request) -> float:
        """Predicted length, with ageing."""
        guess = request.predicted_output_tokens
        length = request.max_tokens if guess is None else guess
        return length + self.params.ageing * request.arrival_s
