"""What is played: a workload on an engine, or a recording on a bare scheduler; both step by step and repeatable."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

from batchwright.active_policy import ActivePolicy
from batchwright.backend import VirtualClock
from batchwright.cli.arms import Arm
from batchwright.engine import Engine
from batchwright.errors import ConfigError, PolicyError, RequestError, UnknownRequestError
from batchwright.lab import Arrivals, Offer, Workload
from batchwright.lab.clients import Clients
from batchwright.plugins import Plugins
from batchwright.replay.case import Case, Event
from batchwright.replay.driver import predictor
from batchwright.replay.replaying import Spec, case_policy
from batchwright.resolve import resolve_policy
from batchwright.scheduler import Scheduler
from batchwright.trace import TracedStep, Tracer


class Stage(Protocol):
    """Something that goes step by step; made anew, it does the same again."""

    refused: list[tuple[str, str]]

    def advance(self) -> TracedStep | None:
        """The next step; None at the end. A step whose policy broke a rule comes undone, with the error in it."""
        ...

    def swap(self, policy: ActivePolicy) -> None:
        """Another policy decides from the next step on."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class WorkloadStage:
    """A workload offered to an engine at its own pace.

    Attributes:
        refused: who was refused before the last step, and why.

    Raises:
        ConfigError: the backend has no virtual clock, so nothing could be repeated.
    """

    def __init__(self, arm: Arm, workload: Workload, declared: str, seed: int) -> None:
        self._engine = Engine(arm.config, origins=arm.origins, installed=arm.plugins)
        if not isinstance(self._engine.clock, VirtualClock):
            self._engine.close()
            raise ConfigError(
                f"play goes back and forth, so it needs time that can be repeated, and {arm.config.backend} runs in "
                "real time; take a simulator, as in --backend sim:llama-3.1-8b@h100"
            )
        try:
            arrivals = Arrivals.at(self._engine, workload, declared, seed=seed)
        except BaseException:
            self._engine.close()
            raise
        arrivals.start(0)
        self._clients = Clients(arrivals, [self._engine])
        self._tracer = Tracer(self._engine.scheduler)
        self.refused: list[tuple[str, str]] = []

    def advance(self) -> TracedStep | None:
        """The next step, with everybody added whose time has come."""
        engine, clock = self._engine, self._engine.clock
        self.refused = []
        while True:
            self._clients.hear()
            now = clock.now_ns()
            while (when := self._clients.next_ns) is not None and when <= now:
                self._add(self._clients.take())
            leaving = self._clients.leaving(now)
            for request in leaving:
                engine.abort(request.request_id)
            if leaving:
                continue
            if engine.has_unfinished():
                break
            if when is None:
                return None
            clock.wait_until_ns(when)
        with suppress(PolicyError):  # it stands in the step
            engine.advance()
        return self._tracer.take()[-1]

    def _add(self, offer: Offer) -> None:
        try:
            self._engine.add_request(offer.request, num_output_tokens=offer.num_output_tokens)
        except RequestError as error:
            self.refused.append((offer.request.request_id, str(error)))
            self._clients.refused(offer.request, offer.place, self._engine.clock.now_ns())
        else:
            self._clients.taken(offer)

    def swap(self, policy: ActivePolicy) -> None:
        """Another policy decides from now on.

        Raises:
            PluginError, ConfigError: it cannot serve here; the old one stays.
        """
        self._engine.scheduler.swap_policy(policy)

    def close(self) -> None:
        """Close engine and backend."""
        self._tracer.close()
        self._engine.close()


class RecordingStage:
    """A recording: its requests come in the steps in which they came, and sample the tokens that they sampled.

    Under another policy than the recorded one, steps go other ways; what happens from outside happens in steps of the
    same number. After the last recorded step it goes on until nobody is left.

    Attributes:
        refused: who was refused before the last step, and why.
    """

    def __init__(self, case: Case, policy: Spec, plugins: Plugins, file: str) -> None:
        """Takes a case, and the policy in the place of the recorded one.

        Raises:
            ConfigError, PluginError: there is no such policy, or the recording names none.
        """
        self._case = case
        self._plugins = plugins
        self._swaps = policy is None  # as recorded
        settings: dict[str, Any] = case.settings.arguments()
        predict_s = predictor(case)
        if predict_s is not None:
            settings["predict_s"] = predict_s
        self._scheduler = Scheduler(case_policy(case, policy, plugins, file), **settings)
        self._tracer = Tracer(self._scheduler)
        self._events: deque[Event] = deque(case.events)
        self._position = -1
        self._end = 0
        self.refused: list[tuple[str, str]] = []

    def advance(self) -> TracedStep | None:
        """The next step, with what happens before it."""
        scheduler = self._scheduler
        self.refused = []
        self._position += 1
        self._happen(during=False)
        while not scheduler.has_unfinished():
            if not self._events:
                return None
            self._position = max(self._position + 1, self._events[0].step)
            self._happen(during=False)
        case, now = self._case, self._end
        if self._position < len(case.clock):
            now = max(now, case.clock[self._position][0])
        self._end = now + 1
        if self._position < len(case.clock):
            self._end = max(self._end, case.clock[self._position][1])
        try:
            batch = scheduler.schedule(now)
        except PolicyError:
            self._happen(during=True)
            return self._tracer.take()[-1]
        sampling = [r for r, s in zip(scheduler.step.batch, batch.samples.tolist(), strict=True) if s]
        tokens = [case.requests[r.request_id].token(r.num_output_tokens) for r in sampling]
        wrong = self._happen(during=True)
        if len(batch) and ("fail" in wrong or "retry" in wrong):
            scheduler.fail(batch, "recorded failure", retry="retry" in wrong, now=self._end)
        else:
            scheduler.update(batch, tokens, self._end, wrong.get("failed"))
        return self._tracer.take()[-1]

    def _happen(self, *, during: bool) -> dict[str, Any]:
        """Everything up to this moment; returns how the backend fails."""
        wrong: dict[str, Any] = {}
        for event in self._due(during):
            if event.kind in ("failed", "fail", "retry"):
                wrong[event.kind] = event.value
            elif event.kind in ("abort", "error"):
                with suppress(UnknownRequestError):  # under this policy it has ended already
                    self._scheduler.abort(event.value, error="a recorded error" if event.kind == "error" else None)
            elif event.kind == "swap":
                if self._swaps:
                    self._scheduler.swap_policy(resolve_policy(event.value, self._plugins))
            else:
                self._add(event.value)
        return wrong

    def _due(self, during: bool) -> Iterator[Event]:
        while self._events and (self._events[0].step, self._events[0].during) <= (self._position, during):
            yield self._events.popleft()

    def _add(self, name: str) -> None:
        told = self._case.requests[name]
        request = told.make()
        check = told.stop_check(request)
        try:
            self._scheduler.add(request, num_output_tokens=told.num_output_tokens, stop_check=check)
        except (RequestError, PolicyError) as error:
            self.refused.append((name, str(error)))

    def swap(self, policy: ActivePolicy) -> None:
        """Another policy decides from now on, and no recorded swap changes that.

        Raises:
            PluginError, ConfigError: it cannot serve here; the old one stays.
        """
        self._scheduler.swap_policy(policy)
        self._swaps = False

    def close(self) -> None:
        """Trace no more."""
        self._tracer.close()
