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
Confidence = Annotated[
    float, typer.Option("--confidence", metavar="SHARE", help="With which an objective has to be met.")
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
class SourceOptions:
    """Where a workload comes from."""

    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            metavar="SPEC",
            help="A trace (Azure, BurstGPT, Mooncake, Bailian, ShareGPT, or plain JSONL with lengths, prompts or "
            "conversations) or synthetic:rate=4,n=100,prompt=512,output=128; several with ' + ' in between. "
            "Without it, a synthetic one that suits the backend.",
        ),
    ] = None


@dataclass(frozen=True)
class ShapeOptions:
    """What is made of a workload."""

    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Pass over broken rows of a file, and count them in the report.")
    ] = False
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="A:B", help="Take what arrives from A to B seconds of the trace: 600:1200."),
    ] = None
    skip: Annotated[int, typer.Option("--skip", metavar="N", help="Leave the first N requests out.")] = 0
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="Take the first N requests only.")] = None
    chars_per_token: Annotated[
        float | None,
        typer.Option(
            "--chars-per-token",
            metavar="X",
            help="Take texts for made-up tokens, one for X characters: for a simulator, which has no tokenizer.",
        ),
    ] = None
    wait_turns: Annotated[
        str | None,
        typer.Option(
            "--wait-turns",
            metavar="S",
            help="Let each turn of a session wait for the one before it, and S seconds more; 'trace': as long as lay "
            "between the two in the trace.",
        ),
    ] = None
    arrivals: Annotated[
        str | None,
        typer.Option(
            "--arrivals",
            metavar="SPEC",
            help="New arrival times: rate=4,burstiness=0.5,shape=onoff(10,20),seed=1.",
        ),
    ] = None
    rule: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            metavar="RULE",
            help="Give rows priorities, objectives and so on: 'client_id=c0, num_prompt_tokens>2000: priority=1'; "
            "@FILE holds one a line. Repeatable.",
        ),
    ] = None
    rate: Annotated[
        float | None, typer.Option("--rate", metavar="R", help="Stretch arrival times to R requests a second.")
    ] = None
    speedup: Annotated[
        float, typer.Option("--speedup", metavar="X", help="Divide arrival times by X: 2 is twice the load.")
    ] = 1.0


@dataclass(frozen=True)
class OfferOptions:
    """How a workload is offered."""

    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency",
            metavar="N",
            help="A closed loop: N users, each of whom offers the next request when the last has ended.",
        ),
    ] = None
    think: Annotated[
        float | None,
        typer.Option(
            "--think", metavar="S", help="Seconds between the two, with --concurrency; rows may say their own."
        ),
    ] = None
    too_long: Annotated[
        str,
        typer.Option(
            "--too-long",
            metavar="HOW",
            help="What becomes of prompts that leave no room for an output: refuse (the engine says no), clip or drop.",
        ),
    ] = "refuse"
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
class WorkloadOptions(OfferOptions, ShapeOptions, SourceOptions):
    """What is offered."""


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
class FolderOptions:
    """Where the experiment is kept."""

    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Keep the experiment in a folder: records as Parquet, results, report.html, and what it was.",
        ),
    ] = None
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace another experiment that is in the folder of --out.")
    ] = False
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with the experiment in the folder of --out; take the runs that are there."
        ),
    ] = False


@dataclass(frozen=True)
class FileOptions(FolderOptions):
    """What is kept of the runs."""

    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            metavar="DIR",
            help="Write each figure as a PDF of one column with its data as CSV, and the table as LaTeX.",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Write all runs for ui.perfetto.dev: .json, or .json.gz to compress it."
        ),
    ] = None
