"""Running one arm: a workload offered to an engine at its own pace."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from batchwright.backend import VirtualClock
from batchwright.config import EngineConfig
from batchwright.engine import Engine
from batchwright.errors import ConfigError, WorkloadError
from batchwright.lab.arrivals import Arrivals
from batchwright.lab.drive import EngineDrive
from batchwright.lab.drive import Progress as Progress
from batchwright.lab.endpoint.address import is_endpoint
from batchwright.lab.materialize import MODEL, describe_declared, row_place
from batchwright.lab.recorder import Recorder
from batchwright.lab.run_record import RunLimits, RunRecord
from batchwright.lab.stream import RecordStream
from batchwright.lab.workload import Workload
from batchwright.plugins import load_plugins
from batchwright.predictor import describe_predictions

if TYPE_CHECKING:
    from batchwright.backend import Backend
    from batchwright.plugins import Plugins
    from batchwright.policy import Policy


class RunOptions(TypedDict, total=False):
    """How a run is made; what is left out has its default.

    Attributes:
        arm: name in tables; the policy's by default.
        declared: ``max_tokens`` of rows that declare none: ``model`` (all that model and KV pool allow), ``exact``
            (the true output length, which policies can then read) or a number.
        respect_eos: let a sampled end-of-sequence token end a request before its true length.
        seed: of the prompts' token ids. One seed and one vocabulary give one set of prompts, on any arm and backend.
        vocab_size: made-up token ids are below it where the model has more: for one set of prompts beside an endpoint,
            whose vocabulary may not be known.
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
        decisions: a file to which every decision is written, for ``batchwright replay``.
    """

    arm: str | None
    declared: str | int
    respect_eos: bool
    seed: int
    vocab_size: int | None
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
    decisions: Path | None


def run_arm(config: EngineConfig, workload: Workload, **options: Unpack[RunOptions]) -> RunRecord:
    """Offer a workload to an engine, and record what becomes of it.

    In an open loop requests are added when their time has come, however far behind the engine is; in a closed loop, or
    where they wait for each other, when others have ended (see :class:`~batchwright.lab.arrivals.Arrivals`). Idle time
    is waited for, or skipped on a virtual clock. A request that the engine refuses stays in the records, with its
    error. Ctrl-C ends the run after the present step and keeps what is done: the rest is ``unfinished``.

    Args:
        config: of the engine.
        workload: what to offer.
        **options: see :class:`RunOptions`.

    Raises:
        WorkloadError: the workload is empty, an argument is out of its range, or a prompt cannot be tokenized.
        ConfigError, PluginError, BackendError: the engine cannot be made.
        PolicyError: the policy broke a rule, and the config says to raise.
    """
    if is_endpoint(config.backend):
        from batchwright.lab.endpoint.run import run_endpoint

        return run_endpoint(config, workload, **options)
    if config.replicas > 1 or config.router is not None:
        from batchwright.lab.fleet_run import run_fleet

        return run_fleet(config, workload, **options)
    if options.get("backend") is None:
        installed = options["installed"] = options.get("installed") or load_plugins(config.no_plugins)
        own_engine = installed.backend(config.backend.partition(":")[0]).run_arm
        if own_engine is not None:
            return own_engine(config, workload, options)
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
    vocab_size: int | None = None,
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
    decisions: Path | None = None,
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
    with engine, ExitStack() as stack:
        if on_engine is not None:
            on_engine(engine)
        if decisions is not None:
            from batchwright.replay import DecisionRecorder

            stack.enter_context(DecisionRecorder(decisions, engine.scheduler, case=arm or engine.policy_name))
        name = arm if arm is not None else engine.policy_name
        head = {
            "arm": name,
            "backend": engine.backend.name,
            "settings": json.loads(json.dumps(engine.effective.values, default=str)),  # parameters may hold anything
            **about(engine, workload, rule),
            "virtual_time": isinstance(engine.clock, VirtualClock),
            "seed": seed,
        }
        sizes = RunLimits.of(engine)
        begin({**head, "limits": asdict(sizes)})
        arrivals = Arrivals.at(  # before the clock counts
            engine, workload, declared, seed=seed, respect_eos=respect_eos, vocab_size=vocab_size
        )
        start_ns = recorder.start(engine.clock)
        arrivals.start(start_ns)
        drive = EngineDrive(engine, recorder, arrivals, len(workload), name, progress, leap=leap)
        stopped = drive.run(max_steps, None if max_seconds is None else start_ns + round(max_seconds * 1e9))
        engine.collect()  # with overlap a step may be under way
        duration_ns = engine.clock.now_ns() - start_ns
        for offer in arrivals.rest(engine.clock.now_ns()):  # what never arrived was asked for, and is unfinished
            recorder.offer(offer)
        requests = recorder.finish(interrupted=stopped == "interrupted")
        if arrivals.waits:  # in the order of the rows, which is that of other arms
            requests.sort(key=lambda record: row_place(record.request_id))
            recorder.offered.sort(key=lambda record: row_place(record.request_id))
        return {
            **head,
            "limits": sizes,
            "policy": engine.policy_name,
            "requests": requests,
            "events": [*recorder.events, *engine.scheduler.take_events()],
            "notes": [*workload.notes, *arrivals.notes, *engine.backend.notes],
            "duration_ns": duration_ns,
            "stopped": stopped,
            "num_leapt": engine.scheduler.num_leapt,
        }


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
        "workload": about_workload(workload),
        "declared_max_tokens": rule,
        "predictions": _about_predictions(engine, workload),
    }


def _about_predictions(engine: Engine, workload: Workload) -> str:
    one = engine.predictor
    named = (str(engine.effective.values["predict"]["use"]), one) if one is not None else None
    num_given = sum(row.predicted_output_tokens is not None for row in workload.rows)
    return describe_predictions(named, num_given, len(workload))


def about_workload(workload: Workload) -> dict[str, Any]:
    """What a record says of the workload."""
    return {
        "name": workload.name,
        "source": workload.source,
        "hash": workload.hash,
        "speedup": workload.speedup,
        "num_requests": len(workload),
        "arrivals": workload.arrivals,
        "concurrency": workload.concurrency,
    }
