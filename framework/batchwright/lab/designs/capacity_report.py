"""Capacities as text: a row an arm, what the objectives were like at the edge, and what a reader must know."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from batchwright.lab.designs.bounds import Bound
from batchwright.lab.designs.capacity import ArmCapacity, Capacities, LoadPoint
from batchwright.lab.designs.measure import GOODPUT
from batchwright.lab.designs.ratio import Ratio

_NONE = "-"


def format_capacity(found: Capacities, width: int = 80) -> str:
    """The report as plain text.

    Args:
        found: what to print.
        width: columns to fit into.
    """
    console = Console(file=io.StringIO(), width=width, force_terminal=False, color_system=None, legacy_windows=False)
    print_capacity(found, console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"


def print_capacity(found: Capacities, console: Console | None = None) -> None:
    """Print the report: with colour on a terminal, as plain text elsewhere.

    Args:
        found: what to print.
        console: where to; standard output by default.
    """
    console = console if console is not None else Console(highlight=False)
    parts: list[RenderableType] = [_header(found), Padding(_capacities(found), (1, 0, 1, 0))]
    if any(arm.points for arm in found.arms):
        parts.append(Padding(_edges(found), (0, 0, 1, 0)))
    closing = Table.grid(padding=(0, 1))
    for line in closing_lines(found):
        closing.add_row("*", Text(line))
    console.print(Group(*parts, closing))


def _header(found: Capacities) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column()
    grid.add_column(overflow="fold")
    seeds = (
        f"{len(found.plan.seeds)} seeds, {found.plan.confidence:.0%} one-sided"
        if len(found.plan.seeds) > 1
        else "one seed"
    )
    for name, value in (
        ("workload", f"{found.workload} ({found.base_rate:,.4g} requests/s as given)"),
        ("objectives", ", ".join(bound.text for bound in found.plan.bounds)),
        ("each load", seeds),
        ("bracket", f"within {found.plan.tolerance:.0%}"),
    ):
        grid.add_row(Text(name, style="dim"), Text(value))
    return grid


def _capacities(found: Capacities) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("arm", overflow="fold")
    for heading in ("meets at (req/s)", "speedup", "fails at (req/s)", "loads tried"):
        table.add_column(heading, justify="right")
    table.add_column("limited by", overflow="fold")
    for arm in found.arms:
        low, high = arm.low, arm.high
        table.add_row(
            Text(arm.arm),
            Text(_rate(low), style="bold"),
            Text(_NONE if low is None else f"{low.speedup:.3g}"),
            Text(_rate(high)),
            Text(str(len(arm.points))),
            Text("failed" if arm.error is not None else ", ".join(high.limited_by) if high is not None else _NONE),
        )
    return table


def _rate(point: LoadPoint | None) -> str:
    return _NONE if point is None else f"{point.rate:,.4g}"


def _edges(found: Capacities) -> Table:
    """What each objective was like at both ends of the bracket."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("mean (bound of the interval)", overflow="fold")
    table.add_column("req/s", justify="right")
    for bound in found.plan.bounds:
        table.add_column(Text(_heading(bound)), justify="right", overflow="fold")
    for arm in found.arms:
        for point in (arm.low, arm.high):
            if point is not None:
                values = [_value(point, bound) for bound in found.plan.bounds]
                table.add_row(Text(arm.arm), Text(_rate(point)), *map(Text, values))
    return table


def _heading(bound: Bound) -> str:
    unit = {"s": " (s)", "ms": " (ms)"}.get(bound.measure.unit, "")
    return f"{bound.measure.name}{unit}"


def _value(point: LoadPoint, bound: Bound) -> str:
    values, edge = point.values[bound.text], point.edges[bound.text]
    known = [v for v in values if v is not None]
    if edge is None or not known:
        return "undefined"
    mean = sum(known) / len(known)
    return f"{mean:.3g}" if len(values) == 1 else f"{mean:.3g} ({edge:.3g})"


def closing_lines(found: Capacities) -> Iterator[str]:
    """What the search found and what it could not, most urgent first."""
    if found.was_interrupted:
        yield f"interrupted after {found.num_runs} runs: brackets are as wide as they were then"
    for arm in found.arms:
        if arm.error is not None:
            yield f"{arm.arm} failed: {type(arm.error).__name__}: {arm.error}"
    for ratio in found.ratios:
        yield _ratio(ratio, found)
    for arm in found.arms:
        yield from _of_arm(arm, found)
    if found.plan.bounds and GOODPUT in {b.measure.name for b in found.plan.bounds} and not found.has_slo:
        yield (
            "no request has objectives of its own, so goodput counts all that finished; give them some with "
            "--slo 'ttft=1.0,tpot=0.05,goodput>0.95'"
        )
    if len(found.plan.seeds) == 1:
        yield "one seed: whether a load meets the objectives was told from one run each; take --seeds 5 for confidence"


def _ratio(ratio: Ratio, found: Capacities) -> str:
    num = len(found.plan.seeds)
    of = f" of {num}: in the others an arm has no edge within the range" if ratio.num_seeds < num else ""
    said = f"{ratio.arm} carries {ratio.ratio:.3g} times the load of {ratio.base} [{ratio.low:.3g}, {ratio.high:.3g}]"
    if ratio.num_seeds == 1:
        return f"{said}; the interval is that of the brackets alone, from one seed{of}"
    verdict = "more" if ratio.low > 1 else "less" if ratio.high < 1 else "no difference shown"
    return f"{said}: {verdict} ({found.plan.confidence:.0%} interval over {ratio.num_seeds} seeds{of})"


def _of_arm(arm: ArmCapacity, found: Capacities) -> Iterator[str]:
    if not arm.points:
        return
    if arm.low is None and arm.is_done:
        lowest = arm.points[0]
        yield (
            f"{arm.arm}: even the lowest load, {lowest.rate:,.4g} requests/s, does not meet "
            f"{', '.join(lowest.limited_by)}: its capacity is below; relax the objectives, or lower --lowest"
        )
    if arm.high is None and arm.is_done:
        yield (
            f"{arm.arm}: the highest load, {arm.points[-1].rate:,.4g} requests/s, still meets all objectives: its "
            "capacity is above; raise --highest, or take a longer workload"
        )
    if arm.contradictions:
        above = ", ".join(f"{point.rate:,.4g}" for point in arm.contradictions)
        assert arm.high is not None
        yield (
            f"{arm.arm}: not monotone: {arm.high.rate:,.4g} requests/s does not meet the objectives, and {above} does; "
            "the capacity given is the one below the first that does not. More seeds, or a longer workload, tell more"
        )
    if arm.low is not None and arm.low.num_overloaded:
        yield (
            f"{arm.arm}: at {arm.low.rate:,.4g} requests/s a backlog grew until the end in {arm.low.num_overloaded} of "
            f"{len(found.plan.seeds)} seeds: a longer workload would not meet the same objectives there"
        )
