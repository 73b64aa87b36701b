"""Traced steps of a scheduler or an engine."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

from batchwright.request import Request
from batchwright.scheduler import Scheduler
from batchwright.trace.account import Account
from batchwright.trace.traced_step import TracedRequest, TracedStep
from batchwright.trace.witness import Witness

if TYPE_CHECKING:
    from batchwright.engine import Engine

_Seen = tuple[Request, dict[str, Any]]


class Tracer:
    """Collects the steps of a scheduler that somebody else drives; a context manager.

        with Tracer(scheduler) as tracer:
            batch = scheduler.schedule(now)
            scheduler.update(batch, tokens, end)
            step = tracer.take()[0]

    A traced step costs what it holds: every request that is there, and every block table. Decisions are the same
    with and without it.

    Attributes:
        is_on: set it to False to let steps go by.

    Raises:
        BatchwrightError: a step is under way.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.is_on = True
        self._scheduler = scheduler
        self._built: dict[Account, tuple[list[_Seen], dict[str, Any]]] = {}
        self._num_arrivals = 0
        Witness.listen(scheduler, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Trace no more; the scheduler is as it was."""
        Witness.leave(self._scheduler, self)

    def take(self) -> list[TracedStep]:
        """The steps that were executed, or given up, since the last call."""
        done = [account for account in self._built if account.step.end is not None or account.is_undone]
        return [_traced(account, *self._built.pop(account)) for account in done]

    def built(self, account: Account) -> None:
        """Look at everybody now: what the step was built from is about to change."""
        before = self._built.pop(account, None)
        if not self.is_on:
            return
        state, step = self._scheduler._state, account.step
        seen = [(r, _look(r, "waiting")) for r in state.queue]
        seen += [(r, _look(r, "prefilling" if r in state.prefilling else "decode")) for r in state.residents]
        blocks = state.blocks
        arrivals, self._num_arrivals = self._num_arrivals, self._scheduler.num_arrivals
        arrived = tuple(r.request_id for r, _ in seen if r.arrival_index >= arrivals)
        self._built[account] = (
            seen,
            {
                "budget": step.budget,
                "free_blocks": blocks.num_free,
                "cached": bytes(blocks.index.registered),
                "waiting": tuple(r.request_id for r in state.queue),
                "running": tuple(r.request_id for r in state.residents),
                "arrived": arrived if before is None else before[1]["arrived"],
                "num_blocks": blocks.num_blocks,
                "block_size": blocks.block_size,
                "max_num_batched_tokens": step.limits.max_num_batched_tokens,
                "max_num_seqs": step.limits.max_num_seqs,
            },
        )


def trace(engine: Engine) -> Generator[TracedStep, None, None]:
    """Step an engine while anybody is there, and give each step as it was; see ``Engine.trace``."""
    with Tracer(engine.scheduler) as tracer:
        while engine.has_unfinished():
            outputs = (*engine.step(), *engine.collect())  # one at a time, where steps could overlap
            steps = tracer.take()
            yield from steps[:-1]
            if steps:
                yield replace(steps[-1], outputs=outputs)


def _look(request: Request, state: Literal["waiting", "prefilling", "decode"]) -> dict[str, Any]:
    return {
        "request_id": request.request_id,
        "state": state,
        "num_prompt_tokens": request.num_prompt_tokens,
        "num_tokens": request.num_tokens,
        "num_computed": request.num_computed,
        "num_scheduled": request.num_scheduled,
        "num_cached": request.num_cached if request.is_resident else 0,
        "block_table": tuple(request.block_table),
        "num_preemptions": request.num_preemptions,
        "max_tokens": request.max_tokens,
        "arrival_index": request.arrival_index,
        "arrival_ns": request.arrival_ns,
        "priority": request.priority,
        "client_id": request.client_id,
    }


def _traced(account: Account, seen: list[_Seen], known: dict[str, Any]) -> TracedStep:
    step = account.step
    finished = {r.request_id: str(r.finish_reason) for r in step.finished}
    ended = set(step.finished)
    return TracedStep(
        index=step.index,
        now=step.now,
        end=step.end,
        policy=account.policy,
        how=account.how,
        error=account.error,
        is_undone=account.is_undone,
        batch=tuple(r.request_id for r in account.batch),
        preempted=tuple(r.request_id for r in step.preempted),
        finished=finished,
        requests=tuple(
            TracedRequest(
                reason=account.reason(request),
                finish_reason=request.finish_reason if request in ended else None,
                **fields,
            )
            for request, fields in seen
        ),
        **known,
    )
