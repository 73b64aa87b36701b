"""When a policy that is a guest need not be asked: what it would decide follows from what it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from batchwright_backends.vllm.guest_observers import Observers
from batchwright_backends.vllm.guest_pool import GuestPool
from batchwright_backends.vllm.guest_shadow import Shadow

if TYPE_CHECKING:
    from batchwright.decisions import Decisions
    from batchwright.limits import Limits

_NEVER = 1 << 62


class Unasked:
    """Whether all decodes go on and nobody comes in, and vLLM evicts nobody: then there is nothing to ask.

    A policy that is steady lets them while nobody waits or, where it evicts nobody for a newcomer, while all seats are
    taken; one that is stationary while nobody waits, or nothing has changed since a step in which they did.

    Args:
        decisions: hooks of the policy.
        observers: who is told of steps.
        limits: of vLLM.
        shadow: who is where.
        pool: its blocks.

    Attributes:
        still: the last step for which the policy was asked ran all residents, decodes all; nobody came or went since.
        failed: what was asked last was not carried out.
        tells: somebody is to be told of steps for which the policy is not asked.
    """

    def __init__(
        self, decisions: Decisions, observers: Observers, limits: Limits, shadow: Shadow, pool: GuestPool
    ) -> None:
        self.still = self.failed = self.tells = False
        self._decisions = decisions
        self._observers = observers
        self._shadow = shadow
        self._pool = pool
        self._most = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        self._max_num_residents = limits.max_num_residents
        self._bind()

    def _bind(self) -> None:
        """Look at policy and observers again; one was registered."""
        decisions = self._decisions
        policy, alone = decisions.policy, decisions.policy_alone
        self._bound = decisions.step_started, decisions.step_finished
        self._repeats = policy.stationary and alone
        self._goes_on = (policy.stationary or policy.steady) and alone
        closes = policy.steady and alone and not policy.preemptive and self._max_num_residents is not None
        self._seats = self._max_num_residents if closes and self._max_num_residents is not None else _NEVER
        self.tells = self._observers.want_steps(all_of_them=not policy.stationary)

    def holds(self, scheduler: Any) -> bool:
        """Whether the next step of vLLM's scheduler needs no asking."""
        num, shadow, pool, decisions = len(scheduler.running), self._shadow, self._pool, self._decisions
        if decisions.step_started is not self._bound[0] or decisions.step_finished is not self._bound[1]:
            self._bind()
        if (
            not self._goes_on
            or self.failed
            or not 0 < num <= self._most
            or shadow.prefilling
            or shadow.strange
            or scheduler.deferred_waiting
            or num * pool.num_groups > pool.num_free()
            or not decisions.neutral.stationary
        ):
            return False
        if num >= self._seats or not shadow.waiting:
            return True
        return self._repeats and self.still and not pool.may_find_more(shadow.residents)
