"""What ``run`` and ``ab`` share: from a command line to records, a report and an exit code."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchwright.cli.arms import Arm, check_one_backend, make_arms
from batchwright.cli.options import EngineOptions, OutputOptions, StopOptions, WorkloadOptions
from batchwright.cli.output import check_writable, make_console, show_progress
from batchwright.cli.program import FAILED, INTERRUPTED, OK
from batchwright.cli.workloads import make_workload
from batchwright.engine import Engine
from batchwright.lab import (
    Comparison,
    RunRecord,
    Workload,
    compare,
    format_report,
    print_report,
    run_arm,
)
from batchwright.lab.outputs import Outputs
from batchwright.replay import DecisionRecorder


def run_experiment(
    texts: Sequence[str],
    engine: EngineOptions,
    workload: WorkloadOptions,
    stop: StopOptions,
    output: OutputOptions,
    record: Path | None = None,
    explain: Path | None = None,
    outputs: Path | None = None,
) -> int:
    """Run the arms, print the report and write the files; returns the exit code.

    Raises:
        BatchwrightError: something of it cannot be had, or a policy broke a rule.
    """
    check_writable(output.json_file, "--json")
    check_writable(record, "--record")
    check_writable(explain, "--explain")
    check_writable(outputs, "--outputs")
    arms = make_arms(texts, engine)
    if not texts[0]:  # run without an arm
        arms = [replace(arms[0], label=arms[0].policy().name)]
    check_one_backend(arms)
    rows = make_workload(workload, arms[0].config.backend, arms[0].plugins)
    with show_progress(output.quiet, f"starting {arms[0].config.backend}") as progress:
        options: dict[str, Any] = {
            "declared": workload.declared_max_tokens,
            "respect_eos": workload.respect_eos,
            "seed": engine.seed or 0,
            "max_steps": stop.max_steps,
            "max_seconds": stop.max_seconds,
            "progress": progress,
        }
        runs: list[RunRecord] = []
        try:
            for arm in arms:
                runs.append(_run(arm, rows, options, record, explain, outputs))
                if runs[-1].stopped == "interrupted":
                    break
        except KeyboardInterrupt:  # while an arm was made, before it ran
            if not runs:
                raise
    comparison = compare(runs, seed=engine.seed or 0)
    if not output.quiet:
        _print(comparison)
    if output.json_file is not None:
        comparison.write_json(output.json_file)
    return INTERRUPTED if len(runs) < len(arms) else _exit_code(comparison)


def _run(
    arm: Arm,
    workload: Workload,
    options: Mapping[str, Any],
    record: Path | None,
    explain: Path | None,
    outputs: Path | None,
) -> RunRecord:
    collected: list[Outputs] = []
    with contextlib.ExitStack() as stack:

        def on_engine(engine: Engine) -> None:
            if record is not None:
                stack.enter_context(DecisionRecorder(record, engine.scheduler, case=arm.label))
            if explain is not None:
                from batchwright.trace import ReasonRecorder

                backend = engine.backend.name
                stack.enter_context(ReasonRecorder(explain, engine.scheduler, arm=arm.label, backend=backend))
            if outputs is not None:
                collected.append(Outputs(outputs, engine))

        run = run_arm(
            arm.config,
            workload,
            arm=arm.label,
            origins=arm.origins,
            installed=arm.plugins,
            on_engine=on_engine,
            **options,
        )
    for each in collected:
        each.write(run)
    return run


def _print(comparison: Comparison) -> None:
    console = make_console()
    if console.is_terminal:
        print_report(comparison, console)
    else:
        sys.stdout.write(format_report(comparison, console.width))


def _exit_code(comparison: Comparison) -> int:
    if any(run.stopped == "interrupted" for run in comparison.runs):
        return INTERRUPTED
    for run in comparison.runs:
        status = {r.status for r in run.requests}
        if "failed" in status or "finished" not in status:
            return FAILED
    return OK
