"""The options that commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

ARM_FORMS = (
    "NAME, NAME:param=value,..., path.py:Class[:param=value,...], a config file (.yaml, .yml, .toml), or a running "
    "server, http://HOST:PORT/v1[#MODEL]"
)

NoPlugin = Annotated[
    list[str] | None, typer.Option("--no-plugin", metavar="NAME", help="Leave an installed plugin out. Repeatable.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@dataclass(frozen=True)
class EngineOptions:
    """Where settings come from."""

    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings of every arm: a YAML or TOML file.")
    ] = None
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=VALUE", help="One setting of every arm, as in max_num_seqs=64. Repeatable."),
    ] = None
    arm_set: Annotated[
        list[str] | None,
        typer.Option(
            "--arm-set",
            metavar="ARM.A.B=VALUE",
            help="One setting of one arm, named by letter (A is the first) or label. Repeatable.",
        ),
    ] = None
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", metavar="BACKEND", help="What executes: sim:llama-3.1-8b@h100, cpu:smollm2-135m, ..."
        ),
    ] = None
    noise: Annotated[
        float | None,
        typer.Option(
            "--noise",
            metavar="SIGMA",
            help="Chance in the step times of a simulator: lognormal, 0.05 is about 5%. Each arm draws its own.",
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Of prompts and of everything else drawn by chance.")
    ] = None
    no_plugin: NoPlugin = None
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            metavar="'NAME: VALUE'",
            help="Send this header to endpoints; $VARIABLE in it is taken from the environment. Repeatable.",
        ),
    ] = None


@dataclass(frozen=True)
class WorkloadOptions:
    """What is offered."""

    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            metavar="SPEC",
            help="A trace (Azure CSV, Mooncake JSONL, plain JSONL with lengths, prompts or conversations) or "
            "synthetic:rate=4,n=100,prompt=512,output=128. "
            "Without it, a synthetic one that suits the backend.",
        ),
    ] = None
    speedup: Annotated[
        float, typer.Option("--speedup", metavar="X", help="Divide arrival times by X: 2 is twice the load.")
    ] = 1.0
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="Take the first N requests only.")] = None
    declared_max_tokens: Annotated[
        str,
        typer.Option(
            "--declared-max-tokens",
            metavar="RULE",
            help="max_tokens of requests that declare none: model (all that fits), exact (the true length, which "
            "makes policies that read it oracles) or a number.",
        ),
    ] = "model"
    respect_eos: Annotated[
        bool, typer.Option("--respect-eos", help="Let end-of-sequence tokens end requests before their true length.")
    ] = False
    slo: Annotated[
        str | None,
        typer.Option(
            "--slo",
            metavar="GOALS",
            help="Objectives of requests that bring none, in seconds: ttft=1.0,tpot=0.05. Goodput counts who met them.",
        ),
    ] = None


@dataclass(frozen=True)
class StopOptions:
    """When a run ends early."""

    max_steps: Annotated[int | None, typer.Option("--max-steps", metavar="N", help="Stop an arm after N steps.")] = None
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", metavar="S", help="Stop an arm after S seconds of its clock.")
    ] = None


@dataclass(frozen=True)
class WindowOptions:
    """Which requests count."""

    warmup: Annotated[
        str | None,
        typer.Option(
            "--warmup",
            metavar="S|N%",
            help="Leave the first requests out of all metrics: those of the first S seconds, or N% of all. They run.",
        ),
    ] = None
    cooldown: Annotated[
        str | None,
        typer.Option(
            "--cooldown", metavar="S|N%", help="The same of the last: who arrives within S seconds of the last arrival."
        ),
    ] = None


@dataclass(frozen=True)
class SeedOptions:
    """How often each arm runs."""

    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            metavar="N",
            help="Run every arm N times, each time with another seed; or 3,5,8: with these. Verdicts are over all.",
        ),
    ] = None
    resample: Annotated[
        bool,
        typer.Option(
            "--resample/--no-resample",
            help="With several seeds: another workload for each (drawn again, or a trace in blocks), or one for all.",
        ),
    ] = True


@dataclass(frozen=True)
class VerdictOptions:
    """How strict verdicts are."""

    level: Annotated[
        float | None,
        typer.Option("--level", metavar="SHARE", help="How sure all intervals are together: 0.95 unless given."),
    ] = None
    primary: Annotated[
        str | None,
        typer.Option(
            "--primary",
            metavar="METRICS",
            help="What it is about, as in mean_itl_ms,p99_ttft_ms: the others are tested more strictly.",
        ),
    ] = None


@dataclass(frozen=True)
class JobOptions:
    """Where runs are executed."""

    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", metavar="N", help="Run so many arms at a time; on a simulator.")
    ] = None
    executor: Annotated[
        str | None,
        typer.Option(
            "--executor",
            metavar="NAME",
            help="serial, processes or ray. Without it, processes where --jobs is more than 1.",
        ),
    ] = None


@dataclass(frozen=True)
class OutputOptions:
    """What is written where."""

    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write records and results to a file.")
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no tables.")] = False
    debug: Debug = False


@dataclass(frozen=True)
class TableOptions:
    """What the table shows."""

    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="NAMES",
            help="Rows of the table, as in ttft,p99_itl_ms,kv_use_mean; all: every metric. Files have all anyway.",
        ),
    ] = None


@dataclass(frozen=True)
class FileOptions:
    """What is kept of the runs."""

    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Keep the experiment in a folder: records as Parquet, results, and what it was.",
        ),
    ] = None
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace another experiment that is in the folder of --out.")
    ] = False
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Write all runs for ui.perfetto.dev: .json, or .json.gz to compress it."
        ),
    ] = None
