"""Capacities as text: a row an arm, what the objectives were like at the edge, and what a reader must know."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from batchwright.lab.designs.bounds import Bound
from batchwright.lab.designs.capacities import Capacities, LoadPoint
from batchwright.lab.designs.capacity_closing import closing_lines
from batchwright.lab.designs.capacity_plan import CapacityPlan
from batchwright.lab.printing import as_text, bare_table, bullets, facts
from batchwright.lab.wording import NONE


def format_capacity(found: Capacities, width: int = 80) -> str:
    """The report as plain text.

    Args:
        found: what to print.
        width: columns to fit into.
    """
    return as_text(lambda console: print_capacity(found, console), width)


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
    console.print(Group(*parts, bullets(closing_lines(found))))


def _header(found: Capacities) -> RenderableType:
    plan = found.plan
    given = f"{found.base_rate:,.4g} requests/s" if found.base_rate is not None else f"{plan.users} users"
    return facts(
        [
            ("workload", f"{found.workload} ({given} as given)"),
            ("objectives", ", ".join(bound.text for bound in plan.bounds)),
            ("each load", _each_load(found)),
            ("capacity", meaning(plan)),
        ]
    )


def _each_load(found: Capacities) -> str:
    plan = found.plan
    seeds = f"{len(plan.seeds)} seeds" if len(plan.seeds) > 1 else "one seed"
    if plan.duration_s is not None:
        return f"{plan.duration_s:g} s of arrivals, {seeds}"
    nums = sorted({round(point.num_requests) for arm in found.arms for point in arm.points})
    if not nums:
        return seeds
    return f"{nums[0]:,}{f' to {nums[-1]:,}' if len(nums) > 1 else ''} requests, {seeds}"


def meaning(plan: CapacityPlan) -> str:
    """What a capacity is, in words."""
    within = f"within {plan.tolerance:.0%}" + ("" if plan.users is None else ", or to a single user")
    if len(plan.seeds) == 1:
        return f"the largest load whose run meets every objective, {within}"
    return (
        f"the largest load at which the mean over the seeds meets every objective with {plan.confidence:.0%} "
        f"confidence, {within}"
    )


def _capacities(found: Capacities) -> Table:
    table = bare_table()
    table.add_column("arm", overflow="fold")
    closed = found.plan.users is not None
    unit = "users" if closed else "req/s"
    for heading in (f"capacity ({unit})", "req/s" if closed else "speedup", f"fails at ({unit})", "loads tried"):
        table.add_column(heading, justify="right")
    table.add_column("limited by", overflow="fold")
    for arm in found.arms:
        low, high = arm.low, arm.high
        table.add_row(
            Text(arm.arm),
            Text(_load(low), style="bold"),
            Text(NONE if low is None else f"{low.rate:,.4g}" if closed else f"{low.speedup:.3g}"),
            Text(_load(high)),
            Text(str(len(arm.points))),
            Text("failed" if arm.error is not None else ", ".join(high.limited_by) if high is not None else NONE),
        )
    return table


def _load(point: LoadPoint | None) -> str:
    return NONE if point is None else f"{point.load:,.4g}"


def _edges(found: Capacities) -> Table:
    """What each objective was like at both ends of the bracket."""
    table = bare_table()
    table.add_column("mean (bound of the interval)", overflow="fold")
    table.add_column("users" if found.plan.users is not None else "req/s", justify="right")
    for bound in found.plan.bounds:
        table.add_column(Text(_heading(bound)), justify="right", overflow="fold")
    for arm in found.arms:
        for point in (arm.low, arm.high):
            if point is not None:
                values = [_value(point, bound) for bound in found.plan.bounds]
                table.add_row(Text(arm.arm), Text(_load(point)), *map(Text, values))
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
