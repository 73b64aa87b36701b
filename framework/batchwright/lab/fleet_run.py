"""Running one arm of several replicas: a workload offered to a fleet at its own pace."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TypeVar, Unpack

from batchwright.config import EngineConfig
from batchwright.errors import ConfigError, RequestError
from batchwright.fleet.fleet import ARRIVAL, BEGIN, Fleet
from batchwright.lab.fleet_recorder import FleetRecorder
from batchwright.lab.interrupts import Interrupts
from batchwright.lab.materialize import MODEL, Offer, offers_to, with_token_ids
from batchwright.lab.run_record import RunLimits, RunRecord
from batchwright.lab.runner import PROGRESS_S, Progress, RunOptions, about, checked
from batchwright.lab.workload import Workload

Made = TypeVar("Made")


def run_fleet(config: EngineConfig, workload: Workload, **options: Unpack[RunOptions]) -> RunRecord:
    """``run_arm`` of a config that asks for replicas or a router; arguments and errors are those of ``run_arm``."""
    for unknown in set(options) - set(RunOptions.__annotations__):
        raise TypeError(f"run_arm() got an unexpected keyword argument {unknown!r}")
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
        capacity, limits = first.capacity, first.limits
        asked = with_token_ids(workload, first.backend)
        start_ns = fleet.now_ns
        recorder = FleetRecorder(fleet)
        coming = offers_to(
            first,
            asked,
            declared,
            seed=options.get("seed", 0),
            start_ns=start_ns,
            respect_eos=options.get("respect_eos", False),
        )
        until_ns = None if max_seconds is None else start_ns + round(max_seconds * 1e9)
        drive = _Drive(
            fleet, recorder, coming, len(workload), name, options.get("progress"), leap=options.get("leap", True)
        )
        stopped = drive.run(max_steps, until_ns)
        fleet.settle()
        ends = [replica.now_ns for replica in fleet.replicas]
        end_ns = max(*ends, until_ns) if stopped == "max_seconds" and until_ns is not None else max(ends)
        drive.offer_rest()
        recorder.finish(interrupted=stopped == "interrupted")
        return RunRecord(
            arm=name,
            policy=first.policy_name,
            backend=first.backend.name,
            settings=json.loads(json.dumps({**first.effective.values, **fleet.describe()}, default=str)),
            limits=RunLimits(
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_num_residents=limits.max_num_residents,
                max_model_len=limits.max_model_len,
                num_blocks=capacity.num_blocks,
                block_size=capacity.block_size,
            ),
            virtual_time=True,
            requests=recorder.requests,
            offered=recorder.offered,
            steps=recorder.steps,
            batches=recorder.batches,
            events=recorder.events,
            notes=list(first.backend.notes),
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


class _Drive:
    """The loop of one run."""

    def __init__(
        self,
        fleet: Fleet,
        recorder: FleetRecorder,
        coming: Iterator[Offer],
        total: int,
        arm: str,
        progress: Progress | None,
        *,
        leap: bool,
    ) -> None:
        self._fleet = fleet
        self._recorder = recorder
        self._coming = coming
        self._next = next(coming, None)
        self._total = total
        self._arm = arm
        self._progress = progress
        self._leap = leap
        fleet.on_refused = recorder.refuse

    def run(self, max_steps: int | None, until_ns: int | None) -> str | None:
        """To the end, or why it stopped before; steps may then be under way."""
        try:
            with Interrupts() as interrupts:
                return self._loop(max_steps, until_ns, interrupts)
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._arm, self._recorder.num_ended, self._total)

    def _loop(self, max_steps: int | None, until_ns: int | None, interrupts: Interrupts) -> str | None:
        fleet = self._fleet
        told = 0.0
        while True:
            if interrupts.asked:
                return "interrupted"
            event = fleet.next_event()
            arrival = None if self._next is None else self._next.request.arrival_ns
            if arrival is not None and (event is None or (arrival, ARRIVAL) < event):
                if until_ns is not None and arrival >= until_ns:
                    return "max_seconds"
                self._route()
                continue
            if event is None:
                return None
            if event[1] == BEGIN and until_ns is not None and event[0] >= until_ns:
                return "max_seconds"
            if not fleet.advance(self._horizon(arrival, until_ns, event[0]), max_steps):
                return "max_steps"
            if self._progress is not None and time.perf_counter() - told > PROGRESS_S:
                told = time.perf_counter()
                self._tell()

    def _horizon(self, arrival_ns: int | None, until_ns: int | None, now_ns: int) -> int | None:
        """Up to when steps may be taken at once."""
        if not self._leap:
            return now_ns
        known = [when for when in (arrival_ns, until_ns) if when is not None]
        return min(known, default=None)

    def offer_rest(self) -> None:
        """Put what never arrived into the records: it was asked for, and is unfinished."""
        while self._next is not None:
            self._recorder.offer(self._next, None)
            self._next = next(self._coming, None)

    def _route(self) -> None:
        offer = self._next
        assert offer is not None
        try:
            place = self._fleet.add_request(offer.request, num_output_tokens=offer.num_output_tokens)
        except RequestError as error:
            self._recorder.offer(offer, None)
            self._recorder.refuse(offer.request, error)
        else:
            self._recorder.offer(offer, place)
        self._next = next(self._coming, None)
