"""One replica: an engine whose steps begin and end at moments of a fleet's time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from batchwright.errors import RequestError
from batchwright.fleet.meter import WaitingTokens

if TYPE_CHECKING:
    from batchwright.backend import StepResult
    from batchwright.engine import Engine
    from batchwright.outputs import RequestOutput
    from batchwright.request import Request

Refused = Callable[["Request", RequestError], None]
"""Told of a request that its replica did not take."""


class Replica:
    """An engine of a fleet.

    A step is begun (scheduled and executed) and finished (its results taken) at two moments, so that whoever looks in
    between sees it under way, and nothing of its results. What is routed here meanwhile is taken when the next step
    begins, as an engine takes what arrives during a step.

    Attributes:
        index: its place in the fleet, from 0.
        engine: what runs; its policy is its own.
        scheduler: of the engine.
        inbox: request id to what was routed here and is not taken yet: the request, and its hidden true length.
        is_idle: nothing of it is under way or about to begin.
    """

    def __init__(self, index: int, engine: Engine) -> None:
        self.index = index
        self.engine = engine
        self.scheduler = engine.scheduler
        self.inbox: dict[str, tuple[Request, int | None]] = {}
        self.is_idle = True
        self._waiting = WaitingTokens()
        self.scheduler.register(self._waiting)
        self._inbox_tokens = 0
        self._result: StepResult | None = None
        self._fault: Exception | None = None

    @property
    def now_ns(self) -> int:
        """Nanoseconds of its clock: the end of the step that is under way, else of the last."""
        return self.engine.clock.now_ns()

    @property
    def outstanding_tokens(self) -> int:
        """Pending tokens of all who wait, are prefilling or decode."""
        prefilling = self.scheduler._state.prefilling
        pending = sum(request.num_pending for request in prefilling)
        return self._inbox_tokens + self._waiting.total + pending + len(self.scheduler.running) - len(prefilling)

    def has_unfinished(self) -> bool:
        """Whether anybody waits or runs, or was routed here and is not taken yet."""
        return bool(self.inbox) or self.scheduler.has_unfinished()

    def holds(self, request_id: str) -> bool:
        """Whether an unfinished request of that id is here."""
        return request_id in self.inbox or self.scheduler.get(request_id) is not None

    def route(self, request: Request, num_output_tokens: int | None) -> None:
        """A request comes here; it is taken when the next step begins."""
        self.inbox[request.request_id] = request, num_output_tokens
        self._inbox_tokens += request.num_tokens

    def take(self, now_ns: int, refused: Refused | None) -> None:
        """Take what was routed here.

        Args:
            now_ns: present of the fleet; the clock of a replica that stood still is moved there.
            refused: told of those that the engine does not take; None: such an error is raised.

        Raises:
            RequestError: see ``refused``.
            PolicyError: a policy broke a rule when it was asked about an arrival.
        """
        self.engine.clock.wait_until_ns(now_ns)
        while self.inbox:
            request, _ = next(iter(self.inbox.values()))
            try:
                self._take_one(request.request_id)
            except RequestError as error:
                if refused is None:
                    raise
                refused(request, error)

    def _take_one(self, request_id: str) -> None:
        request, num_output_tokens = self.inbox.pop(request_id)
        self._inbox_tokens -= request.num_tokens
        self.engine.add_request(request, num_output_tokens=num_output_tokens)

    def abort(self, request_id: str) -> RequestOutput:
        """End a request that is here, whatever it is doing; what it has brought so far is returned."""
        if request_id in self.inbox:
            self._take_one(request_id)
        return self.engine.abort(request_id)

    def leap(self, until_ns: int | None, max_steps: int | None) -> int:
        """Take steps at once in which nothing is decided, as far as they end by ``until_ns``; how many there were."""
        return self.engine.leap(until_ns, max_steps, whole=True)

    def begin(self) -> None:
        """Schedule a step and execute it; its results are kept until ``finish``.

        Raises:
            PolicyError: the policy broke a rule, and the config says to raise.
        """
        engine = self.engine
        try:
            batch = self.scheduler.schedule(engine.clock.now_ns())
        except BaseException:
            engine.release(self.scheduler.step)
            raise
        try:
            self._result = engine.backend.execute(batch) if len(batch) else None
        except Exception as error:
            self._fault = error
        except BaseException:  # an interrupt: its batch can be computed again
            self.settle()
            raise

    def finish(self) -> None:
        """Take the results of the step that was begun."""
        engine, scheduler = self.engine, self.scheduler
        batch, result, fault = scheduler.in_flight, self._result, self._fault
        self._result = self._fault = None
        if batch is None:
            return
        try:
            if fault is not None:
                raise fault
            now = engine.clock.now_ns()
            if result is None:  # it only evicted
                scheduler.update(batch, (), now)
            else:
                scheduler.update(batch, result.token_ids, now, result.failed, result.logprobs)
                engine.count_success()
        except Exception as error:
            if scheduler.in_flight is None:
                raise
            engine.backend_failed(batch, error)
        finally:
            engine.release(scheduler.step)

    def settle(self) -> None:
        """Leave no step under way: take its results, or, if an interrupt came in between, compute it again later."""
        batch = self.scheduler.in_flight
        if batch is None:
            return
        if len(batch) and self._result is None and self._fault is None:
            self.scheduler.fail(batch, "interrupted", retry=True, now=self.engine.clock.now_ns())
            self.engine.release(self.scheduler.step)
        else:
            self.finish()
