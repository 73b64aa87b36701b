"""The core's neutral answers, as a plugin: what wrappers wrap where no policy answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from batchwright.active_policy import is_stationary
from batchwright.hookspecs import Hold, hookimpl
from batchwright.policy import Policy
from batchwright.request import Request
from batchwright.step import Step


class Neutral:
    """Admission and preemption as in the default policy, the largest chunks, the present length reserved."""

    def __init__(self, default: Callable[[], Policy]) -> None:
        """Takes what makes the default policy; it is made when it is first asked."""
        self._make_default = default
        self._made: Any = None
        self.stationary = True  # as long as nobody asks the default policy

    @property
    def _default(self) -> Any:
        if self._made is None:
            self._made = self._make_default()
            self.stationary = is_stationary(self._made)
        return self._made

    def fresh(self) -> Policy:
        """Another default policy, without a history."""
        policy: Policy = type(self._default)()
        return policy

    @hookimpl
    def admission(self, step: Step) -> Iterable[Request | Sequence[Request]]:
        """As the default policy."""
        offers: Iterable[Request | Sequence[Request]] = self._default.admission(step)
        return offers

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        """All that is pending, up to the budget."""
        return min(request.num_tokens - request.num_computed, step.budget)

    @hookimpl
    def reservation(self, step: Step, request: Request) -> int:
        """The present length."""
        return request.num_tokens

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Request | Literal[Hold.HOLD]:
        """As the default policy."""
        victim: Request | Literal[Hold.HOLD] = self._default.preemption(step, request)
        return victim

    @hookimpl
    def arrival(self, request: Request) -> bool:
        """Everybody may come."""
        return True

    @hookimpl
    def predict_output(self, request: Request) -> None:
        """Nobody knows."""
        return
