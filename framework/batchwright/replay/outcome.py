"""What one step did, taken from a scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """One executed step; requests by id.

    Attributes:
        position: place among the recorded steps, idle ones counted.
        index: the scheduler's number of the step; None for an idle one.
        now: start in nanoseconds.
        raised: the policy broke a rule, and the error came out of ``schedule()``.
        retried: the backend failed and the batch was evicted to be computed again; ``scheduled`` is not kept then.
        scheduled: (id, tokens, tokens computed before), in batch order.
        is_prefill: whether a row of the batch was no decode.
        preempted: in order of eviction.
        finished: in batch order.
        free_blocks, waiting, running: after the step.
        prefilling, decodes: the two parts of ``running``.
    """

    position: int
    index: int | None
    now: int
    raised: bool = False
    retried: bool = False
    scheduled: tuple[tuple[str, int, int], ...] = ()
    is_prefill: bool = False
    preempted: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    free_blocks: int = 0
    waiting: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    prefilling: tuple[str, ...] = ()
    decodes: tuple[str, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Nobody was there."""
        return self.index is None

    @classmethod
    def of(cls, scheduler: Any, step: Any, scheduled: tuple[tuple[str, int, int], ...], **known: Any) -> Outcome:
        """What a step did, once its results were taken; ``scheduled`` was noted before that."""
        running = list(scheduler.running)
        return cls(
            index=step.index,
            now=step.now,
            scheduled=scheduled,
            preempted=tuple(r.request_id for r in step.preempted),
            finished=tuple(r.request_id for r in step.finished),
            free_blocks=scheduler.blocks.num_free,
            waiting=tuple(r.request_id for r in scheduler.waiting),
            running=tuple(r.request_id for r in running),
            prefilling=tuple(r.request_id for r in running if r.is_prefilling),
            decodes=tuple(r.request_id for r in running if r.is_decode),
            **known,
        )
