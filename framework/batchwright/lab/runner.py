"""Running one arm: a workload offered to an engine at its own pace."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from batchwright.backend import VirtualClock
from batchwright.config import EngineConfig
from batchwright.engine import Engine
from batchwright.errors import ConfigError, RequestError, WorkloadError
from batchwright.lab.interrupts import Interrupts
from batchwright.lab.materialize import MODEL, Offer, describe_declared, offers_to, with_token_ids
from batchwright.lab.recorder import Recorder
from batchwright.lab.run_record import RunLimits, RunRecord
from batchwright.lab.stream import RecordStream
from batchwright.lab.workload import Workload
from batchwright.predictor import describe_predictions

if TYPE_CHECKING:
    from batchwright.backend import Backend
    from batchwright.plugins import Plugins
    from batchwright.policy import Policy

Progress = Callable[[str, int, int], None]
"""Told now and then: arm, requests that have ended, requests in all."""

PROGRESS_S = 0.1


class RunOptions(TypedDict, total=False):
    """How a run is made; what is left out has its default.

    Attributes:
        arm: name in tables; the policy's by default.
        declared: ``max_tokens`` of rows that declare none: ``model`` (all that model and KV pool allow), ``exact``
            (the true output length, which policies can then read) or a number.
        respect_eos: let a sampled end-of-sequence token end a request before its true length.
        seed: of the prompts' token ids. One seed and one vocabulary give one set of prompts, on any arm and backend.
        max_steps: end the run after so many steps.
        max_seconds: end the run after so many seconds of the engine's clock.
        leap: True by default: take steps of a simulator in which nothing can be decided at once; records are the same
            without.
        progress: called about ten times a second.
        backend, policy: objects in the place of those that the config names; for a fleet, what makes one each time it
            is called.
        plugins: further observers of the engine.
        installed: plugins loaded already.
        origins: where the config's values come from.
        on_engine: called with the engine before the first request is added.
    """

    arm: str | None
    declared: str | int
    respect_eos: bool
    seed: int
    max_steps: int | None
    max_seconds: float | None
    leap: bool
    progress: Progress | None
    backend: Backend | Callable[[], Backend] | None
    policy: Policy | Callable[[], Policy] | None
    plugins: Sequence[object]
    installed: Plugins | None
    origins: Mapping[str, str] | None
    on_engine: Callable[[Engine], None] | None


def run_arm(config: EngineConfig, workload: Workload, **options: Unpack[RunOptions]) -> RunRecord:
    """Offer a workload to an engine, open loop, and record what becomes of it.

    Requests are added when their time has come, however far behind the engine is; idle time is waited for, or skipped
    on a virtual clock. A request that the engine refuses stays in the records, with its error. Ctrl-C ends the run
    after the present step and keeps what is done: the rest is ``unfinished``.

    Args:
        config: of the engine.
        workload: what to offer.
        **options: see :class:`RunOptions`.

    Raises:
        WorkloadError: the workload is empty, an argument is out of its range, or a prompt cannot be tokenized.
        ConfigError, PluginError, BackendError: the engine cannot be made.
        PolicyError: the policy broke a rule, and the config says to raise.
    """
    if config.replicas > 1 or config.router is not None:
        from batchwright.lab.fleet_run import run_fleet

        return run_fleet(config, workload, **options)
    recorder = Recorder()
    values = _run(config, workload, recorder, lambda _: None, **options)
    return RunRecord(offered=recorder.offered, steps=recorder.steps, batches=recorder.batches, **values)


@dataclass(frozen=True, slots=True)
class StreamedRun:
    """What is left in memory of a run whose records are in a file.

    Attributes:
        path: of the file; :func:`~batchwright.lab.stream.read_run` reads it.
        num_requests: how many ended how, by status.
        num_steps: steps that were taken.
        num_leapt: those of them that were taken several at once.
        duration_ns: from the start of the run to its end.
        stopped: None when it ran to its end; else why not.
    """

    path: Path
    num_requests: Mapping[str, int]
    num_steps: int
    num_leapt: int
    duration_ns: int
    stopped: str | None


def stream_arm(config: EngineConfig, workload: Workload, path: Path, **options: Unpack[RunOptions]) -> StreamedRun:
    """``run_arm`` with its records on disk as they come: memory is taken for requests in flight only.

    Args:
        config: of the engine.
        workload: what to offer; one that is read lazily is never in memory as a whole.
        path: of the file to write; an old one is overwritten.
        **options: of ``run_arm``.

    Raises:
        WorkloadError: as ``run_arm``, or the file cannot be written.
    """
    if config.replicas > 1 or config.router is not None:
        raise ConfigError(
            f"replicas is {config.replicas}: records of a fleet are kept in memory; use run_arm, or one replica "
            "and no router"
        )
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"cannot write {path}: {error.strerror or error}") from None
    with file:
        stream = RecordStream(file)
        values = _run(config, workload, Recorder(stream), stream.header, **options)
        num_leapt = values.pop("num_leapt")
        stream.events(values.pop("events"))
        del values["requests"]
        stream.end({name: values[name] for name in _TAIL})
    return StreamedRun(
        path, dict(stream.num_requests), stream.num_steps, num_leapt, values["duration_ns"], values["stopped"]
    )


_TAIL = ("policy", "notes", "duration_ns", "stopped")
"""Fields of a record that are known after the run."""


def _run(
    config: EngineConfig,
    workload: Workload,
    recorder: Recorder,
    begin: Callable[[Mapping[str, Any]], None],
    *,
    arm: str | None = None,
    declared: str | int = MODEL,
    respect_eos: bool = False,
    seed: int = 0,
    max_steps: int | None = None,
    max_seconds: float | None = None,
    leap: bool = True,
    progress: Progress | None = None,
    backend: Backend | Callable[[], Backend] | None = None,
    policy: Policy | Callable[[], Policy] | None = None,
    plugins: Sequence[object] = (),
    installed: Plugins | None = None,
    origins: Mapping[str, str] | None = None,
    on_engine: Callable[[Engine], None] | None = None,
) -> dict[str, Any]:
    """Run it; the fields of its record, but for what the recorder has. ``begin`` gets those known before the run."""
    rule = checked(workload, declared, max_steps, max_seconds)
    engine = Engine(
        config,
        backend=backend() if callable(backend) else backend,
        policy=policy() if callable(policy) else policy,
        plugins=[*plugins, recorder],
        origins=origins,
        installed=installed,
    )
    with engine:
        if on_engine is not None:
            on_engine(engine)
        name = arm if arm is not None else engine.policy_name
        capacity, limits = engine.capacity, engine.limits
        head = {
            "arm": name,
            "backend": engine.backend.name,
            "settings": json.loads(json.dumps(engine.effective.values, default=str)),  # parameters may hold anything
            **about(engine, workload, rule),
            "virtual_time": isinstance(engine.clock, VirtualClock),
            "seed": seed,
        }
        sizes = RunLimits(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_residents=limits.max_num_residents,
            max_model_len=limits.max_model_len,
            num_blocks=capacity.num_blocks,
            block_size=capacity.block_size,
        )
        begin({**head, "limits": asdict(sizes)})
        asked = with_token_ids(workload, engine.backend)  # before the clock counts
        start_ns = recorder.start(engine.clock)
        coming = offers_to(
            engine,
            asked,
            declared,
            seed=seed,
            start_ns=start_ns,
            respect_eos=respect_eos,
        )
        drive = _Drive(engine, recorder, coming, len(workload), name, progress, leap=leap)
        stopped = drive.run(max_steps, None if max_seconds is None else start_ns + round(max_seconds * 1e9))
        engine.collect()  # with overlap a step may be under way
        duration_ns = engine.clock.now_ns() - start_ns
        drive.offer_rest()
        requests = recorder.finish(interrupted=stopped == "interrupted")
        return {
            **head,
            "limits": sizes,
            "policy": engine.policy_name,
            "requests": requests,
            "events": [*recorder.events, *engine.scheduler.take_events()],
            "notes": list(engine.backend.notes),
            "duration_ns": duration_ns,
            "stopped": stopped,
            "num_leapt": engine.scheduler.num_leapt,
        }


class _Drive:
    """The loop of one run."""

    def __init__(
        self,
        engine: Engine,
        recorder: Recorder,
        coming: Iterator[Offer],
        total: int,
        arm: str,
        progress: Progress | None,
        *,
        leap: bool,
    ) -> None:
        self._leap = leap
        self._engine = engine
        self._recorder = recorder
        self._coming = coming
        self._next = next(coming, None)
        self._total = total
        self._arm = arm
        self._progress = progress

    def run(self, max_steps: int | None, until_ns: int | None) -> str | None:
        """To the end, or why it stopped before."""
        try:
            with Interrupts() as interrupts:
                return self._loop(max_steps, until_ns, interrupts)
        except KeyboardInterrupt:
            return "interrupted"
        finally:
            if self._progress is not None:
                self._progress(self._arm, self._recorder.num_ended, self._total)

    def _loop(self, max_steps: int | None, until_ns: int | None, interrupts: Interrupts) -> str | None:
        engine, clock = self._engine, self._engine.clock
        num_steps = 0
        told = 0.0
        while True:
            if interrupts.asked:
                return "interrupted"
            now = clock.now_ns()
            if until_ns is not None and now >= until_ns:
                return "max_seconds"
            while self._next is not None and self._next.request.arrival_ns <= now:
                self._add(self._next)
                self._next = next(self._coming, None)
            if engine.has_unfinished():
                if num_steps == max_steps:
                    return "max_steps"
                leapt = self._leapt(until_ns, None if max_steps is None else max_steps - num_steps)
                if not leapt:
                    engine.advance()
                num_steps += leapt or 1
            elif self._next is None:
                return None
            else:
                arrival = self._next.request.arrival_ns
                interrupts.idle = True
                clock.wait_until_ns(arrival if until_ns is None else min(arrival, until_ns))
                interrupts.idle = False
            if self._progress is not None and time.perf_counter() - told > PROGRESS_S:
                told = time.perf_counter()
                self._progress(self._arm, self._recorder.num_ended, self._total)

    def _leapt(self, until_ns: int | None, max_steps: int | None) -> int:
        """Steps taken at once: up to the next arrival, or the end of the run."""
        if not self._leap:
            return 0
        if self._next is not None:
            arrival = self._next.request.arrival_ns
            until_ns = arrival if until_ns is None else min(arrival, until_ns)
        return self._engine.leap(until_ns, max_steps)

    def offer_rest(self) -> None:
        """Put what never arrived into the records: it was asked for, and is unfinished."""
        while self._next is not None:
            self._recorder.offer(self._next)
            self._next = next(self._coming, None)

    def _add(self, offer: Offer) -> None:
        self._recorder.offer(offer)
        try:
            self._engine.add_request(offer.request, num_output_tokens=offer.num_output_tokens)
        except RequestError as error:
            self._recorder.refuse(offer.request, error)


def checked(workload: Workload, declared: str | int, max_steps: int | None, max_seconds: float | None) -> str:
    """Check what is to be run; the rule for declared limits, in words.

    Raises:
        WorkloadError: the workload is empty, an argument is out of its range, or a prompt cannot be tokenized.
    """
    if not len(workload):
        raise WorkloadError(f"workload {workload.name!r} has no requests: there is nothing to run")
    for name, limit in (("max_steps", max_steps), ("max_seconds", max_seconds)):
        if limit is not None and not limit > 0:
            raise WorkloadError(f"{name} must be above 0, not {limit!r}; leave it out to run to the end")
    return describe_declared(declared, workload)


def about(engine: Engine, workload: Workload, rule: str) -> dict[str, Any]:
    """What a record says of the workload, of declared limits and of predictions."""
    return {
        "workload": _about(workload),
        "declared_max_tokens": rule,
        "predictions": _about_predictions(engine, workload),
    }


def _about_predictions(engine: Engine, workload: Workload) -> str:
    one = engine.predictor
    named = (str(engine.effective.values["predict"]["use"]), one) if one is not None else None
    num_given = sum(row.predicted_output_tokens is not None for row in workload.rows)
    return describe_predictions(named, num_given, len(workload))


def _about(workload: Workload) -> dict[str, Any]:
    return {
        "name": workload.name,
        "source": workload.source,
        "hash": workload.hash,
        "speedup": workload.speedup,
        "num_requests": len(workload),
    }
