"""``batchwright ab --agree``: the same arms on two backends."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from batchwright.cli.arms import Arm, make_arms
from batchwright.cli.options import (
    EngineOptions,
    OutputOptions,
    SeedOptions,
    StopOptions,
    VerdictOptions,
    WindowOptions,
    WorkloadOptions,
)
from batchwright.cli.output import check_writable, make_console, show_progress
from batchwright.cli.program import FAILED, INTERRUPTED, OK
from batchwright.cli.workloads import make_workload
from batchwright.errors import ConfigError
from batchwright.lab import Comparison, compare, format_report, print_report
from batchwright.lab.agree import BackendsCompared, compare_backends
from batchwright.lab.agree_report import format_agreement, print_agreement
from batchwright.lab.executors import Task
from batchwright.lab.executors.serial import Serial
from batchwright.lab.experiment import run_tasks
from batchwright.lab.family import Family
from batchwright.lab.repetition import in_order, parse_seeds, repeated
from batchwright.lab.window import Window

_EXAMPLE = "--backend sim:llama-3.1-8b@h100,cpu:smollm2-135m"
_BETWEEN = re.compile(r",\s*(?=[\w-]+:)")  # a comma in front of a backend's name; others belong to a path


def run_agreement(
    texts: Sequence[str],
    engine: EngineOptions,
    workload: WorkloadOptions,
    stop: StopOptions,
    output: OutputOptions,
    *,
    window: WindowOptions,
    seeds: SeedOptions,
    verdicts: VerdictOptions,
) -> int:
    """Run the arms on both backends, print where the differences agree and write the file; returns the exit code.

    Raises:
        BatchwrightError: something of it cannot be had, or a policy broke a rule.
    """
    check_writable(output.json_file, "--json")
    backends = split_backends(engine.backend)
    arms = [_arms(texts, engine, backend) for backend in backends]
    # A workload that suits a real model is no trouble to a simulator.
    real = next((name for name in backends if not name.startswith("sim:")), backends[0])
    rows = make_workload(workload, real, arms[0][0].plugins)
    which, counted = parse_seeds(seeds.seeds, engine.seed or 0), Window.parse(window.warmup, window.cooldown)
    family = Family.parse(verdicts.level, verdicts.primary)
    if counted is not None:
        counted.check(rows)
    options: dict[str, Any] = {
        "declared": workload.declared_max_tokens,
        "respect_eos": workload.respect_eos,
        "max_steps": stop.max_steps,
        "max_seconds": stop.max_seconds,
    }
    comparisons: list[Comparison] = []
    whole = True
    for own in arms:
        tasks = [
            Task(
                arm.label,
                arm.config,
                rows,
                engine.seed or 0,
                options,
                arm.origins,
                {"installed": arm.plugins},
                window=counted,
            )
            for arm in own
        ]
        with show_progress(output.quiet, f"starting {own[0].config.backend}") as progress:
            experiment = run_tasks(repeated(tasks, which, resample=seeds.resample), Serial(), progress)
        error = experiment.error()
        if error is not None:
            raise error
        runs = in_order(experiment.runs, [arm.label for arm in own])
        comparisons.append(compare(runs, seed=engine.seed or 0, family=family))
        if experiment.was_interrupted:
            whole = False
            break
    return _finish(comparisons, whole, output)


def split_backends(text: str | None) -> tuple[str, str]:
    """The two backends of ``--backend A,B``.

    Raises:
        ConfigError: there are not two different ones.
    """
    names = _named(text)
    if len(names) != 2 or names[0] == names[1]:
        said = f"--backend {text}" if text else "no --backend"
        raise ConfigError(
            f"--agree holds two backends to each other, and there is {said}; write both, as in {_EXAMPLE}"
        )
    return names[0], names[1]


def check_one_named(text: str | None) -> None:
    """Without ``--agree`` there is one backend.

    Raises:
        ConfigError: there are several.
    """
    if len(_named(text)) > 1:
        raise ConfigError(f"--backend {text} names several backends: add --agree to compare two, or name one")


def _named(text: str | None) -> list[str]:
    return [name.strip() for name in _BETWEEN.split(text or "") if name.strip()]


def _arms(texts: Sequence[str], engine: EngineOptions, backend: str) -> list[Arm]:
    arms = make_arms(texts, replace(engine, backend=backend))
    for arm in arms:
        if arm.config.backend != backend:
            raise ConfigError(
                f"arm {arm.letter} runs on {arm.config.backend}, which its own settings say: --agree runs every arm on "
                "both backends, so leave backend out of files and --arm-set"
            )
    return arms


def _finish(comparisons: Sequence[Comparison], whole: bool, output: OutputOptions) -> int:
    if not whole:
        # What there is of the first backend, as ab prints it; a difference needs both arms on both.
        if not output.quiet:
            _print_comparison(comparisons[0])
        if output.json_file is not None:
            comparisons[0].write_json(output.json_file)
        return INTERRUPTED
    compared = compare_backends(comparisons[0], comparisons[1])
    if not output.quiet:
        _print_agreement(compared)
    if output.json_file is not None:
        compared.write_json(output.json_file)
    return _exit_code(compared)


def _print_comparison(comparison: Comparison) -> None:
    console = make_console()
    if console.is_terminal:
        print_report(comparison, console)
    else:
        sys.stdout.write(format_report(comparison, console.width))


def _print_agreement(compared: BackendsCompared) -> None:
    console = make_console()
    if console.is_terminal:
        print_agreement(compared, console)
    else:
        sys.stdout.write(format_agreement(compared, console.width))


def _exit_code(compared: BackendsCompared) -> int:
    runs = [run for comparison in compared.comparisons for run in comparison.runs]
    if any(run.stopped == "interrupted" for run in runs):
        return INTERRUPTED
    for run in runs:
        status = {r.status for r in run.requests}
        if "failed" in status or "finished" not in status:
            return FAILED
    return FAILED if compared.opposite else OK
