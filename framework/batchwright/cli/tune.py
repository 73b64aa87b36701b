"""``batchwright tune``: the parameters of an arm that serve a goal best."""

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
class TunedWorkload(WorkloadOptions):
    """What is offered, and what has to be met beside the goal."""

    slo: Annotated[
        str | None,
        typer.Option(
            "--slo",
            metavar="'METRIC<V,...'",
            help="What has to be met beside the goal, in quotes: 'itl_p99<0.05', in seconds; ttft=1.0 and tpot=0.05 "
            "among them give requests objectives of their own, which goodput counts.",
        ),
    ] = None


@takes_groups
def tune(
    arm: Annotated[str, typer.Argument(metavar="ARM", help="The policy, or a config file.")],
    engine: EngineOptions,
    workload: TunedWorkload,
    stop: StopOptions,
    window: WindowOptions,
    seeds: SeedOptions,
    job: JobOptions,
    output: OutputOptions,
    files: FolderOptions,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="NAME=SPACE",
            help="A setting and where it is searched, in quotes: int(64,2048,log), float(0,1), int(0,64,step=8), or "
            "values with commas between. Repeatable.",
        ),
    ] = None,
    goal: Annotated[
        str,
        typer.Option("--goal", metavar="METRIC", help="What is to become better, as in request_goodput or ttft_p99."),
    ] = "request_goodput",
    trials: Annotated[
        int, typer.Option("--trials", metavar="N", help="How many sets of parameters to try, in all.")
    ] = 50,
    held_out: Annotated[
        int, typer.Option("--held-out", metavar="N", help="Fresh seeds for the validation of the best.")
    ] = 5,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", help="Trials to suggest at once, so that --jobs has more to run.")
    ] = 1,
    confidence: Confidence = 0.95,
) -> None:
    """Search the parameters of a policy that serve a goal best.

    ARM is NAME, NAME:param=value,..., path.py:Class[:param=value,...], or a config file. --over names a field of the
    config or a parameter of the policy, and where it is searched. It needs Optuna: pip install 'batchwright[tune]'.

    \b
    Examples:
      batchwright tune stall_free --over 'policy.chunk_size=int(64,2048,log)' \\
        --slo ttft=1.0,tpot=0.05
      batchwright tune stall_free --over 'policy.chunk_size=int(64,2048,log)' \\
        --goal ttft_p99 --slo 'itl_p99<0.05' --trials 100 --seeds 5 --jobs 5
      batchwright tune vllm_v1 --over 'max_num_batched_tokens=512,2048,8192' \\
        --over 'max_num_seqs=int(16,256,log)' --goal mean_e2el_ms --out t --resume

    The first trial is the arm as it is given. Each trial runs with several seeds (3, unless --seeds says otherwise);
    the best is the one with the best mean among those that meet every objective of --slo with confidence. Of many
    trials the best looks better than it is, so it is run again beside the arm as it was given, on seeds that no trial
    saw: that comparison is what to believe. The config to use is printed.

    Ctrl-C keeps what is done; with --out DIR the study is kept there, with the runs of the validation, and --resume
    goes on where it stopped, or does more trials.

    Exit code: 0; 1 when no trial met the objectives; 2 for a wrong command line or config; 130 after Ctrl-C, which
    prints what there is.
    """
    from batchwright.cli.designs import hand_over, prepare
    from batchwright.cli.output import check_writable, show_progress
    from batchwright.cli.program import FAILED, INTERRUPTED, OK
    from batchwright.lab.designs.bounds import goals_of, split_slo
    from batchwright.lab.designs.measure import parse_measure
    from batchwright.lab.designs.space import make_spaces
    from batchwright.lab.designs.study import STUDY
    from batchwright.lab.designs.tune import run_tune
    from batchwright.lab.designs.tune_plan import HELD_OUT, TunePlan
    from batchwright.lab.designs.tune_report import print_tuning
    from batchwright.lab.repetition import parse_seeds, seeds_of

    check_writable(output.json_file, "--json")
    offered = replace(workload, slo=goals_of(workload.slo)) if workload.slo is not None else workload
    ground = prepare([arm], engine, offered, stop, window, seeds, job, output.quiet)
    metrics = ground.metrics.metrics
    _, bounds = split_slo(workload.slo, metrics) if workload.slo is not None else (None, ())
    plan = TunePlan(
        spaces=make_spaces(over or ()),
        goal=parse_measure(goal, "goal", metrics),
        bounds=bounds,
        num_trials=trials,
        seeds=tuple(parse_seeds(seeds.seeds if seeds.seeds is not None else "3", engine.seed or 0)),
        held_out=tuple(seeds_of(held_out, HELD_OUT)),
        confidence=confidence,
        batch=batch,
        seed=engine.seed or 0,
    )
    saved = ground.saved(
        files, "tune", plan.seeds, {**plan.about(), "held_out": list(plan.held_out), "slo": workload.slo}
    )
    study = None if saved is None else saved.folder.path / STUDY
    if study is not None and not files.resume:
        study.unlink(missing_ok=True)
    with show_progress(output.quiet, ground.starting) as progress:
        found = run_tune(ground.setup, plan, ground.executor, study, saved, progress, ground.metrics)
    hand_over(found, lambda console: print_tuning(found, console), output, saved)
    raise typer.Exit(INTERRUPTED if found.was_interrupted else OK if found.best is not None else FAILED)
