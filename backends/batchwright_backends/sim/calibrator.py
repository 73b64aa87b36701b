"""``batchwright calibrate``: from measurements to a machine for ``sim:FILE``, with what is known of its errors."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import PositiveInt

from batchwright.calibration import CalibrationReport, CalibrationSettings, Residual
from batchwright.errors import ConfigError, WorkloadError
from batchwright.lab import RunRecord
from batchwright_backends.sim.calibration import TERMS_OF_REGIMES, calibrate
from batchwright_backends.sim.checked import Checked, check
from batchwright_backends.sim.coverage import missing_terms, steps_covered, tables_covered
from batchwright_backends.sim.gpus import KERNEL_TERMS, Gpu
from batchwright_backends.sim.kernel_tables import FILES, read_tables
from batchwright_backends.sim.log_fit import fit_host
from batchwright_backends.sim.machine_file import machine_text
from batchwright_backends.sim.memory import memory_for
from batchwright_backends.sim.models import find_model, model_names
from batchwright_backends.sim.recorded_steps import recorded_steps
from batchwright_backends.sim.request_log import EXPECTED, read_request_log
from batchwright_backends.sim.run_fit import fit_steps, plain_machine
from batchwright_backends.sim.shape import ModelShape
from batchwright_backends.sim.target import Machine, parse_target

_SOURCES = (
    f"a folder of kernel tables ({FILES}), a run's records (FILE.json, by batchwright run --json FILE.json), or the "
    f"request log of a vLLM run (FILE.jsonl, each line an object with {EXPECTED})"
)
_BASE = "such as --base llama-3.1-8b@h100, or a sim file"


class CalibrateOptions(Checked):
    """Options of a calibration.

    Attributes:
        files: with which the names of the tables begin, where a folder holds those of several GPUs.
        max_kv_tokens: attention rows that read more are left out.
        arm: of files with several runs, the only one to take.
        policy: with which a request log is replayed.
    """

    files: str = ""
    max_kv_tokens: PositiveInt | None = None
    arm: str | None = None
    policy: str = "vllm_v1"


def calibrate_simulator(settings: CalibrationSettings) -> CalibrationReport:
    """Fit the simulator's constants to whatever the source is.

    Raises:
        ConfigError: the source is nothing that can be read, a base is missing, or an option is unknown.
    """
    options = check(CalibrateOptions, settings.options, "options of calibrate")
    source = settings.source
    if settings.more and {path.suffix for path in (source, *settings.more)} != {".json"}:
        raise ConfigError(
            "several sources are fitted together where all are records of runs (.json); give one otherwise"
        )
    if source.is_dir():
        return from_tables(source, _machine(settings.base, "kernel tables say neither model nor GPU"), options)
    if not source.is_file():
        raise ConfigError(f"there is nothing at {str(source)!r}; calibrate reads {_SOURCES}")
    if source.suffix == ".jsonl":
        base = settings.base
        machine = _machine(base, "a request log says nothing of kernels")
        return from_log(source, str(base), machine, options)
    if source.suffix == ".json":
        runs = [run for file in (source, *settings.more) for run in read_runs(file, options.arm)]
        return from_runs(runs, None if settings.base is None else parse_target(settings.base), str(source))
    raise ConfigError(f"{str(source)!r} is neither a folder nor .json nor .jsonl; calibrate reads {_SOURCES}")


def from_tables(folder: Path, base: Machine, options: CalibrateOptions) -> CalibrationReport:
    """Fit kernels to a folder of tables."""
    tables = read_tables(folder, base.shape, options.files)
    done = calibrate(tables, base.shape, base.gpu, max_kv_tokens=options.max_kv_tokens)
    source = f"kernel tables in {folder.name}, {options.files}*" if options.files else f"kernel tables in {folder.name}"
    terms = {
        term: {
            **constants,
            "source": source,
            "residual": judged({r: found for r, found in done.held_out.items() if TERMS_OF_REGIMES[r] == term}),
            "date": _today(),
        }
        for term, constants in done.terms.items()
    }
    gpu = _updated(base.gpu, terms)
    kept = missing_terms(done.terms, base.gpu)
    beyond = tables_covered(tables)
    return CalibrationReport(
        done.held_out,
        done.fitted,
        [f"fitted to {source}, from {base.shape.name} on {base.gpu.name}; every fifth row was kept from it", *kept],
        beyond,
        _text(base.shape, gpu, base, [f"Fitted by batchwright calibrate to {source}.", *kept, *beyond]),
    )


def from_runs(runs: Sequence[RunRecord], base: Machine | None, where: str) -> CalibrationReport:
    """Fit a machine to the steps of recorded runs of a real backend.

    Args:
        runs: their records, at least one, all of one backend.
        base: where the fit starts; None: the model is the runs', and nothing is known of the machine.
        where: the file, for messages.

    Raises:
        ConfigError: a run was simulated, they are of several backends, have too few steps, or their model is unknown.
    """
    first = runs[0]
    for run in runs:
        if run.virtual_time:
            raise ConfigError(f"{where}: {run.backend} has simulated time; record a run on cpu or cuda")
        if run.backend != first.backend:
            raise ConfigError(f"{where}: runs of {first.backend} and {run.backend} cannot be fitted together")
    shape = base.shape if base is not None else _model_of(first, where)
    steps = [step for run in runs for step in recorded_steps(run.steps, run.requests)]
    if not steps:
        raise ConfigError(f"{where}: no step of the run can be told from its records; record a longer run")
    limits = first.limits
    if base is None:
        memory = memory_for(
            shape, limits.num_blocks, limits.block_size, limits.max_num_batched_tokens, limits.max_num_seqs
        )
        start = plain_machine(first.backend.partition(":")[0], shape, steps, memory)
    else:
        start = base.gpu
    done = fit_steps(shape, steps, start, base.tensor_parallel if base is not None else 1)
    said = "; ".join(f"{run.policy} on {run.workload.get('name', 'a workload')}" for run in runs)
    source = f"recorded steps of {first.backend}: {said}"
    terms = {
        term: {"source": source, "residual": judged(done.held_out), "date": _today()}
        for term in dict.fromkeys(name.partition(".")[0] for name in done.constants)
    }
    gpu = _updated(done.gpu, terms)
    num_steps = sum(len(run.steps) for run in runs)
    notes = [
        f"fitted to {len(steps)} {source}; every fifth was kept from it",
        f"the sum of those kept is predicted {100 * abs(done.total):.1f}% too {'long' if done.total > 0 else 'short'}",
    ]
    if len(steps) < num_steps:
        left_out = num_steps - len(steps)
        notes.append(f"{left_out} of {num_steps} steps were left out: their batch is not certain from the records")
    beyond = steps_covered(steps)
    return CalibrationReport(
        done.held_out,
        done.fitted,
        notes,
        beyond,
        _text(shape, gpu, base, [f"Fitted by batchwright calibrate: {notes[0]}.", *beyond]),
    )


def from_log(file: Path, target: str, base: Machine, options: CalibrateOptions) -> CalibrationReport:
    """Fit the host's time to the request log of a real run."""
    log = read_request_log(file)
    done = fit_host(log, target, options.policy, (base.gpu.host.step_s, base.gpu.host.request_s))
    source = f"the request log {file.parent.name}/{file.name}, replayed with {options.policy} on sim:{target}"
    host = {
        "step_s": done.step_s,
        "request_s": done.request_s,
        "source": source,
        "residual": judged(done.held_out),
        "date": _today(),
    }
    limits = ", ".join(f"{name} {value}" for name, value in log.limits.items() if not isinstance(value, Mapping))
    notes = [
        f"fitted host.step_s and host.request_s to {len(log.requests)} requests of {source}; every fifth was kept",
        f"limits of the replay: {limits or 'those of a default engine, since no meta.json lies beside the log'}",
    ]
    longest = max(r.num_prompt_tokens + r.num_output_tokens for r in log.requests)
    beyond = [
        "kernels are those of the base: an error of theirs is charged to the host",
        f"requests of more than {longest} tokens, and other limits, were not seen",
    ]
    return CalibrationReport(
        done.held_out,
        done.fitted,
        notes,
        beyond,
        _text(base.shape, _updated(base.gpu, {"host": host}), base, [f"By batchwright calibrate: {n}." for n in notes]),
    )


