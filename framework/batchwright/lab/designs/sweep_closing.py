"""What the points of a sweep have in common, and what a reader must know of some of them, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from batchwright.lab.closing import ALIKE
from batchwright.lab.designs.axis import Axis, shown
from batchwright.lab.metrics import METRICS, Metric
from batchwright.lab.verdict import BETTER, WORSE, Verdict
from batchwright.lab.wording import percent

if TYPE_CHECKING:
    from batchwright.lab.designs.sweep import Sweep, SweepPoint

CHOSEN = ("mean_ttft_ms", "p99_ttft_ms", "p99_itl_ms", "request_goodput", "output_throughput")
"""Metrics of the table where none are named; those that are undefined everywhere are left out."""


def telling(sweep: Sweep) -> list[Metric]:
    """Metrics of a sweep where none are named."""
    return [METRICS[name] for name in CHOSEN if _is_defined(sweep, name)]


def _is_defined(sweep: Sweep, metric: str) -> bool:
    return any(point.value(metric, arm) is not None for point in sweep.points for arm in sweep.arms)


def closing_lines(sweep: Sweep, metrics: Sequence[Metric]) -> Iterator[str]:
    """What the points have in common, and what a reader must know of some of them, most urgent first."""
    if sweep.missing:
        all_points = len(sweep.points) + len(sweep.missing)
        yield f"interrupted: {len(sweep.points)} of {all_points} points are done"
    for point in sweep.points:
        for label, error in point.failed.items():
            yield f"failed: {label}: {type(error).__name__}: {error}"
    compared = [point for point in sweep.points if point.comparison is not None]
    for arm in sweep.arms:
        yield from _missed(compared, arm)
        yield from _overloaded(compared, arm)
    yield from _alike(compared, sweep.arms)
    for axis in sweep.axes:
        if axis.is_numeric and all(len(other.values) == 1 for other in sweep.axes if other is not axis):
            yield from _trends(sweep, axis, metrics)
    said = [p.comparison.closing for p in compared if p.comparison is not None]
    notes = [note for p in compared if p.comparison for run in p.comparison.runs for note in run.notes]
    everywhere = [line for line in said[0] if all(line in one for one in said)] if said else []
    yield from dict.fromkeys([*everywhere, *notes])


def _missed(points: Sequence[SweepPoint], arm: str) -> Iterator[str]:
    found: list[str] = []
    for point in points:
        counts = {kind: point.value(f"num_{kind}", arm) or 0 for kind in ("refused", "failed", "unfinished")}
        if any(counts.values()):
            said = ", ".join(f"{count:g} {kind}" for kind, count in counts.items() if count)
            found.append(f"{said} at {point.label}")
    if found:
        yield f"{arm}: {_some(found)}: latencies are of the others only"


def _overloaded(points: Sequence[SweepPoint], arm: str) -> Iterator[str]:
    found = [
        p.label for p in points if p.comparison and arm in p.comparison.loads and p.comparison.loads[arm].overloaded
    ]
    if found:
        yield (f"{arm} is overloaded at {_some(found)}: latencies there measure the length of the run, not the policy")


def _alike(points: Sequence[SweepPoint], arms: Sequence[str]) -> Iterator[str]:
    """Points at which the arms hardly decide differently."""
    for arm in arms[1:]:
        found = [p.label for p in points if p.comparison and p.comparison.decisions_differ.get(arm, 1.0) < ALIKE]
        if found:
            yield f"{arms[0]} and {arm} decide alike at {_some(found)}: the load there cannot separate them"


def _trends(sweep: Sweep, axis: Axis, metrics: Sequence[Metric]) -> Iterator[str]:
    """Differences that are another at the end of an axis than at its beginning: their intervals are apart."""
    points = sorted(sweep.points, key=lambda p: p.values[axis.name])
    if len(points) < 2:
        return
    first, last = points[0], points[-1]
    for arm in sweep.arms[1:]:
        for metric in metrics:
            one, other = first.verdict(metric.name, arm), last.verdict(metric.name, arm)
            if one is None or other is None or one.relative is None or other.relative is None:
                continue
            if {one.words, other.words} & {BETTER, WORSE} and _are_apart(one, other):
                said = "shrinks" if abs(other.relative) < abs(one.relative) else "grows"
                if one.relative * other.relative < 0 and {one.words, other.words} == {BETTER, WORSE}:
                    said = "changes its sign"
                yield (
                    f"as {axis.name} goes from {shown(first.values[axis.name])} to {shown(last.values[axis.name])}, "
                    f"{arm}'s difference in {metric.label} {said}: {percent(one.relative)}% to "
                    f"{percent(other.relative)}%"
                )


def _are_apart(one: Verdict, other: Verdict) -> bool:
    ends = [_relative_ends(verdict) for verdict in (one, other)]
    if ends[0] is None or ends[1] is None:
        return False
    return ends[0][1] < ends[1][0] or ends[1][1] < ends[0][0]


def _relative_ends(verdict: Verdict) -> tuple[float, float] | None:
    if verdict.difference == 0:
        return 0.0, 0.0
    found = verdict.interval
    if found is None or found.relative_low is None or found.relative_high is None:
        return None
    return found.relative_low, found.relative_high


def _some(found: Sequence[str], most: int = 4) -> str:
    rest = f" and {len(found) - most} more" if len(found) > most else ""
    return "; ".join(found[:most]) + rest
