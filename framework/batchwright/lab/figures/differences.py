"""Differences to the first arm with their intervals, a row a metric: the verdicts, drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from batchwright.lab.compare import Comparison
from batchwright.lab.figures.arms import Arm, arms_of
from batchwright.lab.figures.plot import Plot
from batchwright.lab.figures.shown import shown_metrics, verdicts_of
from batchwright.lab.figures.style import FAINT, INK
from batchwright.lab.metrics import Metric
from batchwright.lab.verdict import BETTER, WORSE, Verdict
from batchwright.lab.wording import percent

DIFFERENCES = "differences"
_ROW_IN = 0.165
_TICKS = (-0.99, -0.9, -0.75, -0.5, -0.25, -0.1, -0.05, -0.02, -0.01, 0, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 3, 9, 99)
_LEAST = -0.995
"""A change by -100% has no place on a scale of ratios."""

_ROOM = 0.15
"""On the scale of ratios, beyond what must be seen."""


@dataclass(frozen=True, slots=True)
class _Row:
    arm: Arm
    verdict: Verdict
    label: str
    low: float
    high: float
    middle: float

    @property
    def shown(self) -> bool:
        return self.verdict.words in (BETTER, WORSE)

    @property
    def word(self) -> str:
        return self.verdict.words if self.shown else "not shown"


def differences(comparison: Comparison) -> Plot | None:
    """The verdicts that have an interval; None where there are none."""
    arms = {arm.name: arm for arm in arms_of(comparison)}
    verdicts = verdicts_of(comparison)
    groups: list[list[_Row]] = []
    for metric in shown_metrics(comparison):
        found = [_row(arm, metric, verdicts.get((name, metric.name))) for name, arm in arms.items()]
        if rows := [row for row in found if row is not None]:
            groups.append(rows)
    if not groups:
        return None
    rows = [row for group in groups for row in group]
    base = next(iter(arms.values()))
    several = len(arms) > 2
    low, high = _range(rows)
    beyond = any(_goes_on_below(row, low) or _place(row.high) > high for row in rows)
    cut = " An arrowhead: the interval goes on beyond the figure." if beyond else ""
    return Plot(
        name=DIFFERENCES,
        title=f"Differences to {base.said}",
        caption=(
            f"In percent of {base.said}, on a scale of ratios. A filled mark: the interval leaves out 0, and the word "
            f"says which way; a hollow one: no difference is shown.{cut} {comparison.method}"
        ),
        alt="; ".join(_said(row, several) for row in rows) + ".",
        columns={
            "arm": [row.arm.name for row in rows],
            "metric": [row.verdict.metric for row in rows],
            "verdict": [row.verdict.words for row in rows],
            "difference_percent": [100 * row.middle for row in rows],
            "low_percent": [100 * row.low for row in rows],
            "high_percent": [100 * row.high for row in rows],
        },
        draw=partial(_draw, groups, several),
        height_in=0.55 + _ROW_IN * (len(rows) + 0.5 * len(groups) * several),
    )


def _row(arm: Arm, metric: Metric, verdict: Verdict | None) -> _Row | None:
    if verdict is None or verdict.interval is None or verdict.relative is None:
        return None
    low, high = verdict.interval.relative_low, verdict.interval.relative_high
    if low is None or high is None:
        return None
    label = metric.label.removesuffix(" (ms)").removesuffix(" (req/s)")
    return _Row(arm, verdict, label, low, high, verdict.relative)


def _said(row: _Row, several: bool) -> str:
    who = f" of {row.arm.said}" if several else ""
    return f"{row.label}{who} {row.word}: {percent(row.middle)}% [{percent(row.low)}, {percent(row.high)}]"


def _place(share: float) -> float:
    return math.log1p(max(share, _LEAST))


def _draw(groups: Sequence[Sequence[_Row]], several: bool, figure: Figure) -> None:
    axes = figure.subplots()
    low, high = _range([row for group in groups for row in group])
    y = 0.0
    heights: list[float] = []
    names: list[str] = []
    for group in groups:
        heights.append(y + (len(group) - 1) / 2)
        names.append(group[0].label)
        for row in group:
            _draw_row(axes, row, y, several, low, high)
            y += 1
        y += 0.5 * several
    _scale(axes, low, high)
    axes.set_yticks(heights, names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(y - 0.5 - 0.5 * several, -0.6)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1.5)
    axes.set_xlabel("Difference (%)")


def _range(rows: Sequence[_Row]) -> tuple[float, float]:
    """Room for all differences, and for the intervals of those that are shown; wider ones are cut at its ends."""
    places = [_place(row.middle) for row in rows]
    places += [_place(end) for row in rows if row.shown for end in (row.low, row.high)]
    return min(*places, 0.0) - _ROOM, max(*places, 0.0) + _ROOM


def _goes_on_below(row: _Row, low: float) -> bool:
    """Whether an interval begins left of the figure, or below what a ratio can be."""
    return row.low < _LEAST or _place(row.low) < low


def _draw_row(axes: Axes, row: _Row, y: float, several: bool, low: float, high: float) -> None:
    look = row.arm.look
    ends = max(_place(row.low), low), min(_place(row.high), high)
    axes.plot(ends, [y, y], color=look.colour, linewidth=1.2, solid_capstyle="butt")
    for end, cut, arrow in ((ends[0], _goes_on_below(row, low), "<"), (ends[1], _place(row.high) > high, ">")):
        if cut:
            axes.plot([end], [y], linestyle="", marker=arrow, markersize=3.5, color=look.colour, zorder=3)
    axes.plot(
        [_place(row.middle)],
        [y],
        linestyle="",
        marker=look.marker,
        color=look.colour,
        markerfacecolor=look.colour if row.shown else "white",
        zorder=4,
    )
    beside: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center", "fontsize": 7, "ha": "left"}
    text = f"{look.letter} {row.word}" if several else row.word
    axes.text(1.02, y, text, color=INK if row.shown else FAINT, **beside)


def _scale(axes: Axes, low: float, high: float) -> None:
    room = max(0.06 * (high - low), 0.002)
    low, high = low - room, high + room
    axes.set_xlim(low, high)
    inside = [tick for tick in _TICKS if low <= _place(tick) <= high]
    kept: list[float] = []
    for tick in sorted(inside, key=_importance):
        if all(abs(_place(tick) - _place(other)) > 0.14 * (high - low) for other in kept):
            kept.append(tick)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks([_place(tick) for tick in kept], [f"{100 * tick:+g}" if tick else "0" for tick in kept])


def _importance(tick: float) -> tuple[bool, float]:
    """0 first, then what is farthest away."""
    return tick != 0, -abs(_place(tick))
