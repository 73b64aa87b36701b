"""Rules that note who answered."""

from __future__ import annotations

from typing import Any

from batchwright.decisions import Decisions
from batchwright.request import Request
from batchwright.rules import Rules
from batchwright.step import Step
from batchwright.trace.layers import Layers
from batchwright.trace.reason import CORE


class WatchedRules(Rules):
    """Rules that note who answered.

    Attributes:
        is_asked: ``admission`` was asked.
        by: hook to who gave its last answer, and whose answer that replaced.
        num_tokens: the last answer of chunking in the present offer; None: it was not asked.
        num_hit: tokens of the prefix hit of that request.
        budget: what was left of it when the present offer was decided.
        room: tokens for which the request of the present offer is to have blocks, by its reservation.
    """

    def __init__(self, decisions: Decisions, layers: Layers, *, plain: bool) -> None:
        super().__init__(decisions)
        self._layers = None if plain else layers  # the fallback has nobody's wrappers
        self._neutral = _NotingNeutral(decisions.neutral, self)  # type: ignore[assignment]
        self.is_asked = False
        self.by: dict[str, tuple[str, str]] = {}
        self.num_tokens: int | None = None
        self.num_hit = self.budget = 0
        self.room = 0

    @property
    def is_layered(self) -> bool:
        """Whether wrappers stand around its admission."""
        return self.is_asked and self._layers is not None and self._layers.has("admission")

    @property
    def admission_by(self) -> tuple[str, str]:
        """Who gave the offers."""
        return self.by["admission"]

    def _decider(self, hook: str) -> tuple[str, str]:
        if self._layers is not None and self._layers.has(hook):
            return self._layers.decider(hook)
        return self.decisions.who(hook), ""

    def admission(self, step: Step) -> Any:
        """As the rules have it."""
        self.is_asked = True
        self.by.pop("admission", None)
        offers = super().admission(step)
        self.by.setdefault("admission", self._decider("admission"))
        return offers

    def _call(self, step: Step, hook: str, request: Request) -> Any:
        answer = super()._call(step, hook, request)
        self.by[hook] = (CORE, "") if answer is None else self._decider(hook)
        return answer

    def chunk(self, step: Step, request: Request) -> int:
        """As the rules have it."""
        self.num_hit = request.num_computed if request.is_waiting else 0
        self.budget = step.budget
        self.num_tokens = super().chunk(step, request)
        return self.num_tokens

    def reserve(self, step: Step, request: Request) -> int:
        """As the rules have it."""
        self.room = super().reserve(step, request)
        return self.room


class _NotingNeutral:
    """The core's answers, and a note that it was the core which gave them."""

    def __init__(self, neutral: Any, rules: WatchedRules) -> None:
        self._neutral = neutral
        self._rules = rules

    def admission(self, step: Step) -> Any:
        self._rules.by["admission"] = (CORE, "")
        return self._neutral.admission(step)

    def preemption(self, step: Step, request: Request) -> Any:
        return self._neutral.preemption(step, request)
