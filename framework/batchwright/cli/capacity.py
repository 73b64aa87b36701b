"""``batchwright capacity``: the largest load at which each arm meets its objectives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from batchwright.cli.option_groups import takes_groups
from batchwright.cli.options import (
    Confidence,
    EngineOptions,
    FolderOptions,
    JobOptions,
    OutputOptions,
    SeedOptions,
    StopOptions,
    WindowOptions,
    WorkloadOptions,
)


@dataclass(frozen=True)
class ScaledWorkload(WorkloadOptions):
    """What is offered, faster and slower, and what has to be met."""

    slo: Annotated[
        str | None,
        typer.Option(
            "--slo",
            metavar="'METRIC<V,...'",
            help="What has to be met, in quotes: 'ttft_p99<1.0,itl_p99<0.05,goodput>0.95', in seconds; ttft=1.0 and "
            "tpot=0.05 among them give requests objectives of their own, which goodput counts.",
        ),
    ] = None


@takes_groups
def capacity(
    arms: Annotated[list[str], typer.Argument(metavar="ARM", help="The arms; others are compared with the first.")],
    engine: EngineOptions,
    workload: ScaledWorkload,
    stop: StopOptions,
    window: WindowOptions,
    seeds: SeedOptions,
    job: JobOptions,
    output: OutputOptions,
    files: FolderOptions,
    confidence: Confidence = 0.95,
    tolerance: Annotated[
        float, typer.Option("--tolerance", metavar="SHARE", help="The search ends within this share of the edge.")
    ] = 0.05,
    lowest: Annotated[
        float | None,
        typer.Option("--lowest", metavar="R", help="The lowest load to try, in requests a second, or users."),
    ] = None,
    highest: Annotated[
        float | None, typer.Option("--highest", metavar="R", help="The highest load to try, likewise.")
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            "--duration",
            metavar="S",
            help="Offer each load for S seconds: how many requests these are follows from the rate.",
        ),
    ] = None,
) -> None:
    """Find the largest load at which policies meet their objectives.

    An arm is written as for batchwright ab. The workload's arrivals are made faster and slower until one load meets
    every objective of --slo and the next does not. The load is tried as it is, doubled or halved until the edge is in
    between, and then halved in; loads beside the edge are tried too, to notice where the answer is not monotone. In a
    closed loop (--concurrency N) the load is the number of users, from N up and down, each with as many requests.

    Without --duration each load has as many requests as the workload, so that a high rate is a short run, in which a
    backlog has little time to grow.

    \b
    Examples:
      batchwright capacity vllm_v1 stall_free --slo 'ttft_p99<1,itl_p99<0.05'
      batchwright capacity vllm_v1 --slo 'ttft=1,tpot=0.05,goodput>0.95' --jobs 4
      batchwright capacity vllm_v1 sjf --slo 'ttft_p99<1' --duration 120
      batchwright capacity vllm_v1 sjf --slo 'ttft_p99<1' --concurrency 16
      batchwright capacity vllm_v1 srpt --slo 'p99_ttft_ms<2000' \\
        --workload trace.csv --tolerance 0.02
      batchwright capacity vllm_v1 vtc --slo 'e2el_p99<30' --out edge --resume

    Each load is run with several seeds (5, unless --seeds says otherwise), the same for all arms and loads. An
    objective counts as met when the end of the interval of its mean over seeds meets it. Metrics are named as in the
    JSON (p99_ttft_ms<1000, request_goodput>4) or short and in seconds (ttft_p99<1.0; any of p1 to p99.9, mean,
    median); goodput and finished are shares of all requests that were offered, refused and failed ones among them.

    The table gives for each arm its capacity, the first load that fails, and what limits it there. The lines below
    compare the arms seed by seed: how many times the load of the first arm each carries, with an interval over seeds.

    Ctrl-C keeps what is done; with --out DIR every run is written down as it ends, and --resume goes on where it
    stopped.

    Exit code: 0; 1 when an arm failed, or meets its objectives at no load; 2 for a wrong command line or config; 130
    after Ctrl-C, which prints what there is.
    """
    from batchwright.cli.designs import hand_over, prepare
    from batchwright.cli.output import check_writable, show_progress
    from batchwright.cli.program import FAILED, INTERRUPTED, OK
    from batchwright.errors import ConfigError
    from batchwright.lab.designs.bounds import EXAMPLE, goals_of, split_slo
    from batchwright.lab.designs.capacity import run_capacity
    from batchwright.lab.designs.capacity_plan import CapacityPlan
    from batchwright.lab.designs.capacity_report import print_capacity
    from batchwright.lab.repetition import parse_seeds

    check_writable(output.json_file, "--json")
    if workload.slo is None:
        raise ConfigError(f"capacity needs to know what has to be met: give --slo '{EXAMPLE}'")
    offered = replace(workload, slo=goals_of(workload.slo))
    ground = prepare(arms, engine, offered, stop, window, seeds, job, output.quiet)
    _, bounds = split_slo(workload.slo, ground.metrics.metrics)
    if not bounds:
        raise ConfigError(
            f"--slo {workload.slo} gives requests objectives, and says not how many have to meet them: add one, as in "
            f"--slo '{workload.slo},goodput>0.95'"
        )
    chosen = parse_seeds(seeds.seeds if seeds.seeds is not None else "5", engine.seed or 0)
    plan = CapacityPlan.of(ground.setup.workload, bounds, chosen, confidence, tolerance, lowest, highest, duration)
    details = {
        "slo": workload.slo,
        "confidence": confidence,
        "tolerance": tolerance,
        "lowest": plan.lowest,
        "highest": plan.highest,
        "duration_s": plan.duration_s,
    }
    saved = ground.saved(files, "capacity", chosen, details)
    with show_progress(output.quiet, ground.starting) as progress:
        found = run_capacity(ground.setup, plan, ground.executor, saved, progress, ground.metrics)
    error = found.error()
    if error is not None and not any(arm.points for arm in found.arms):
        raise error
    hand_over(found, lambda console: print_capacity(found, console), output, saved)
    if found.was_interrupted:
        raise typer.Exit(INTERRUPTED)
    if error is not None:
        raise error
    raise typer.Exit(OK if all(arm.low is not None for arm in found.arms) else FAILED)