def read_run(file: Path, arm: str | None = None) -> RunRecord:
    """The one run of a file that ``batchwright run --json`` wrote, or an arm of one by ``ab --json``.

    Raises:
        ConfigError: it is no such file, or holds several runs and ``arm`` names none.
    """
    runs = read_runs(file, arm)
    if len(runs) > 1:
        raise ConfigError(f"{str(file)!r} holds the arms {', '.join(run.arm for run in runs)}; name one")
    return runs[0]


def read_runs(file: Path, arm: str | None = None) -> list[RunRecord]:
    """The runs of a file that ``batchwright run --json`` or ``ab --json`` wrote, all or those of one arm.

    Raises:
        ConfigError: it is no such file, or holds no run of that arm.
    """
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        given = values.get("runs", [values])
        runs = [RunRecord.from_json(value) for value in given]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, TypeError, KeyError, AttributeError, WorkloadError) as e:
        raise ConfigError(
            f"{str(file)!r} holds no run's records ({e}); write them with batchwright run ... --json FILE.json"
        ) from None
    chosen = [run for run in runs if arm in (None, run.arm)]
    if not chosen:
        raise ConfigError(f"{str(file)!r} holds the arms {', '.join(run.arm for run in runs)}, and no {arm!r}")
    return chosen


def judged(residuals: Mapping[str, Residual]) -> str:
    """Residuals as files hold them."""
    return "held-out rows, " + "; ".join(f"{regime}: {r}" for regime, r in residuals.items())


def _machine(base: str | None, why: str) -> Machine:
    if base is None:
        raise ConfigError(f"{why}: name a machine to start from, {_BASE}")
    return parse_target(base.removeprefix("sim:"))


def _model_of(run: RunRecord, where: str) -> ModelShape:
    model = run.backend.partition(":")[2]
    try:
        return find_model(model)
    except ConfigError as error:
        raise ConfigError(
            f"{where}: the shape of {model!r} is not known ({error}); name a model and a machine to start from, {_BASE}"
        ) from None


def _updated(gpu: Gpu, terms: Mapping[str, Mapping[str, Any]]) -> Gpu:
    changed: dict[str, Any] = {term: getattr(gpu, term).model_copy(update=dict(v)) for term, v in terms.items()}
    changed["uncalibrated"] = gpu.uncalibrated and not set(KERNEL_TERMS) <= set(terms)
    return gpu.model_copy(update=changed)


def _text(shape: ModelShape, gpu: Gpu, base: Machine | None, says: Sequence[str]) -> str:
    known = shape.name in model_names() and find_model(shape.name) == shape
    return machine_text(
        shape.name if known else shape.model_dump(mode="json", exclude_defaults=True),
        gpu.model_dump(mode="json", exclude_defaults=True),
        tensor_parallel=base.tensor_parallel if base is not None else 1,
        options=base.options if base is not None else None,
        says=says,
    )


def _today() -> str:
    return datetime.date.today().isoformat()
