"""``batchwright workload``: what a workload is like, and other workloads made of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchwright.cli.option_groups import takes_groups
from batchwright.cli.options import Debug, NoPlugin, ShapeOptions
from batchwright.cli.program import show_help

if TYPE_CHECKING:
    from batchwright.lab import Workload

group = typer.Typer(rich_markup_mode=None, invoke_without_command=True)
"""The command ``workload``."""

Spec = Annotated[str, typer.Argument(metavar="SPEC", help="A trace, or synthetic:..., as --workload takes it.")]
To = Annotated[Path, typer.Option("--to", metavar="FILE", help="Write plain JSONL there.")]


@group.callback()
def workload(context: typer.Context) -> None:
    """Look at workloads, and make other ones of them.

    \b
      batchwright workload inspect trace.csv
      batchwright workload convert trace.csv --rule '*: priority=1' --to my.jsonl
      batchwright workload slice trace.csv --window 600:1200 --to part.jsonl
      batchwright workload merge a.csv b.jsonl --to both.jsonl
      batchwright workload resample trace.csv --seed 1 --to other.jsonl
    """
    show_help(context)


def _shaped(spec: str, shape: ShapeOptions, no_plugin: list[str] | None) -> Workload:
    from batchwright.cli.workloads import shaped
    from batchwright.plugins import load_plugins

    return shaped(spec, shape, load_plugins(no_plugin or ()))


@group.command()
@takes_groups
def inspect(
    spec: Spec,
    shape: ShapeOptions,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write what is shown to a file.")
    ] = None,
    no_plugin: NoPlugin = None,
    debug: Debug = False,
) -> None:
    """Show counts, rates, burstiness, lengths, sessions and prefix reuse of a workload, and plot arrivals and lengths.

    \b
    Examples:
      batchwright workload inspect trace.csv
      batchwright workload inspect 'synthetic:rate=4,n=500,turns=uniform(1,6)'

    Burstiness is the coefficient of variation of the gaps between arrivals: 1 is a Poisson process, more is burstier.
    Prefix reuse is the share of the prompt tokens that a cache without a bound would hold, each prompt being there once
    it has arrived.

    Exit code: 0; 2 for a wrong command line or file.
    """
    from batchwright.cli.output import check_writable, make_console
    from batchwright.cli.workload_show import show
    from batchwright.lab.inspection import inspect as look

    check_writable(json_file, "--json")
    found = _shaped(spec, shape, no_plugin)
    inspection = look(found)
    show(make_console(), found, inspection)
    if json_file is not None:
        json_file.write_text(json.dumps(inspection.to_json()) + "\n", encoding="utf-8")


@group.command()
@takes_groups
def convert(spec: Spec, to: To, shape: ShapeOptions, no_plugin: NoPlugin = None, debug: Debug = False) -> None:
    """Write a workload as plain JSONL, with what the options make of it.

    \b
    Examples:
      batchwright workload convert mooncake.jsonl --limit 500 --to my.jsonl
      batchwright workload convert chats.json --chars-per-token 4 --to my.jsonl

    What is written reads as the same requests: an equal hash.

    Exit code: 0; 2 for a wrong command line or file.
    """
    _write(to, lambda: _shaped(spec, shape, no_plugin))


@group.command("slice")
def slice_(
    spec: Spec,
    to: To,
    window: Annotated[
        str | None, typer.Option("--window", metavar="A:B", help="What arrives from A to B seconds: 600:1200.")
    ] = None,
    skip: Annotated[int, typer.Option("--skip", metavar="N", help="Without the first N requests.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", help="N requests.")] = None,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="Pass over broken rows.")] = False,
    no_plugin: NoPlugin = None,
    debug: Debug = False,
) -> None:
    """Write a part of a workload as plain JSONL, by time or by count; times begin at 0.

    \b
    Examples:
      batchwright workload slice trace.csv --window 600:1200 --to part.jsonl
      batchwright workload slice trace.csv --skip 100 --limit 50 --to part.jsonl

    A request that waits for one which is not in the part waits no longer.

    Exit code: 0; 2 for a wrong command line or file.
    """
    shape = ShapeOptions(window=window, skip=skip, limit=limit, skip_bad_rows=skip_bad_rows)
    _write(to, lambda: _shaped(spec, shape, no_plugin))


@group.command()
def merge(
    specs: Annotated[list[str], typer.Argument(metavar="SPEC", help="Traces, or synthetic:...")],
    to: To,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="Pass over broken rows.")] = False,
    no_plugin: NoPlugin = None,
    debug: Debug = False,
) -> None:
    """Write several workloads as one, in order of arrival.

    \b
    Examples:
      batchwright workload merge a.csv b.jsonl --to both.jsonl
      batchwright workload merge chat.jsonl synthetic:rate=1,client=b --to m.jsonl

    Clients of one name are one client; sessions, programs and prefixes are each workload's own.

    Exit code: 0; 2 for a wrong command line or file.
    """
    from batchwright.lab import merge as merged

    shape = ShapeOptions(skip_bad_rows=skip_bad_rows)
    _write(to, lambda: merged([_shaped(spec, shape, no_plugin) for spec in specs]))


@group.command()
def resample(
    spec: Spec,
    to: To,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Of what is drawn.")] = 0,
    block: Annotated[
        int | None,
        typer.Option("--block", metavar="N", help="Sessions that stay together; by default the root of their number."),
    ] = None,
    skip_bad_rows: Annotated[bool, typer.Option("--skip-bad-rows", help="Pass over broken rows.")] = False,
    no_plugin: NoPlugin = None,
    debug: Debug = False,
) -> None:
    """Write another workload like one: whole sessions drawn from it again, in blocks of neighbours.

    \b
    Examples:
      batchwright workload resample trace.csv --seed 1 --to other.jsonl
      batchwright workload resample trace.csv --seed 2 --limit 500 --to b.jsonl

    Exit code: 0; 2 for a wrong command line or file.
    """
    from batchwright.lab import resampled

    shape = ShapeOptions(skip_bad_rows=skip_bad_rows)
    _write(to, lambda: resampled(_shaped(spec, shape, no_plugin), seed, block=block))


def _write(path: Path, make: Callable[[], Workload]) -> None:
    from batchwright.cli.output import check_writable
    from batchwright.lab.readers.jsonl import write_jsonl

    check_writable(path, "--to")
    found = make()
    write_jsonl(path, found.held())
    for note in found.notes:
        sys.stderr.write(f"{note}\n")
    sys.stdout.write(f"{len(found):,} requests over {found.span_s:,.1f} s, hash {found.hash}: {path}\n")
