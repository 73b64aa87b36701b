"""``batchwright sweep``: arms compared at every point of a grid of settings."""

from __future__ import annotations

from typing import Annotated

import typer

from batchwright.cli.option_groups import takes_groups
from batchwright.cli.options import (
    EngineOptions,
    FolderOptions,
    JobOptions,
    OutputOptions,
    SeedOptions,
    StopOptions,
    TableOptions,
    VerdictOptions,
    WindowOptions,
    WorkloadOptions,
)


@takes_groups
def sweep(
    arms: Annotated[list[str], typer.Argument(metavar="ARM", help="The arms; others are compared with the first.")],
    engine: EngineOptions,
    workload: WorkloadOptions,
    stop: StopOptions,
    window: WindowOptions,
    seeds: SeedOptions,
    verdicts: VerdictOptions,
    job: JobOptions,
    output: OutputOptions,
    files: FolderOptions,
    table: TableOptions,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="NAME=V,V,...",
            help="A setting and the values that it takes, as in max_num_batched_tokens=512,2048. Repeatable: all "
            "combinations are run.",
        ),
    ] = None,
) -> None:
    """Compare policies at every point of a grid of settings.

    An arm is written as for batchwright ab; one alone is measured without a comparison. --over NAME=V,V,... varies a
    field of the config (max_num_batched_tokens, policy.chunk_size), of all arms, or of one with its letter or label in
    front (B.policy.chunk_size); or of the workload: rate, speedup, concurrency, limit, declared_max_tokens, and of a
    synthetic one its keys (prompt, output, burstiness, ...).

    \b
    Examples:
      batchwright sweep vllm_v1 sjf --over max_num_batched_tokens=2048,8192,65536
      batchwright sweep vllm_v1 stall_free --over rate=5,10,20 --seeds 5 --jobs 4
      batchwright sweep vllm_v1 b=stall_free --over b.policy.chunk_size=128,512
      batchwright sweep vllm_v1 lpm --over prefixes=1,8 --over rate=10,40 \\
        --workload synthetic:prefix=512 --metrics mean_ttft_ms,cache_hit_rate
      batchwright sweep vllm_v1 sjf --over speedup=1,2,4 --workload trace.csv \\
        --out sweep --resume

    At each point all arms get the very same requests. There is a table for each metric: a row for each point, a column
    for each arm, and the difference to the first arm, as batchwright ab gives it; all intervals of all points hold
    together. --metrics chooses the tables. The lines below them say at which points the load tells little, and where a
    difference shrinks or grows along an axis.

    Ctrl-C keeps the points that are done. With --out DIR every run is written down as it ends, and --resume goes on
    where it stopped: runs that are there are taken, if they were made from the very same things.

    Exit code: 0; 1 when runs failed, after the tables of the others; 2 for a wrong command line or config; 130 after
    Ctrl-C, which prints what there is.
    """
    from batchwright.cli.designs import hand_over, prepare
    from batchwright.cli.output import check_writable, show_progress
    from batchwright.cli.program import INTERRUPTED, OK
    from batchwright.lab.designs.axis import make_axes
    from batchwright.lab.designs.sweep import run_sweep
    from batchwright.lab.designs.sweep_report import print_sweep
    from batchwright.lab.family import Family
    from batchwright.lab.repetition import parse_seeds
    from batchwright.lab.shown import choose_metrics

    check_writable(output.json_file, "--json")
    axes, chosen = make_axes(over or ()), parse_seeds(seeds.seeds, engine.seed or 0)
    family = Family.parse(verdicts.level, verdicts.primary)
    ground = prepare(arms, engine, workload, stop, window, seeds, job, output.quiet)
    shown = None if table.metrics is None else choose_metrics(table.metrics, ground.metrics.metrics)
    family.check(ground.metrics.metrics)
    details = {
        "over": {axis.name: list(axis.values) for axis in axes},
        "level": family.level,
        "primary": family.primary,
    }
    saved = ground.saved(files, "sweep", chosen, details)
    with show_progress(output.quiet, ground.starting) as progress:
        found = run_sweep(
            ground.setup,
            axes,
            chosen,
            ground.executor,
            family,
            saved,
            progress,
            metrics=ground.metrics,
            keep_records=False,
        )
    error = found.error()
    if error is not None and not any(point.comparison for point in found.points):
        raise error
    hand_over(found, lambda console: print_sweep(found, shown, console), output, saved)
    if error is not None and not found.was_interrupted:
        raise error
    raise typer.Exit(INTERRUPTED if found.was_interrupted else OK)
