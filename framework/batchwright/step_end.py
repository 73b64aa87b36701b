"""The end of a step: who ended with it, what is told of it, and what its failure undoes."""

from __future__ import annotations

from batchwright.backend import StepResult
from batchwright.batch_builder import BatchBuilder
from batchwright.request import RESIDENT
from batchwright.results import Over
from batchwright.roster import NOBODY
from batchwright.rules import Rules
from batchwright.state import State
from batchwright.step import Step


class StepEnd:
    """Ends the steps of one scheduler."""

    def __init__(self, state: State) -> None:
        self._state = state

    def advance(self, step: Step, over: Over) -> None:
        """The step is over, and these requests end with it.

        Args:
            step: its results are taken.
            over: who ends and why, in batch order.
        """
        state = self._state
        state.still = (
            state.repeats
            and step._num_riding == len(step.batch) == len(state.residents) > 0
            and not state.prefilling
            and step._by_policy
            and not step.preempted
            and state.hooks.neutral.stationary
        )
        if over:
            step.finished = [r for r, _ in over]
            for request, reason in over:
                state.end(request, reason)

    def tell(self, step: Step, over: Over, result: StepResult) -> None:
        """Tell observers of a step that is done; all who ended have ended, so they may abort others, or add."""
        state = self._state
        hooks = state.hooks
        try:
            if hooks.request_finished:
                for request, reason in over:
                    state.tell(hooks.request_finished, request, reason)
            if state.events:
                state.gather_events(step)
            for call, name in hooks.step_finished:
                try:
                    call(step, result)
                except Exception as error:
                    state.observer_failed(call, name, error)
        finally:
            state.roster.advancing_to = NOBODY
            riding = step._num_riding if not step._aborted else 0
            for request in step.finished:
                request._scheduled = 0
            if riding != len(step.batch):
                for request in step.batch[riding:]:
                    request._scheduled = 0

    def fail(self, step: Step, rules: Rules, error: str, builder: BatchBuilder, *, retry: bool, now: int) -> None:
        """The backend failed with the step's batch: see ``Scheduler.fail``.

        The builder that evicts who is retried is given each time: a scheduler that is traced has another.
        """
        state = self._state
        step.end = now
        state.still = False
        if state.awaited is not None:
            state.awaited.put_off.clear()
        if step._num_riding:
            state.disband(step)
        for fresh in step._fresh.values():  # registered, and now never computed
            for block in fresh:
                state.blocks.unregister(block)
        step._fresh.clear()
        there = [r for r in step.batch if r._state == RESIDENT]
        if retry:
            state.building = True  # observers of an eviction may change nothing, as in any step
            try:
                builder.requeue(step, rules, there)
            finally:
                state.building = False
        else:
            step.finished = there
            for request in there:
                request.error = error
                state.end(request, "error")
        step.events.append({"step": step.index, "kind": "backend_fault", "error": error, "retried": retry})
        self.tell(step, [(r, "error") for r in step.finished], StepResult((), now - step.now))
