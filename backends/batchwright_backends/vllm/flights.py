"""Steps that vLLM's workers were given and whose outputs have not come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchwright.backend import StepResult
from batchwright.errors import BatchwrightError
from batchwright.results import rows_that_sample

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput  # pyright: ignore[reportMissingImports]
    from vllm.v1.outputs import ModelRunnerOutput  # pyright: ignore[reportMissingImports]

    from batchwright.batch import Batch
    from batchwright.request import Request
    from batchwright.scheduler import Scheduler
    from batchwright.step import Step
    from batchwright_backends.vllm.answers import Answers
    from batchwright_backends.vllm.grammars import Grammars
    from batchwright_backends.vllm.seats import Seats


class Flight:
    """One of them.

    Attributes:
        told: what workers were told.
        batch: what it runs.
        step: of the scheduler; None: nothing runs.
        rows: the requests of the batch that sample, in its order, as it was given to the workers.
        constrained: those of them whose output a grammar constrains.
    """

    __slots__ = ("batch", "constrained", "rows", "step", "told")

    def __init__(self, told: SchedulerOutput, batch: Batch | None, step: Step | None) -> None:
        self.told = told
        self.batch = batch
        self.step = step
        rows: Sequence[Request] = step.batch if step is not None else ()
        if batch is not None and batch.num_riding != len(rows):
            rows = [r for r, samples in zip(rows, batch.samples.tolist(), strict=True) if samples]
        self.rows = rows
        self.constrained: Sequence[Request] = ()


class Flights:
    """All of them, in the order in which they were scheduled: one, or, asynchronously, two.

    The scheduler takes the first for executed when the second is scheduled, and settles it when its output is there. By
    then the second is with the workers: they also execute its rows of requests that stopped with the first, or were
    aborted, and what these rows sample is thrown away. Their blocks may be given away at once, since whoever gets
    them runs in a later step, and workers execute steps one after another.

    Args:
        core: our scheduler.
        seats: of its requests.
        grammars: of those that have one.
        is_async: whether a step may be scheduled while the one before it is under way.
    """

    def __init__(self, core: Scheduler, seats: Seats, grammars: Grammars, *, is_async: bool) -> None:
        self._core = core
        self._seats = seats
        self._grammars = grammars
        self._is_async = is_async
        self._flights: deque[Flight] = deque()

    @property
    def last(self) -> Flight | None:
        """What was scheduled last, while it is under way."""
        return self._flights[-1] if self._flights else None

    def make_way(self, now: int) -> None:
        """Another step is about to be scheduled: the one under way counts as executed.

        Args:
            now: nanoseconds of the scheduler's clock.

        Raises:
            BatchwrightError: two steps are under way, or one that is to be updated first.
        """
        core, batch = self._core, self._core.in_flight
        if batch is None:
            return
        if not self._is_async or core.awaited is not None:
            most = "two steps" if self._is_async else "one step"
            raise BatchwrightError(f"schedule() was called with {most} under way: update_from_output() comes first")
        if not len(batch):  # it only evicted, or all its rows were too late
            core.update(batch, (), now)
            return
        for request in core.expect(batch, None, lambda: now).finished:
            self._seats.end(request.request_id)

    def take_off(self, told: SchedulerOutput, batch: Batch | None) -> SchedulerOutput:
        """A step was given to the workers.

        Args:
            told: what they were told.
            batch: what it runs; None: nothing.
        """
        step = self._core.step if batch is not None and batch is self._core.in_flight else None
        flight = Flight(told, batch, step)
        if self._seats.num_constrained:
            self._constrain(flight)
        self._flights.append(flight)
        return told

    def _constrain(self, flight: Flight) -> None:
        """Whether vLLM is to ask for masks, and whether only when the step before this one is back: a mask follows from
        all tokens before it."""
        flight.constrained = self._grammars.among(flight.rows)
        flight.told.has_structured_output_requests = bool(flight.constrained)
        under_way = {request for before in self._flights for request in before.constrained}
        flight.told.pending_structured_output_tokens = not under_way.isdisjoint(flight.constrained)

    def mask(self, told: SchedulerOutput) -> GrammarOutput | None:
        """What rows of a step under way may sample; None: whatever they like."""
        for flight in self._flights:
            if flight.told is told:
                return self._grammars.mask(flight.constrained)
        return None

    def land(self, told: SchedulerOutput, output: ModelRunnerOutput, answers: Answers, now: int) -> None:
        """The output of a step is there.

        Args:
            told: what workers were told of it.
            output: what they gave.
            answers: gets what clients are to be told.
            now: nanoseconds of the scheduler's clock.

        Raises:
            BatchwrightError: it is not that of the step scheduled first.
            BackendError: a row that samples has no token, or several.
        """
        if not self._flights or self._flights[0].told is not told:
            raise BatchwrightError("update_from_output() takes each step of schedule(), once, in their order")
        flight = self._flights.popleft()
        core, step, awaited = self._core, flight.step, self._core.awaited
        if step is None:
            return
        if awaited is not None and awaited.step is step:
            core.settle(StepResult(answers.tokens_of(awaited.rows, output), now - step.now), now)
        elif core.in_flight is not None and core.step is step:
            core.update(core.in_flight, answers.tokens_of(rows_that_sample(step), output), now)
        answers.take(step, flight.rows, output)
