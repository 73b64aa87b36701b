"""What happened while one step was built, and what follows from it for each request."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from batchwright.request import Request
from batchwright.step import Step
from batchwright.trace.reason import Reason


class Account:
    """What happened while one step was built.

    Attributes:
        step: the step.
        policy: name of the policy in force.
        how: ``policy``: it was asked; ``repeat``: it is stationary, and what it decided last was repeated;
            ``fallback``: it broke a rule, and the default policy built the step.
        error: the rule that was broken.
        batch: who is in the batch, in order.
    """

    def __init__(self, step: Step, policy: str) -> None:
        self.step = step
        self.policy = policy
        self.how: Literal["policy", "repeat", "fallback"] = "repeat"
        self.error = ""
        self.batch: tuple[Request, ...] = ()
        self._reasons: dict[Request, Reason] = {}  # of those that were offered room one by one, or evicted
        self._beyond: frozenset[Request] = frozenset()  # in a sequence, behind the one that filled the batch
        self._withheld: dict[Request, tuple[str, str]] = {}
        self._decode = Reason("decode")
        self._not_offered = Reason("not_offered")
        self._undone: Reason | None = None

    @property
    def is_undone(self) -> bool:
        """The policy broke a rule, and nobody built the step in its place."""
        return self._undone is not None

    def reason(self, request: Request) -> Reason:
        """What became of a request that was waiting or resident when the step began."""
        found = self._reasons.get(request)
        if found is not None:
            return found
        if self._undone is not None:
            return self._undone
        if request in self._in_batch:
            return self._decode
        if request in self._beyond:
            return Reason("batch_full", num_needed=self.step.limits.max_num_seqs)
        if request in self._withheld:
            by, over = self._withheld[request]
            return Reason("withheld", "admission", by, over)
        return self._not_offered

    @cached_property
    def _in_batch(self) -> frozenset[Request]:
        return frozenset(self.batch)

    @property
    def decodes(self) -> tuple[Request, ...]:
        """The decodes of the batch."""
        reasons = self._reasons
        return tuple(r for r in self.batch if r not in reasons) if reasons else self.batch

    @property
    def singled_out(self) -> dict[Request, Reason]:
        """Reasons of all but decodes that ran and requests that were not offered room: these share one each."""
        if not self._beyond and not self._withheld:
            return self._reasons
        others = [r for r in (*self._beyond, *self._withheld) if r not in self._reasons and r not in self._in_batch]
        return {**self._reasons, **{request: self.reason(request) for request in others}}

    @property
    def of_decodes(self) -> Reason:
        """Of the decodes of the batch."""
        return self._decode

    @property
    def of_the_rest(self) -> Reason:
        """Of everybody else."""
        return self._undone if self._undone is not None else self._not_offered
