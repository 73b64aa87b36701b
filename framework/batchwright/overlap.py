"""Steps of an engine that schedules the next one while the backend executes the last.

A call schedules step n + 1 while step n is executed, takes the results of n, submits n + 1, and gives the outputs of n.
So the device waits for the host only between the results of n and the submission of n + 1; scheduling, observers, text
and streams cost no time of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchwright.outputs import RequestOutput
from batchwright.step import Step

if TYPE_CHECKING:
    from batchwright.batch import Batch
    from batchwright.engine import Engine


class Overlap:
    """The loop of one engine with ``overlap``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def is_under_way(self) -> bool:
        """Whether a step was submitted whose results are not taken."""
        return self._engine.scheduler.awaited is not None

    def holds(self, request_id: str) -> bool:
        """Whether a request of that id has ended and its last output is under way."""
        awaited = self._engine.scheduler.awaited
        return awaited is not None and any(r.request_id == request_id for r in awaited.ended)

    def run(self, *, schedule: bool, with_outputs: bool) -> tuple[Step | None, list[RequestOutput]]:
        """One call: schedules a step, and takes the results of the one before it.

        Args:
            schedule: False: only take results.
            with_outputs: False: make none, for drivers that read what they need through observers.

        Returns:
            The step whose results were taken, if there is one, and the outputs of this call.
        """
        engine, scheduler = self._engine, self._engine.scheduler
        try:
            if schedule and scheduler.has_unfinished():
                scheduler.schedule(engine.clock.now_ns())
            done = self._settle()
            return self._submit(done, with_outputs)
        except BaseException:
            # A PolicyError leaves what is under way as it is. After an interrupt nothing is lost: what may have been
            # executed or not is computed again.
            awaited = scheduler.awaited
            if awaited is not None and awaited.fault is not None and not isinstance(awaited.fault, Exception):
                scheduler.settle(retry=True)
            if scheduler.in_flight is not None:
                scheduler.fail(scheduler.in_flight, "interrupted", retry=True, now=engine.clock.now_ns())
            engine.release(scheduler.step)
            raise

    def _settle(self) -> Step | None:
        """Take the results of the step under way."""
        engine, awaited = self._engine, self._engine.scheduler.awaited
        if awaited is None:
            return None
        awaited.wait()
        step = engine.scheduler.settle(retry=awaited.fault is not None and engine.count_failure())
        if awaited.fault is None:
            engine.count_success()
        engine.release(step)
        return step

    def _submit(self, done: Step | None, with_outputs: bool) -> tuple[Step | None, list[RequestOutput]]:
        """Submit the step scheduled; while it is executed, make the outputs of the one that is done."""
        engine, scheduler = self._engine, self._engine.scheduler
        batch = scheduler.in_flight
        handle: object = None
        error: Exception | None = None
        if batch is not None and len(batch):
            try:
                handle = engine.backend.submit(batch)
            except Exception as fault:
                error = fault
        outputs = engine.outputs_of(done, wanted=with_outputs)
        if batch is None:
            return done, outputs
        if error is None and len(batch):
            scheduler.expect(batch, lambda: engine.backend.collect(handle), engine.clock.now_ns)
            return done, outputs + engine.outputs_of(None, wanted=with_outputs)
        step = self._at_once(batch, error)
        engine.release(step)
        return step, outputs + engine.outputs_of(step, wanted=with_outputs)

    def _at_once(self, batch: Batch, error: Exception | None) -> Step:
        """A step of which nothing is executed: it only evicted, all its rows were late, or it was not submitted."""
        engine = self._engine
        if error is not None:
            return engine.backend_failed(batch, error)
        return engine.scheduler.update(batch, (), engine.clock.now_ns())
