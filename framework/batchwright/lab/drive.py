"""The loop of one run: requests are offered as they arrive, and steps are taken."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from batchwright.errors import RequestError
from batchwright.lab.clients import Clients
from batchwright.lab.garbage import seldom_collected
from batchwright.lab.interrupts import Interrupts
from batchwright.lab.materialize import Offer

if TYPE_CHECKING:
    from batchwright.engine import Engine
    from batchwright.lab.arrivals import Arrivals
    from batchwright.lab.recorder import Recorder

Progress = Callable[[str, int, int], None]
"""Told now and then: arm, requests that have ended, requests in all."""

PROGRESS_S = 0.1


class Drive(ABC):
    """What the loops of an engine and of a fleet share."""

    def __init__(self, clients: Clients, total: int, arm: str, progress: Progress | None) -> None:
        """Makes one.

        Args:
            clients: of the run.
            total: requests in all.
            arm: its name.
            progress: told about ten times a second.
        """
        self._clients = clients
        self._total = total
        self._arm = arm
        self._progress = progress
        self._told = 0.0

    def run(self, max_steps: int | None, until_ns: int | None) -> str | None:
        """To the end, or why it stopped before; steps may then be under way."""
        try:
            with Interrupts() as interrupts, seldom_collected():
                return self._loop(max_steps, until_ns, interrupts)
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            self._tell(last=True)

    @abstractmethod
    def _loop(self, max_steps: int | None, until_ns: int | None, interrupts: Interrupts) -> str | None: ...

    @property
    @abstractmethod
    def _num_ended(self) -> int: ...

    def _tell(self, *, last: bool = False) -> None:
        if self._progress is not None and (last or time.perf_counter() - self._told > PROGRESS_S):
            self._told = time.perf_counter()
            self._progress(self._arm, self._num_ended, self._total)


class EngineDrive(Drive):
    """The loop of one engine."""

    def __init__(
        self,
        engine: Engine,
        recorder: Recorder,
        arrivals: Arrivals,
        total: int,
        arm: str,
        progress: Progress | None,
        *,
        leap: bool,
    ) -> None:
        super().__init__(Clients(arrivals, [engine]), total, arm, progress)
        self._engine = engine
        self._recorder = recorder
        self._leap = leap

    @property
    def _num_ended(self) -> int:
        return self._recorder.num_ended

    def _loop(self, max_steps: int | None, until_ns: int | None, interrupts: Interrupts) -> str | None:
        engine, clock, clients = self._engine, self._engine.clock, self._clients
        arrivals = clients.arrivals
        waits = arrivals.waits
        num_steps = 0
        while True:
            if interrupts.asked:
                return "interrupted"
            now = clock.now_ns()
            if until_ns is not None and now >= until_ns:
                return "max_seconds"
            if waits:
                clients.hear()
            while (when := arrivals.next_ns) is not None and when <= now:
                self._add(arrivals.take())
            if clients.any_may_leave and (leaving := clients.leaving(now)):
                for request in leaving:
                    engine.abort(request.request_id)
                continue
            if engine.has_unfinished():
                if num_steps == max_steps:
                    return "max_steps"
                leapt = self._leapt(until_ns, None if max_steps is None else max_steps - num_steps)
                if not leapt:
                    engine.advance(deferred=True)
                num_steps += leapt or 1
            elif when is None:
                return None
            else:
                interrupts.idle = True
                clock.wait_until_ns(when if until_ns is None else min(when, until_ns))
                interrupts.idle = False
            if self._progress is not None:
                self._tell()

    def _leapt(self, until_ns: int | None, max_steps: int | None) -> int:
        """Steps taken at once: up to the next arrival or abort, or the end of the run."""
        if not self._leap:
            return 0
        return self._engine.leap(self._clients.soonest(until_ns), self._clients.most(max_steps))

    def _add(self, offer: Offer) -> None:
        self._recorder.offer(offer)
        try:
            self._engine.add_request(offer.request, num_output_tokens=offer.num_output_tokens)
        except RequestError as error:
            self._recorder.refuse(offer.request, error)
            now = self._engine.clock.now_ns()
            self._clients.refused(offer.request, offer.place, max(offer.request.arrival_ns, now))
        else:
            self._clients.taken(offer)
