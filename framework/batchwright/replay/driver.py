"""Driving a scheduler through a case, step by step, without a backend."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from batchwright.batch import Batch
from batchwright.errors import PolicyError, RefusedRequestError
from batchwright.replay.case import Case, Event
from batchwright.replay.outcome import Outcome
from batchwright.request import Request


class Drivable(Protocol):
    """What the fast scheduler and the reference have in common."""

    waiting: Any
    running: Any
    blocks: Any
    step: Any

    def has_unfinished(self) -> bool:
        """Whether anybody is here."""
        ...

    def add(self, request: Request, *, num_output_tokens: int | None = None, stop_check: Any = None) -> None:
        """Take a request."""
        ...

    def abort(self, request_id: str, *, error: str | None = None) -> Any:
        """End a request."""
        ...

    def swap_policy(self, policy: Any) -> None:
        """Another policy decides."""
        ...

    def schedule(self, now: int = 0) -> Batch:
        """Build a batch."""
        ...

    def update(self, batch: Batch, token_ids: Any, now: int = 0, failed: Any = None) -> Any:
        """Take its results."""
        ...

    def fail(self, batch: Batch, error: str, *, retry: bool, now: int = 0) -> Any:
        """Or its failure."""
        ...


def predictor(case: Case) -> Callable[[Batch], float | None] | None:
    """What answers ``step.predict_s`` in a replay: the recorded answers, in order."""
    if case.predictions is None:
        return None
    answers = deque(case.predictions)
    return lambda _batch: answers.popleft() if answers else 0.0


def drive(case: Case, scheduler: Drivable, policy_of: Callable[[Any], Any]) -> Iterator[Outcome]:
    """Run the case's steps.

    Args:
        case: what happens, and what is sampled.
        scheduler: a fresh one.
        policy_of: makes the policy that a swap names.

    Raises:
        BatchwrightError: an event is impossible in this run (it adds a request that is refused, say).
    """
    events = deque(case.events)

    def happen(position: int, during: bool) -> dict[str, Any]:
        outcome: dict[str, Any] = {}
        while events and (events[0].step, events[0].during) <= (position, during):
            event = events.popleft()
            if event.kind in ("failed", "fail", "retry"):
                outcome[event.kind] = event.value
            else:
                _apply(case, scheduler, event, policy_of)
        return outcome

    for position in range(len(case.steps)):
        now, end = case.clock[position] if case.clock else (position, position + 1)
        happen(position, during=False)
        if not scheduler.has_unfinished():
            yield Outcome(position, None, now)
            continue
        try:
            batch = scheduler.schedule(now)
        except PolicyError:
            step = scheduler.step
            victims = tuple(r.request_id for r in step.preempted)
            yield Outcome(position, step.index, now, raised=True, preempted=victims)
            happen(position, during=True)
            continue
        step = scheduler.step
        rows = [(r.request_id, r.num_scheduled, r.num_computed) for r in step.batch]
        is_prefill = any(r.is_prefilling for r in step.batch)
        samples = batch.samples.tolist()
        sampling = [r for r, s in zip(step.batch, samples, strict=True) if s]
        tokens = [case.requests[r.request_id].token(r.num_output_tokens) for r in sampling]
        wrong = happen(position, during=True)
        if "fail" in wrong or "retry" in wrong:
            scheduler.fail(batch, "recorded failure", retry="retry" in wrong, now=end)
        else:
            scheduler.update(batch, tokens, end, wrong.get("failed"))
        retried = "retry" in wrong
        yield Outcome.of(scheduler, step, tuple(rows), position=position, is_prefill=is_prefill, retried=retried)


def _apply(case: Case, scheduler: Drivable, event: Event, policy_of: Callable[[Any], Any]) -> None:
    if event.kind in ("abort", "error"):
        scheduler.abort(event.value, error="a recorded error" if event.kind == "error" else None)
    elif event.kind == "swap":
        scheduler.swap_policy(policy_of(event.value))
    else:
        told = case.requests[event.value]
        request = told.make()
        try:
            scheduler.add(request, num_output_tokens=told.num_output_tokens, stop_check=told.stop_check(request))
        except (RefusedRequestError, PolicyError):
            if event.kind != "refuse":
                raise
