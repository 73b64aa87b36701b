"""``batchwright play``: a run in the terminal, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchwright.cli.option_groups import takes_groups
from batchwright.cli.options import Debug, EngineOptions

if TYPE_CHECKING:
    from batchwright.cli.play_session import Playback


@takes_groups
def play(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A workload as of --workload of run, or a recording.")],
    engine: EngineOptions,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="POLICY",
            help="NAME, NAME:param=value,..., path.py:Class or a config file; without it the recorded or configured "
            "one.",
        ),
    ] = None,
    step: Annotated[int, typer.Option("--step", metavar="N", min=0, help="Begin with this step.")] = 0,
    case: Annotated[
        str | None, typer.Option("--case", metavar="NAME", help="Of a recording with several; without it the first.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="Take the first N requests of a workload only.")
    ] = None,
    speedup: Annotated[
        float, typer.Option("--speedup", metavar="X", help="Divide a workload's arrival times by X.")
    ] = 1.0,
    declared_max_tokens: Annotated[
        str,
        typer.Option(
            "--declared-max-tokens", metavar="RULE", help="max_tokens of rows without: model, exact or a number."
        ),
    ] = "model",
    debug: Debug = False,
) -> None:
    """Step through a run: batch, queues, blocks, and why each request ran or did not.

    FILE is a trace or synthetic:... as for run --workload, simulated; or what run --record wrote, or cases of nano-vLLM
    or vLLM V1, whose requests come and whose tokens are sampled as recorded. Small pools are best looked at.

    \b
    Examples:
      batchwright play trace.csv --policy stall_free --limit 20
      batchwright play trace.csv --policy stall_free --set num_blocks=40 --step 5
      batchwright play decisions.jsonl.gz --policy my_policy.py:Mine

    On a terminal keys do it: n next, b back, j jump, s swap policy, q quit, ? help. A new policy decides from the next
    step on; back undoes it. Where standard input is no terminal, lines of it do the same ("next", "back", "jump 12",
    "swap vllm_v1", "end", "quit"), and each step is printed; the first is printed at once.

    Exit code: 0; 2 for a wrong command line, config or file, or a line that is no command; 130 after Ctrl-C.
    """
    from batchwright.cli.play_screen import can_show
    from batchwright.cli.play_show import run_lines, run_screen

    playback = _open(file, engine, policy, case, limit, speedup, declared_max_tokens)
    try:
        (run_screen if can_show() else run_lines)(playback, step)
    finally:
        playback.close()


def _open(
    file: str,
    engine: EngineOptions,
    policy: str | None,
    case: str | None,
    limit: int | None,
    speedup: float,
    declared: str,
) -> Playback:
    from batchwright.cli.arms import make_arms
    from batchwright.cli.options import WorkloadOptions
    from batchwright.cli.play_session import Playback
    from batchwright.cli.play_stage import WorkloadStage
    from batchwright.cli.workloads import make_workload
    from batchwright.errors import ConfigError
    from batchwright.replay.reading import is_recording
    from batchwright.resolve import parse_arm, resolve_policy

    if is_recording(file):
        return _recording(Path(file), engine, policy, case)
    if case is not None:
        raise ConfigError(f"--case {case}: {file} is a workload; only recordings have cases")
    arm = make_arms([policy or ""], engine)[0]
    options = WorkloadOptions(workload=file, limit=limit, speedup=speedup, declared_max_tokens=declared)
    workload = make_workload(options, arm.config.backend, arm.plugins)
    seed = engine.seed or 0
    return Playback(
        lambda: WorkloadStage(arm, workload, declared, seed),
        lambda text: resolve_policy(parse_arm(text), arm.plugins),
    )


def _recording(path: Path, engine: EngineOptions, policy: str | None, case: str | None) -> Playback:
    from batchwright.cli.play_session import Playback
    from batchwright.cli.play_stage import RecordingStage
    from batchwright.errors import ConfigError, did_you_mean
    from batchwright.plugins import load_plugins
    from batchwright.replay.reading import read_cases
    from batchwright.resolve import parse_arm, resolve_policy

    for name in ("config", "set_", "arm_set", "backend", "seed"):
        if getattr(engine, name) is not None:
            option = f"--{name.strip('_').replace('_', '-')}"
            raise ConfigError(f"{option}: {path} is a recording and brings its own settings; leave it out")
    cases = {found.name: found for found in read_cases(path)}
    if case is not None and case not in cases:
        raise ConfigError(f"--case {case}: {path} has no such case; {did_you_mean(case, cases)}")
    found = cases[case] if case is not None else next(iter(cases.values()))
    plugins = load_plugins(engine.no_plugin or ())
    return Playback(
        lambda: RecordingStage(found, policy, plugins, str(path)),
        lambda text: resolve_policy(parse_arm(text), plugins),
    )
