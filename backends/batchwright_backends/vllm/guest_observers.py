"""What is told to those who observe a guest's scheduler, and what they are told of a step."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from batchwright_backends.vllm.guest_shadow import Shadow
from batchwright_backends.vllm.guest_step import GuestStep

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput  # pyright: ignore[reportMissingImports]

    from batchwright.decisions import Decisions

logger = logging.getLogger("vllm.batchwright")

WARNED = 5
"""So many faults of a kind are logged one by one."""


class Observers:
    """Tells observers.

    Args:
        decisions: whose observer hooks are told.
        watch: runs while one of them does.

    Attributes:
        num_faults: of observers; each is ignored.
    """

    def __init__(self, decisions: Decisions, watch: AbstractContextManager[None]) -> None:
        self._decisions = decisions
        self._watch = watch
        self.num_faults = 0

    @property
    def keep_steps(self) -> bool:
        """Somebody wants to be told of the end of each step."""
        return bool(self._decisions.step_finished)

    def want_steps(self, *, all_of_them: bool) -> bool:
        """Whether somebody is to be told of a step for which the policy is not asked.

        Args:
            all_of_them: the policy's own ``step_started`` counts; that of a stationary one prepares a decision that it
                need not make.
        """
        decisions = self._decisions
        return self.keep_steps or any(all_of_them or n not in decisions.policy.parts for _, n in decisions.step_started)

    def tell(self, hook: str, *about: Any) -> None:
        """Tell all who have this hook."""
        for call, name in getattr(self._decisions, hook):
            try:
                with self._watch:
                    call(*about)
            except Exception:
                self.num_faults += 1
                if self.num_faults <= WARNED:
                    logger.warning("%s of %s failed, and is ignored", hook, name, exc_info=True)

    def keep(self, step: GuestStep, shadow: Shadow, output: SchedulerOutput) -> None:
        """Remember what a step runs, until it is over.

        Args:
            step: the step.
            shadow: who is where, after it was scheduled.
            output: what vLLM scheduled.
        """
        if not self.keep_steps:
            return
        guests, counts = shadow.guests, output.num_scheduled_tokens
        num = len(counts)
        if num == len(shadow.residents) == output.total_num_scheduled_tokens and not shadow.prefilling:
            shadow.riding.guests = shadow.residents
            step.batch = step.sampled = shadow.residents.whole
            step.num_decodes, step.num_prefill_tokens = num, 0
            return
        batch = step.batch = [guests[name] for name in counts if name in guests]
        for guest in batch:
            guest.num_scheduled = counts[guest.request_id]
        step.sampled = [guest for guest in batch if not guest.theirs.is_prefill_chunk]
        step.num_decodes = sum(guest.num_scheduled == 1 for guest in step.sampled)
        step.num_prefill_tokens = output.total_num_scheduled_tokens - step.num_decodes

    def finish(self, step: GuestStep, shadow: Shadow, now: int) -> None:
        """The step is over: with asynchronous scheduling it may still be executed, and each counts its token."""
        left = shadow.left
        if left:
            shadow.left = set()
        if not self.keep_steps:
            return
        step.end = now
        step.finished = [guest for guest in step.batch if guest in left] if left else ()
        self.tell("step_finished", step, None)
        if shadow.riding.guests:
            shadow.riding.guests = ()
        else:
            for guest in step.batch:
                guest.num_scheduled = 0
