"""What ``sweep``, ``capacity`` and ``tune`` share: from a command line to a setup, a folder and a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from batchwright.cli.arms import Arm, check_one_backend, make_arms
from batchwright.cli.endpoints import check_endpoints
from batchwright.cli.folders import open_saved
from batchwright.cli.options import (
    EngineOptions,
    FolderOptions,
    JobOptions,
    OutputOptions,
    SeedOptions,
    StopOptions,
    WindowOptions,
    WorkloadOptions,
)
from batchwright.cli.output import make_console, show_progress
from batchwright.cli.pages import write_design
from batchwright.cli.workloads import REAL, SIMULATED, make_workload
from batchwright.lab.designs.answer import Answer
from batchwright.lab.designs.changed_load import SYNTHETIC_KEYS, synthetic_with
from batchwright.lab.designs.setup import Setup
from batchwright.lab.executors import Executor, choose_executor
from batchwright.lab.plugin_metrics import MetricSet
from batchwright.lab.printing import as_text
from batchwright.lab.saved_runs import SavedRuns
from batchwright.lab.window import Window
from batchwright.lab.workload import Workload


@dataclass(frozen=True)
class Ground:
    """What a design starts from.

    Attributes:
        arms: of the command line.
        setup: the same, with what is offered to them.
        executor: runs them.
        metrics: those of plugins, beside the built-in ones.
    """

    arms: Sequence[Arm]
    setup: Setup
    executor: Executor
    metrics: MetricSet

    @property
    def starting(self) -> str:
        """What progress says until something reports."""
        return f"starting {self.arms[0].config.backend}"

    def saved(
        self, files: FolderOptions, design: str, seeds: Sequence[int], details: Mapping[str, Any]
    ) -> SavedRuns | None:
        """The folder of ``--out``; None: nothing is kept.

        Raises:
            ConfigError: it holds something else, or cannot be written.
        """
        setup = self.setup
        window = None if setup.window is None else list(setup.window)
        about = {**details, "window": window, "resample": setup.resample}
        return open_saved(files, design, self.arms, setup.workload, seeds, setup.options, about)


def prepare(
    texts: Sequence[str],
    engine: EngineOptions,
    workload: WorkloadOptions,
    stop: StopOptions,
    window: WindowOptions,
    seeds: SeedOptions,
    job: JobOptions,
    quiet: bool = False,
) -> Ground:
    """From the options of a command line; ``quiet`` shows no progress.

    Raises:
        BatchwrightError: something of it cannot be had.
    """
    executor = choose_executor(job.executor, job.jobs)
    counted = Window.parse(window.warmup, window.cooldown)
    arms = make_arms(texts, engine)
    check_one_backend(arms)
    check_endpoints(arms, stop)
    real = next((arm for arm in arms if arm.is_endpoint), arms[0])
    make = _maker(workload, real)
    with show_progress(quiet, "reading the workload"):
        rows = make({})
    if counted is not None:
        counted.check(rows)
    serial = executor.name == "serial"
    setup = Setup(
        {arm.label: arm.config for arm in arms},
        rows,
        {
            "declared": workload.declared_max_tokens,
            "respect_eos": workload.respect_eos,
            "max_steps": stop.max_steps,
            "max_seconds": stop.max_seconds,
        },
        {arm.label: arm.origins for arm in arms},
        {arm.label: {"installed": arm.plugins} for arm in arms if serial and not arm.is_endpoint},
        counted,
        engine.seed or 0,
        seeds.resample,
        make,
    )
    return Ground(arms, setup, executor, arms[0].plugins.metric_set)


def _maker(options: WorkloadOptions, arm: Arm) -> Callable[[Mapping[str, Any]], Workload]:
    """Makes the workload anew with some fields changed, by all that the command line says of it."""
    usual = SIMULATED if arm.config.backend.startswith("sim:") else REAL
    spec = options.workload if options.workload is not None else usual

    def make(values: Mapping[str, Any]) -> Workload:
        keys = {name: value for name, value in values.items() if name in SYNTHETIC_KEYS}
        changed = replace(options, workload=synthetic_with(spec, keys) if keys else spec)
        if "speedup" in values:
            changed = replace(changed, speedup=values["speedup"], rate=None)
        if "rate" in values:
            changed = replace(changed, rate=values["rate"], speedup=1.0)
        changed = replace(changed, **{name: values[name] for name in ("limit", "concurrency") if name in values})
        return make_workload(changed, arm.config.backend, arm.plugins)

    return make


def hand_over(
    found: Answer, print_to: Callable[[Console], None], output: OutputOptions, saved: SavedRuns | None
) -> None:
    """Print an answer, and write the files that were asked for.

    Args:
        found: the answer.
        print_to: prints it to a console.
        output: what the command line says of it.
        saved: the folder of ``--out``, which gets a summary and a page.

    Raises:
        OSError: a file cannot be written.
    """
    if not output.quiet:
        console = make_console()
        if console.is_terminal:
            print_to(console)
        else:
            sys.stdout.write(as_text(print_to, console.width))
    if output.json_file is not None:
        found.write_json(output.json_file)
    if saved is not None:
        saved.folder.write_summary(found.to_json())
        write_design(saved.folder, saved.folder.report_path, None, quiet=output.quiet)
