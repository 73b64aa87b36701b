"""What ``run`` and ``ab`` share: from a command line to records, a report and an exit code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchwright.cli.arms import Arm, check_one_backend, make_arms
from batchwright.cli.endpoints import check_endpoints, default_label
from batchwright.cli.folders import open_folder
from batchwright.cli.options import (
    EngineOptions,
    FileOptions,
    JobOptions,
    OutputOptions,
    SeedOptions,
    StopOptions,
    TableOptions,
    VerdictOptions,
    WindowOptions,
    WorkloadOptions,
)
from batchwright.cli.output import check_writable, make_console, show_progress
from batchwright.cli.pages import check_figures, write_pages
from batchwright.cli.program import FAILED, INTERRUPTED, OK
from batchwright.cli.workloads import make_workload
from batchwright.engine import Engine
from batchwright.errors import ConfigError
from batchwright.lab import Comparison, Metric, compare, format_report, print_report
from batchwright.lab.executors import Task, choose_executor
from batchwright.lab.experiment import run_tasks
from batchwright.lab.family import Family
from batchwright.lab.outputs import Outputs
from batchwright.lab.perfetto import write_trace
from batchwright.lab.repetition import in_order, parse_seeds, repeated
from batchwright.lab.shown import choose_metrics
from batchwright.lab.window import Window

_ONE_SEED, _USUAL = SeedOptions(), VerdictOptions()
_NO_FILES, _USUAL_TABLE = FileOptions(), TableOptions()


def run_experiment(
    texts: Sequence[str],
    engine: EngineOptions,
    workload: WorkloadOptions,
    stop: StopOptions,
    output: OutputOptions,
    record: Path | None = None,
    explain: Path | None = None,
    job: JobOptions | None = None,
    outputs: Path | None = None,
    *,
    window: WindowOptions,
    seeds: SeedOptions = _ONE_SEED,
    verdicts: VerdictOptions = _USUAL,
    files: FileOptions = _NO_FILES,
    table: TableOptions = _USUAL_TABLE,
) -> int:
    """Run the arms, print the report and write the files; returns the exit code.

    Raises:
        BatchwrightError: something of it cannot be had, or a policy broke a rule; where only some runs failed, after
            the report of the others.
    """
    check_writable(output.json_file, "--json")
    check_writable(record, "--record")
    check_writable(explain, "--explain")
    check_writable(outputs, "--outputs")
    check_writable(files.trace, "--trace")
    check_figures(files.figures)
    job = job if job is not None else JobOptions()
    executor = choose_executor(job.executor, job.jobs)
    which, counted = parse_seeds(seeds.seeds, engine.seed or 0), Window.parse(window.warmup, window.cooldown)
    family = Family.parse(verdicts.level, verdicts.primary)
    arms = make_arms(texts, engine)
    if not texts[0]:  # run without an arm
        arms = [replace(arms[0], label=default_label(arms[0]))]
    metrics = arms[0].plugins.metric_set
    family.check(metrics.metrics)
    rows_shown = None if table.metrics is None else choose_metrics(table.metrics, metrics.metrics)
    check_one_backend(arms)
    _check_one_engine(arms[0], {"--record": record, "--explain": explain, "--outputs": outputs})
    check_endpoints(arms, stop)
    in_real_time = next((arm for arm in arms if arm.is_endpoint), arms[0])
    with show_progress(output.quiet, "reading the workload"):
        rows = make_workload(workload, in_real_time.config.backend, arms[0].plugins)
    options: dict[str, Any] = {
        "declared": workload.declared_max_tokens,
        "respect_eos": workload.respect_eos,
        "max_steps": stop.max_steps,
        "max_seconds": stop.max_seconds,
    }
    collected: list[Outputs] = []
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(show_progress(output.quiet, f"starting {arms[0].config.backend}"))
        tasks = [
            Task(
                arm.label,
                arm.config,
                rows,
                engine.seed or 0,
                options,
                arm.origins,
                _local(arm, stack, record, explain, outputs, collected)
                if executor.name == "serial" and not arm.is_endpoint
                else {},
                window=counted,
            )
            for arm in arms
        ]
        if counted is not None:
            counted.check(rows)
        tasks = repeated(tasks, which, resample=seeds.resample)
        details = {"window": counted, "level": family.level, "primary": family.primary, "resample": seeds.resample}
        saved = open_folder(files, "ab" if len(arms) > 1 else "run", arms, tasks, options, details)
        experiment = run_tasks(tasks, executor, progress, saved=saved)
    runs, error = in_order(experiment.runs, [arm.label for arm in arms]), experiment.error()
    if not runs and error is not None:
        raise error
    with show_progress(output.quiet, "comparing"):
        comparison = compare(runs, seed=engine.seed or 0, family=family, failures=experiment.failures, metrics=metrics)
    if not output.quiet:
        print_comparison(comparison, rows_shown)
    if output.json_file is not None:
        comparison.write_json(output.json_file)
    if saved is not None:
        saved.folder.write_summary(comparison.results())
    write_pages(
        comparison,
        None if saved is None else saved.folder.report_path,
        files.figures,
        [] if saved is None else [saved.folder.experiment()],
        quiet=output.quiet,
    )
    if files.trace is not None:
        write_trace(files.trace, runs)
    for each in collected if runs else ():
        each.write(runs[0])
    if error is not None:
        sys.stdout.flush()
        raise error
    return INTERRUPTED if experiment.was_interrupted else _exit_code(comparison)


def _check_one_engine(arm: Arm, files: dict[str, Path | None]) -> None:
    if arm.is_endpoint:
        for option, path in files.items():
            if path is not None:
                raise ConfigError(
                    f"{option} {path}: it holds what an engine does, and {arm.config.backend} is an endpoint; leave "
                    f"{option} out"
                )
    if arm.has_own_engine:
        for option in ("--explain", "--outputs"):
            if files[option] is not None:
                raise ConfigError(
                    f"{option} {files[option]}: it holds what Batchwright's engine does, and {arm.config.backend} has "
                    f"one of its own; leave {option} out"
                )
    if arm.config.replicas > 1:
        for option, path in files.items():
            if path is not None:
                raise ConfigError(
                    f"{option} {path}: it holds the decisions of one engine, and replicas is {arm.config.replicas}; "
                    f"leave {option} out, or set replicas=1"
                )


def _local(
    arm: Arm,
    stack: contextlib.ExitStack,
    record: Path | None,
    explain: Path | None,
    outputs: Path | None,
    collected: list[Outputs],
) -> dict[str, Any]:
    """What a run in this process is given beside: plugins that are loaded already, files written on the way."""

    def on_engine(engine: Engine) -> None:
        if explain is not None:
            from batchwright.trace import ReasonRecorder

            backend = engine.backend.name
            stack.enter_context(ReasonRecorder(explain, engine.scheduler, arm=arm.label, backend=backend))
        if outputs is not None:
            collected.append(Outputs(outputs, engine))

    beside = {"installed": arm.plugins, "decisions": record}
    return beside if arm.has_own_engine else {**beside, "on_engine": on_engine}


def print_comparison(comparison: Comparison, metrics: Sequence[Metric] | None = None) -> None:
    """Print a comparison; ``metrics`` are the rows of its table."""
    console = make_console()
    if console.is_terminal:
        print_report(comparison, console, metrics)
    else:
        sys.stdout.write(format_report(comparison, console.width, metrics))


def _exit_code(comparison: Comparison) -> int:
    if any(run.stopped == "interrupted" for run in comparison.runs):
        return INTERRUPTED
    for run in comparison.runs:
        status = {r.status for r in run.requests}
        if "failed" in status or "finished" not in status:
            return FAILED
    return OK
