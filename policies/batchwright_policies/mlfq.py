"""Skip-join multi-level feedback queues: FastServe's policy."""

from __future__ import annotations

from typing import ClassVar

from batchwright.card import Card
from batchwright.request import Request
from batchwright_policies.levels import Levels


class Mlfq(Levels):
    """Whoever has had the least service first, in levels; long prompts join below the top (FastServe's policy).

    Source: Wu et al., "Fast Distributed Inference Serving for Large Language Models", 2023 (FastServe, NSDI 2026): the
    skip-join multi-level feedback queue. A request joins the first level whose quantum covers its prompt; when it
    has used a level's quantum it goes down. A lower level passes a higher one at any step; within a level the order is
    that of arrival. Whoever starves is put on top.

    It needs no predictions: short answers are through before their level ends. Where memory is short, whoever is passed
    loses its blocks and is recomputed, which costs most just when it pays least: with answers of equal length. A step
    costs O(log waiting) for each newcomer it looks at, and O(residents), or O(residents · log residents) when one
    passes a resident.
    """

    card: ClassVar[Card] = Card(
        source='Wu et al., "Fast Distributed Inference Serving for Large Language Models", 2023, arXiv:2305.05920 '
        "(FastServe, NSDI 2026), skip-join multi-level feedback queue; its code, LLMServe/FastServe, commit "
        "6da4b75, fastserve/scheduler.py, class MLFQ",
        rules={
            "a job skips the levels whose quantum its first iteration exceeds": "level_of_first",
            "quanta grow by a constant ratio": "Params.ratio",
            "a job that used up its quantum is demoted": "level_after",
            "the highest non-empty queue first, first come, first served within": "rank",
            "preemption at each iteration": "preemptive",
            "a job that starves is promoted to the first queue": "step_started",
        },
        deviations=(
            "who loses its blocks is recomputed, less its cached prefix; FastServe swaps K and V to host memory",
            "a job that is passed while blocks suffice keeps them and pauses",
            "service is counted in iterations, and prompts at a fixed exchange, instead of measured in time",
            "what a job had beyond its quantum counts in the next level; there it counts from 0 in each",
            "within a level the order is that of arrival; there whoever just ran stands at the head of its queue, and "
            "who is demoted at the head of the next",
            "who waits starve_s is promoted at once, and its service begins anew; there those that did not run for "
            "3 s are, every 1,000 iterations, and they go down again as soon as they ran",
            "there levels have no last one",
        ),
        evidence={
            "property tested": "mean latency below FIFO's under heavy tails, not with equal lengths; starvation ends",
            "from the paper only": "its rules: compared with its code, no decisions of it were recorded; proactive "
            "swapping: left out",
        },
    )

    def rank(self, request: Request) -> int:
        """Its level."""
        return self.level_after(*self._progress(request))

    def rank_holds(self, request: Request) -> float:
        """As long as it stays in its level."""
        return self.tokens_left(*self._progress(request))

    def _progress(self, request: Request) -> tuple[float, int]:
        """Service in iterations since it joined, and the level that it joined."""
        since = self.since_promotion(request)
        if since is not None:
            return since, 0
        prompt = self.prompt_service(request)
        # With its first token it has had its prompt's, so before that one less.
        return prompt + request.num_output_tokens - 1, self.level_of_first(prompt)
