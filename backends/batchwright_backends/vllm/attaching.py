"""Lets a ledger see what a scheduler of vLLM's is asked and what it answers; the scheduler knows nothing of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from batchwright_backends.vllm.ledger import Ledger
from batchwright_backends.vllm.stop_text import stopped_of


def attach(scheduler: Any, ledger: Ledger, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
    """Tell a ledger of all that happens in a scheduler from now on.

    The methods that vLLM's engine calls are wrapped on this one object. What they give is what they always gave.

    Args:
        scheduler: behind vLLM's ``SchedulerInterface``; nobody is in it yet.
        ledger: is told. Where it ``forgives``, a fault of it closes it, and the scheduler goes on.
        clock_ns: of its times.
    """
    add, schedule, update = scheduler.add_request, scheduler.schedule, scheduler.update_from_output
    finish, shutdown = scheduler.finish_requests, scheduler.shutdown

    def tell(what: Callable[..., None], *args: Any) -> None:
        if not ledger.is_closed:
            safely(what, *args)

    def safely(what: Callable[..., None], *args: Any) -> None:
        try:
            what(*args)
        except Exception as error:
            if not ledger.forgives:
                raise
            ledger.is_closed = True
            ledger.failed(error)

    def add_request(request: Any) -> None:
        tell(ledger.arriving, request, clock_ns())
        try:
            add(request)
        except BaseException:
            tell(ledger.not_taken, request)
            raise
        tell(ledger.arrived, request)

    def schedule_and_tell(*args: Any, **kwargs: Any) -> Any:
        start = clock_ns()
        told = schedule(*args, **kwargs)
        tell(ledger.scheduled, told, start)
        return told

    def update_and_tell(told: Any, output: Any) -> Any:
        end = clock_ns()
        outputs = update(told, output)
        tell(ledger.updated, told, outputs.values(), end, scheduler)
        return outputs

    def finish_and_tell(request_ids: Any, status: Any) -> Any:
        names = (request_ids,) if isinstance(request_ids, str) else request_ids
        names = names if names is None else list(names)  # read twice
        reason = "error" if status.name == "FINISHED_ERROR" else "abort"
        stopped = stopped_of(scheduler, names) if names and reason == "abort" and not ledger.is_closed else ()
        ended = finish(names, status)
        tell(ledger.stopped, stopped, "stop", clock_ns())
        tell(ledger.stopped, names, reason, clock_ns())
        return ended

    def shutdown_and_tell() -> None:
        try:
            shutdown()
        finally:
            safely(ledger.finish)  # after a fault too: files are closed

    scheduler.add_request = add_request
    scheduler.schedule = schedule_and_tell
    scheduler.update_from_output = update_and_tell
    scheduler.finish_requests = finish_and_tell
    scheduler.shutdown = shutdown_and_tell
