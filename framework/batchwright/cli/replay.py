"""``batchwright replay``: does a policy still decide what was recorded?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchwright.cli.options import Debug, NoPlugin

if TYPE_CHECKING:
    from rich.console import Console

    from batchwright.replay import Difference

_SHOWN = 60
"""Characters of a value that are shown around the place where both sides part."""


def replay(
    cases: Annotated[Path, typer.Argument(metavar="CASES", help="Recorded decisions: .jsonl or .jsonl.gz.")],
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            help="NAME, NAME:param=value,... or path.py:Class; without it, the recorded one.",
        ),
    ] = None,
    no_plugin: NoPlugin = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the exit code.")] = False,
    debug: Debug = False,
) -> None:
    """Replay recorded decisions, and compare every field of every step.

    CASES is what batchwright run --record wrote, or cases of nano-vLLM's or vLLM V1's scheduler; the format is found by
    its keys. Nothing is executed: the recorded tokens are fed back.

    \b
    Examples:
      batchwright run stall_free --limit 50 --record decisions.jsonl.gz
      batchwright replay decisions.jsonl.gz
      batchwright replay decisions.jsonl.gz --policy stall_free:chunk_size=256

    Each case is replayed up to its first step that differs; the first of these is shown side by side, and the fields
    marked * differ.

    Exit code: 0 when all agree; 1 when something differs; 2 when the file cannot be read or the policy does not exist.
    """
    from batchwright.cli.output import make_console, say, show_progress
    from batchwright.cli.program import FAILED, OK
    from batchwright.plugins import load_plugins
    from batchwright.replay import replay as replay_cases

    plugins = load_plugins(no_plugin or ())
    with show_progress(quiet, f"replaying {cases.name}"):
        report = replay_cases(cases, policy, plugins=plugins)
    console = make_console(quiet)
    if report.agrees:
        say(console, f"{report.file}: all {report.num_cases} cases agree, {report.num_steps} steps")
    else:
        say(console, f"{report.file}: {len(report.differences)} of {report.num_cases} cases differ; the first:")
        _print(console, report.differences[0])
    raise typer.Exit(OK if report.agrees else FAILED)


def _print(console: Console, difference: Difference) -> None:
    from batchwright.cli.output import make_table, print_table, say

    where = f"line {difference.line}, case {difference.case!r}, step {difference.step}"
    if difference.error is not None:
        say(console, f"{where}: the replay raised {difference.error}")
        return
    fields = difference.fields
    say(console, f"{where}: {', '.join(fields)} differ{'s' if len(fields) == 1 else ''}")
    table = make_table(console, "", "field", "recorded", "replayed", whole=2)
    for name in dict.fromkeys((*difference.expected, *difference.actual)):
        one, two = (side.get(name, "-") for side in (difference.expected, difference.actual))
        table.add_row("*" if name in fields else "", name, _value(one, two), _value(two, one))
    print_table(console, table)


def _value(value: Any, other: Any) -> str:
    """A value in short: of a long list, the part around the first place in which it differs from the other side's."""
    if not isinstance(value, list):
        return str(value)
    items = [f"[{', '.join(map(str, item))}]" if isinstance(item, list) else str(item) for item in value]
    if not items:
        return "(none)"
    pairs = zip(value, other if isinstance(other, list) else (), strict=False)
    first = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(items), _length(other)))
    start = max(0, first - 1) if len(" ".join(items)) > _SHOWN else 0
    end = start
    while end < len(items) and (end <= first or len(" ".join(items[start : end + 1])) <= _SHOWN):
        end += 1
    before = f"({start} more) " if start else ""
    after = f" ({len(items) - end} more)" if end < len(items) else ""
    return f"{before}{' '.join(items[start:end])}{after}"


def _length(value: Any) -> int:
    return len(value) if isinstance(value, list) else 0
