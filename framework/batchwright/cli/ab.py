"""``batchwright ab``: policies side by side on the very same requests."""

from __future__ import annotations

from typing import Annotated

import typer

from batchwright.cli.option_groups import takes_groups
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


@takes_groups
def ab(
    arms: Annotated[list[str], typer.Argument(metavar="ARM", help="The arms; others are compared with A.")],
    engine: EngineOptions,
    workload: WorkloadOptions,
    stop: StopOptions,
    window: WindowOptions,
    seeds: SeedOptions,
    verdicts: VerdictOptions,
    job: JobOptions,
    files: FileOptions,
    table: TableOptions,
    output: OutputOptions,
    agree: Annotated[
        bool, typer.Option("--agree", help="Run on two backends, and tell where the differences agree.")
    ] = False,
) -> None:
    """Compare policies on the very same requests.

    An arm is NAME, NAME:param=value,..., path.py:Class[:param=value,...], or a config file (.yaml, .yml, .toml). Write
    LABEL=ARM to give it a label of your own. All arms run on one backend, one after the other, or with --jobs several
    at a time.

    \b
    Examples:
      batchwright ab prefill_first stall_free:chunk_size=512
      batchwright ab prefill_first vllm_v1 --workload trace.csv --speedup 2
      batchwright ab base=prefill_first mine=my.py:Mine --backend cpu:smollm2-135m
      batchwright ab a.yaml b.yaml --set max_num_seqs=64 --arm-set B.block_size=32
      batchwright ab vllm_v1 b=vllm_v1 --set replicas=8 --arm-set b.router=random
      batchwright ab vllm_v1 stall_free plas --workload trace.csv --jobs 3
      batchwright ab vllm_v1 stall_free --seeds 5 --noise 0.05 --warmup 10%
      batchwright ab vllm_v1 vtc --out monday --metrics ttft,jain_fairness
      batchwright ab prefill_first lpm --backend sim:mine.yaml,cpu:DIR --agree

    The table has a column for each arm and a row for each metric. Every arm is compared with A: the difference, its
    interval, and "better" or "worse" where that leaves out zero; without these words this run does not show a
    difference. The lines below the table say what the load could show: one in which nobody waits, or which no arm can
    keep up with, tells little about policies, whatever the figures say.

    --seeds N runs every arm N times. A seed varies prompts, a simulator's noise and the workload: a synthetic one is
    drawn again, a trace is put together anew from blocks of itself; all arms of a seed get the same requests. Figures
    are then means over the seeds, throughputs and counts get intervals too, and verdicts are of more than one run. On a
    real clock the arms take turns.

    --jobs and --executor spread the runs of a simulator over processes or over Ray; the records are the same. A run
    that fails is named, with its arm and seed, and the others are reported.

    --out DIR keeps the experiment: every run's records as Parquet, written as it ends, metrics and verdicts in
    summary.json, and in experiment.json what it was and where it ran. A folder of another experiment is not written
    over. --trace FILE writes every step and request of all runs for ui.perfetto.dev. --metrics names the table's rows.

    --agree takes two backends, as in --backend A,B: all arms run on both, and each metric has both differences with
    their intervals, whether they have the same sign, and whether the intervals overlap.

    Exit code: 0; 1 when requests failed, none finished, or two backends contradict each other; 2 for a wrong command
    line or config; 130 after Ctrl-C, which prints what there is.
    """
    from batchwright.cli.agreement import check_one_named, run_agreement
    from batchwright.cli.experiment import run_experiment
    from batchwright.errors import ConfigError

    if len(arms) < 2:
        raise ConfigError(
            f"ab compares two arms or more, and {arms[0]!r} is one; add another, or use batchwright run {arms[0]}"
        )
    if agree:
        if job.jobs is not None or job.executor is not None:
            raise ConfigError("--agree runs all arms one after the other: leave --jobs and --executor out")
        given = {"--out": files.out, "--trace": files.trace, "--metrics": table.metrics}
        for option, value in given.items():
            if value is not None:
                raise ConfigError(f"--agree has a table of its own, and writes --json only: leave {option} out")
        raise typer.Exit(
            run_agreement(arms, engine, workload, stop, output, window=window, seeds=seeds, verdicts=verdicts)
        )
    check_one_named(engine.backend)
    raise typer.Exit(
        run_experiment(
            arms,
            engine,
            workload,
            stop,
            output,
            job=job,
            window=window,
            seeds=seeds,
            verdicts=verdicts,
            files=files,
            table=table,
        )
    )
