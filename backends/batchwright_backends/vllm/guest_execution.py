"""Has vLLM's scheduler do what a policy planned, and says where it did something else."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from batchwright_backends.vllm.guest_queue import GuestQueue
from batchwright_backends.vllm.guest_shadow import Shadow
from batchwright_backends.vllm.plan import Plan

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput  # pyright: ignore[reportMissingImports]
    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]

_NAMED = 3
"""So many requests are named of those with which vLLM did something else."""


def carry_out(
    scheduler: Any, shadow: Shadow, queue: GuestQueue, plan: Plan, schedule: Callable[[], SchedulerOutput]
) -> SchedulerOutput:
    """Make vLLM do what is planned: evict whom it names, order queues, set the budget.

    Args:
        scheduler: vLLM's.
        shadow: who is where in it.
        queue: who waits, in the place of its own.
        plan: what it is to do.
        schedule: makes its step.
    """
    if plan.victims:
        if _is_native(scheduler, plan):
            return schedule()
        now = time.monotonic()
        for guest in plan.victims:
            if guest in shadow.residents:
                scheduler.running.remove(guest.theirs)
                scheduler._preempt_request(guest.theirs, now)
    before, budget = scheduler.running, scheduler.max_num_scheduled_tokens
    strange = [r for r in before if r.request_id in shadow.strange] if shadow.strange else []
    shown = before
    if strange or not plan.rides_whole:
        shown = [*strange, *(guest.theirs for guest in plan.residents())]
    if not strange and plan.cuts:  # else nobody could take more than he has pending
        scheduler.max_num_scheduled_tokens = min(budget, plan.num_tokens)
    in_order = shown is before or (len(shown) == len(before) and shown == before)
    if not in_order:
        scheduler.running = shown
    queue.open([*(r for r in shadow.strange.values() if r in queue), *(g.theirs for g in plan.newcomers())])
    try:
        return schedule()
    finally:
        queue.close()
        scheduler.max_num_scheduled_tokens = budget
        if not in_order:
            _put_back(scheduler, before, shown)


def _is_native(scheduler: Any, plan: Plan) -> bool:
    """Whether vLLM evicts these by itself, and does the rest: the last of the residents, and lets nobody in."""
    running = [guest.theirs for guest in plan.residents()]
    running += [guest.theirs for guest in reversed(plan.victims)]
    return not plan.cuts and running == scheduler.running and next(plan.newcomers(), None) is None


def _put_back(scheduler: Any, before: list[VllmRequest], shown: list[VllmRequest]) -> None:
    """Everybody runs again, in order of admission: those who were left out of this step among them."""
    after = dict.fromkeys(scheduler.running)
    gone = {request for request in shown if request not in after}
    kept = [request for request in before if request not in gone]
    known = set(kept)
    scheduler.running = [*kept, *(request for request in after if request not in known)]


def otherwise(plan: Plan, shadow: Shadow, output: SchedulerOutput) -> str | None:
    """Where vLLM did something else than was planned, for reasons of its own; None: nowhere.

    Args:
        plan: what it was to do.
        shadow: who is where, before this step's admissions are noted.
        output: what it did.
    """
    counts: dict[str, int] = output.num_scheduled_tokens
    if (
        len(counts) == len(plan.riders) + len(plan.counts)
        and output.total_num_scheduled_tokens == plan.num_tokens
        and all(counts.get(guest.request_id) == num for guest, num in plan.counts.items())
    ):
        return None
    planned = {guest.request_id: num for guest, num in plan.counts.items()}
    planned |= dict.fromkeys([guest.request_id for guest in plan.riders], 1)
    found = []
    for name in {**planned, **counts}:
        guest, done, wanted = shadow.guests.get(name), counts.get(name, 0), planned.get(name, 0)
        if guest is not None and done != wanted and (done or not guest.is_held):
            found.append(f"{name} runs {done} tokens, not {wanted}")
    return "; ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "") or None
