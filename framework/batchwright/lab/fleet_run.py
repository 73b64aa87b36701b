"""Running one arm of several replicas: a workload offered to a fleet at its own pace."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, Unpack

from batchwright.config import EngineConfig
from batchwright.errors import ConfigError, RequestError
from batchwright.fleet.fleet import ARRIVAL, BEGIN, Fleet
from batchwright.lab.arrivals import Arrivals
from batchwright.lab.clients import Clients
from batchwright.lab.drive import Drive, Progress
from batchwright.lab.fleet_recorder import FleetRecorder
from batchwright.lab.interrupts import Interrupts
from batchwright.lab.materialize import MODEL
from batchwright.lab.run_record import RunLimits, RunRecord
from batchwright.lab.runner import RunOptions, about, checked
from batchwright.lab.workload import Workload

if TYPE_CHECKING:
    from batchwright.request import Request

Made = TypeVar("Made")


def run_fleet(config: EngineConfig, workload: Workload, **options: Unpack[RunOptions]) -> RunRecord:
    """``run_arm`` of a config that asks for replicas or a router; arguments and errors are those of ``run_arm``."""
    for unknown in set(options) - set(RunOptions.__annotations__):
        raise TypeError(f"run_arm() got an unexpected keyword argument {unknown!r}")
    if options.get("decisions"):
        raise ConfigError(f"decisions are recorded of one engine, and replicas is {config.replicas}: leave it out")
    declared, arm = options.get("declared", MODEL), options.get("arm")
    max_steps, max_seconds = options.get("max_steps"), options.get("max_seconds")
    rule = checked(workload, declared, max_steps, max_seconds)
    with Fleet(
        config,
        backend=_maker(options.get("backend"), "backend", config),
        policy=_maker(options.get("policy"), "policy", config),
        plugins=options.get("plugins", ()),
        origins=options.get("origins"),
        installed=options.get("installed"),
    ) as fleet:
        engines = [replica.engine for replica in fleet.replicas]
        on_engine = options.get("on_engine")
        if on_engine is not None:
            for engine in engines:
                on_engine(engine)
        first = engines[0]
        name = arm if arm is not None else first.policy_name
        arrivals = Arrivals.at(
            first,
            workload,
            declared,
            seed=options.get("seed", 0),
            respect_eos=options.get("respect_eos", False),
        )
        start_ns = fleet.now_ns
        recorder = FleetRecorder(fleet)
        arrivals.start(start_ns)
        until_ns = None if max_seconds is None else start_ns + round(max_seconds * 1e9)
        drive = _FleetDrive(
            fleet, recorder, arrivals, len(workload), name, options.get("progress"), leap=options.get("leap", True)
        )
        stopped = drive.run(max_steps, until_ns)
        fleet.settle()
        ends = [replica.now_ns for replica in fleet.replicas]
        end_ns = max(*ends, until_ns) if stopped == "max_seconds" and until_ns is not None else max(ends)
        for offer in arrivals.rest(end_ns):  # what never arrived was asked for, and is unfinished
            recorder.offer(offer, None)
        recorder.finish(interrupted=stopped == "interrupted")
        return RunRecord(
            arm=name,
            policy=first.policy_name,
            backend=first.backend.name,
            settings=json.loads(json.dumps({**first.effective.values, **fleet.describe()}, default=str)),
            limits=RunLimits.of(first),
            virtual_time=True,
            requests=recorder.requests,
            offered=recorder.offered,
            steps=recorder.steps,
            batches=recorder.batches,
            events=recorder.events,
            notes=[*workload.notes, *arrivals.notes, *first.backend.notes],
            duration_ns=end_ns - start_ns,
            stopped=stopped,
            seed=options.get("seed", 0),
            num_leapt=sum(engine.scheduler.num_leapt for engine in engines),
            **about(first, workload, rule),
        )


def _maker(given: Made | Callable[[], Made] | None, what: str, config: EngineConfig) -> Callable[[], Made] | None:
    """What makes an object for each replica."""
    if given is None or callable(given):
        return given  # pyright: ignore[reportReturnType]
    if config.replicas > 1:
        raise ConfigError(
            f"{what}: {config.replicas} replicas need {what} objects of their own, and one object was given; give a "
            "class or a function that makes one, or name it in the config"
        )
    made = given
    return lambda: made


class _FleetDrive(Drive):
    """The loop of a fleet."""

    def __init__(
        self,
        fleet: Fleet,
        recorder: FleetRecorder,
        arrivals: Arrivals,
        total: int,
        arm: str,
        progress: Progress | None,
        *,
        leap: bool,
    ) -> None:
        super().__init__(Clients(arrivals, [r.engine for r in fleet.replicas]), total, arm, progress)
        self._fleet = fleet
        self._recorder = recorder
        self._waits = arrivals.waits
        # With others beside it a replica may not run ahead: the end of one of theirs may bring an arrival.
        self._leap = leap and not (arrivals.waits and len(fleet.replicas) > 1)
        self._replica_of: dict[Request, int] = {}  # of those that may be aborted
        self._leaving: list[Request] = []
        fleet.on_refused = self._refused

    @property
    def _num_ended(self) -> int:
        return self._recorder.num_ended

    def _loop(self, max_steps: int | None, until_ns: int | None, interrupts: Interrupts) -> str | None:
        fleet, clients = self._fleet, self._clients
        while True:
            if interrupts.asked:
                return "interrupted"
            clients.hear()
            event = fleet.next_event()
            arrival = clients.next_ns
            if arrival is not None and (event is None or (arrival, ARRIVAL) < event):
                if until_ns is not None and arrival >= until_ns:
                    return "max_seconds"
                self._route()
                continue
            if event is None:
                return None
            if event[1] == BEGIN:
                if until_ns is not None and event[0] >= until_ns:
                    return "max_seconds"
                if self._waits and self._take_due(event[0]):
                    continue
                if self._give_up(event[0]):
                    continue
            if not fleet.advance(self._horizon(until_ns, event[0]), self._most_of_all(max_steps)):
                return "max_steps"
            if self._progress is not None:
                self._tell()

    def _horizon(self, until_ns: int | None, now_ns: int) -> int | None:
        """Up to when steps may be taken at once."""
        return self._clients.soonest(until_ns) if self._leap else now_ns

    def _most_of_all(self, max_steps: int | None) -> int | None:
        """Steps of all replicas, those before included, up to which steps may be taken at once."""
        num_steps = self._fleet.num_steps
        most = self._clients.most(None if max_steps is None else max_steps - num_steps)
        return None if most is None else num_steps + most

    def _route(self) -> None:
        offer = self._clients.take()
        try:
            place = self._fleet.add_request(offer.request, num_output_tokens=offer.num_output_tokens)
        except RequestError as error:
            self._recorder.offer(offer, None)
            self._recorder.refuse(offer.request, error)
            self._clients.refused(offer.request, offer.place, self._fleet.now_ns)
        else:
            self._recorder.offer(offer, place)
            self._clients.taken(offer)
            if offer.row.gives_up:
                self._replica_of[offer.request] = place

    def _refused(self, request: Request, error: RequestError) -> None:
        """Its replica does not take it."""
        self._recorder.refuse(request, error)
        self._clients.refused(request, None, self._fleet.now_ns)

    def _take_due(self, now_ns: int) -> bool:
        """Replicas take what was routed to them; whether refusals brought further arrivals of this moment."""
        for replica in self._fleet.replicas:
            if replica.inbox and replica.scheduler.in_flight is None and replica.now_ns <= now_ns:
                replica.take(now_ns, self._refused)
        when = self._clients.next_ns
        return when is not None and when <= now_ns

    def _give_up(self, now_ns: int) -> bool:
        """Clients give up whose replica is between two steps; whether any did."""
        fleet = self._fleet
        self._leaving += self._clients.leaving(now_ns)
        staying: list[Request] = []
        for request in self._leaving:
            replica = fleet.replicas[self._replica_of[request]]
            if replica.scheduler.in_flight is not None or replica.now_ns > now_ns:
                staying.append(request)
                continue
            replica.take(now_ns, self._refused)
            if replica.holds(request.request_id):
                replica.abort(request.request_id)
            del self._replica_of[request]
        any_left = len(staying) < len(self._leaving)
        self._leaving = staying
        return any_left
