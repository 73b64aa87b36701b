"""A sweep as text: for each metric a row a point, the arms side by side."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from batchwright.lab.designs.axis import shown
from batchwright.lab.designs.sweep import Sweep, SweepPoint
from batchwright.lab.designs.sweep_closing import closing_lines, telling
from batchwright.lab.metrics import Metric
from batchwright.lab.printing import as_text, bullets
from batchwright.lab.verdict import BETTER, NOT_TESTED, WORSE, Verdict
from batchwright.lab.wording import number, size

_STYLES = {BETTER: "green", WORSE: "red"}


def format_sweep(sweep: Sweep, metrics: Sequence[Metric] | None = None, width: int = 80) -> str:
    """The tables as plain text.

    Args:
        sweep: what to print.
        metrics: those to show, a table each; some by default.
        width: columns to fit into.
    """
    return as_text(lambda console: print_sweep(sweep, metrics, console), width)


def print_sweep(sweep: Sweep, metrics: Sequence[Metric] | None = None, console: Console | None = None) -> None:
    """Print the tables: with colour on a terminal, as plain text elsewhere.

    Args:
        sweep: what to print.
        metrics: those to show, a table each; some by default.
        console: where to; standard output by default.
    """
    console = console if console is not None else Console(highlight=False)
    chosen = metrics if metrics else telling(sweep)
    parts: list[RenderableType] = [Padding(_table(sweep, metric), (0, 0, 1, 0)) for metric in chosen]
    if len(sweep.arms) > 1:
        parts.append(Text(f"Differences are to {sweep.arms[0]}, at the same point.", style="dim"))
    console.print(Group(*parts, bullets(closing_lines(sweep, chosen))))


def _table(sweep: Sweep, metric: Metric) -> Table:
    table = Table(
        box=None, padding=(0, 1, 0, 0), pad_edge=False, title=Text(metric.label, style="bold"), title_justify="left"
    )
    for axis in sweep.axes:
        table.add_column(Text(axis.name), justify="right" if axis.is_numeric else "left", overflow="fold")
    for arm in sweep.arms:
        table.add_column(Text(arm), justify="right", overflow="fold")
    pair = len(sweep.arms) == 2
    if pair:
        table.add_column(Text("difference [interval]"), overflow="fold")
    for point in sweep.points:
        cells = [_cell(point, metric, arm, alone=pair or arm == sweep.arms[0]) for arm in sweep.arms]
        if pair:
            cells.append(_difference(metric, point.verdict(metric.name, sweep.arms[1])))
        table.add_row(*(Text(shown(point.values[axis.name])) for axis in sweep.axes), *cells)
    return table


def _cell(point: SweepPoint, metric: Metric, arm: str, *, alone: bool) -> Text:
    failed = point.comparison is None or arm not in point.comparison.summaries
    cell = Text("failed" if failed else number(metric, point.value(metric.name, arm)))
    verdict = point.verdict(metric.name, arm)
    if not alone and verdict is not None and verdict.difference:
        cell.append("\n").append_text(_difference(metric, verdict, interval=False))
    return cell


def _difference(metric: Metric, verdict: Verdict | None, *, interval: bool = True) -> Text:
    said = Text(size(metric, verdict, interval=interval))
    if verdict is not None and verdict.difference is not None and verdict.words != NOT_TESTED:
        said.append(" " if said else "").append(verdict.words, style=_STYLES.get(verdict.words, ""))
    return said
