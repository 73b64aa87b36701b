"""A policy that decides by chance, within the rules."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from batchwright import HOLD, Policy, Request, Step, hookimpl


class Anyhow(Policy):
    """Offers in any order, cuts anywhere, reserves anything and evicts anybody, but always lets somebody run."""

    budget_counts_decodes = False

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        everybody = [*step.running, *step.waiting]
        self._rng.shuffle(everybody)
        for request in everybody[: self._rng.randint(1, len(everybody))]:
            if not request.num_scheduled:
                yield request if self._rng.random() < 0.7 else [request]
        if not step.batch:
            yield step.running

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        fewest = self._rng.randint(0, 1) if step.batch else 1
        return self._rng.randint(fewest, min(request.num_pending, step.budget))

    @hookimpl
    def reservation(self, step: Step, request: Request) -> int:
        return self._rng.choice([0, request.num_tokens, request.num_prompt_tokens + request.max_tokens])

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Any:
        residents = [r for r in (*step.running, *step.batch) if r.is_resident]
        may_hold = step.batch or request.is_waiting
        return HOLD if not residents or (may_hold and self._rng.random() < 0.3) else self._rng.choice(residents)
