"""``batchwright run``: one arm, its figures and its records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from batchwright.cli.option_groups import takes_groups
from batchwright.cli.options import (
    EngineOptions,
    FileOptions,
    OutputOptions,
    StopOptions,
    TableOptions,
    WindowOptions,
    WorkloadOptions,
)


@takes_groups
def run(
    engine: EngineOptions,
    workload: WorkloadOptions,
    stop: StopOptions,
    window: WindowOptions,
    files: FileOptions,
    table: TableOptions,
    output: OutputOptions,
    arm: Annotated[str, typer.Argument(metavar="[ARM]", help="The policy, or a config file.", show_default=False)] = "",
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="FILE", help="Write every decision, for batchwright replay."),
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option("--explain", metavar="FILE", help="Write why each request ran or not, for batchwright explain."),
    ] = None,
    outputs: Annotated[
        Path | None,
        typer.Option("--outputs", metavar="FILE", help="Write what each request put out, as JSON lines."),
    ] = None,
) -> None:
    """Run one policy on a workload.

    ARM is NAME, NAME:param=value,..., path.py:Class[:param=value,...], or a config file (.yaml, .yml, .toml); without
    it, the policy that --config, the environment or --set names, else prefill_first.

    \b
    Examples:
      batchwright run stall_free --workload trace.csv --limit 1000
      batchwright run vllm_v1 --slo ttft=1.0,tpot=0.05 --json out.json
      batchwright run vllm_v1 --out monday --trace monday.json.gz --metrics all
      batchwright run my_policy.py:Mine --limit 50 --record decisions.jsonl.gz
      batchwright run stall_free --limit 50 --explain why.jsonl
      batchwright run srpt --backend cpu:DIR --workload my.jsonl --outputs a.jsonl

    It prints the figures of the run and what the load was like. --json writes the record of every request and step;
    --out keeps the run in a folder, as Parquet; --trace writes what ran when, for ui.perfetto.dev.
    --record writes what the policy decided in every step; batchwright replay then tells whether it still decides so.
    --explain writes what became of every request in every step and who settled it; batchwright explain tells it.
    --outputs writes the text and the token ids that each request put out: of interest where the workload has prompts or
    conversations of its own.

    Exit code: 0; 1 when requests failed or none finished; 2 for a wrong command line or config; 130 after Ctrl-C, which
    prints what there is.
    """
    from batchwright.cli.experiment import run_experiment

    raise typer.Exit(
        run_experiment(
            [arm],
            engine,
            workload,
            stop,
            output,
            record,
            explain,
            outputs=outputs,
            window=window,
            files=files,
            table=table,
        )
    )
