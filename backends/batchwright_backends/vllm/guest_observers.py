"""What is told to those who observe a guest's scheduler, and what they are told of a step."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from batchwright_backends.vllm.guest_shadow import Shadow
from batchwright_backends.vllm.guest_step import GuestStep

if TYPE_CHECKING:
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

    @property
    def want_every_step(self) -> bool:
        """Somebody is to be told of each step, also of those in which a stationary policy need not be asked."""
        decisions = self._decisions
        others = [name for _, name in decisions.step_started if name not in decisions.policy.parts]
        return self.keep_steps or bool(others)

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

    def keep(self, step: GuestStep, shadow: Shadow, counts: Mapping[str, int]) -> None:
        """Remember what a step runs, until it is over.

        Args:
            step: the step.
            shadow: who is where, after it was scheduled.
            counts: tokens of each request.
        """
        if not self.keep_steps:
            return
        guests = shadow.guests
        if len(counts) == len(shadow.residents) and not shadow.prefilling and sum(counts.values()) == len(counts):
            batch = step.batch = list(shadow.residents)
            shadow.riding.guests = dict.fromkeys(batch)
            step.sampled, step.num_decodes, step.num_prefill_tokens = batch, len(batch), 0
            return
        batch = step.batch = [guests[name] for name in counts if name in guests]
        for guest in batch:
            guest.num_scheduled = counts[guest.request_id]
        step.sampled = [guest for guest in batch if not guest.theirs.is_prefill_chunk]
        step.num_decodes = sum(guest.num_scheduled == 1 for guest in step.sampled)
        step.num_prefill_tokens = sum(counts.values()) - step.num_decodes

    def finish(self, step: GuestStep, shadow: Shadow, now: int) -> None:
        """The step is over: with asynchronous scheduling it may still be executed, and each counts its token."""
        left, shadow.left = shadow.left, set()
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
