"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from batchwright.cli import (
    ab,
    backends,
    calibrate,
    capacity,
    check,
    config,
    diff,
    explain,
    new_policy,
    play,
    plugins,
    policies,
    replay,
    report,
    run,
    sweep,
    tune,
    workload,
)
from batchwright.cli.options import Debug
from batchwright.cli.program import Program, show_help

app = typer.Typer(
    cls=Program,
    rich_markup_mode=None,  # help is read in pipes and editors too, and starts faster without boxes
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from batchwright.version import HOOKSPEC_VERSION, __version__

        typer.echo(f"batchwright {__version__} (hook specs {HOOKSPEC_VERSION})")
        raise typer.Exit


@app.callback()
def batchwright(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Write, compare and ship scheduling policies for LLM inference.

    \b
    Compare two policies on the very same requests, on a simulated H100:
      batchwright ab prefill_first stall_free:chunk_size=512
    on a trace of your own, twice as fast as recorded:
      batchwright ab prefill_first vllm_v1 --workload trace.csv --speedup 2
    on a real model:
      batchwright ab prefill_first stall_free --backend cpu:smollm2-135m

    Exit codes: 0 fine; 1 a difference (diff, replay) or a failed run; 2 a wrong command line, config or file.
    """
    show_help(context)


app.command()(ab.ab)
app.command()(sweep.sweep)
app.command()(capacity.capacity)
app.command()(tune.tune)
app.command()(run.run)
app.command()(report.report)
app.command()(diff.diff)
app.command()(play.play)
app.command()(explain.explain)
app.command()(replay.replay)
app.command()(check.check)
app.command()(calibrate.calibrate)
app.command("new-policy")(new_policy.new_policy)
app.command()(policies.policies)
app.command()(backends.backends)
app.command()(plugins.plugins)
app.add_typer(config.group, name="config")
app.add_typer(workload.group, name="workload")
