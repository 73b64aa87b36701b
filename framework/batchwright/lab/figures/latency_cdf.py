"""Cumulative distributions of the latencies, an arm a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter
from numpy.typing import NDArray

from batchwright.lab.compare import Comparison
from batchwright.lab.figures.arms import Arm, arms_of
from batchwright.lab.figures.axes import add_legend, draw_limit, legend_in, plain, plain_log, thin_grid, write_letter
from batchwright.lab.figures.plot import Plot
from batchwright.lab.samples import latency_samples
from batchwright.lab.window import measured

Floats = NDArray[np.float64]

NUM_POINTS = 400
"""Values that a line is drawn at, where there are more."""

TAIL = 8.0
"""99th percentile over the median, from which on the axis is logarithmic."""

MARKED = (0.5, 0.9, 0.99)

_WORDS = {
    "ttft": ("TTFT", "Time to first token", "finished requests"),
    "tpot": ("TPOT", "Time per output token", "finished requests"),
    "itl": ("ITL", "Gaps between output tokens", "gaps"),
    "e2el": ("E2E latency", "End-to-end latency", "finished requests"),
}
_OBJECTIVES = {"ttft": "ttft_s", "tpot": "tpot_s"}
_MOST_OBJECTIVES = 3


@dataclass(frozen=True, slots=True)
class _Line:
    """The values of one arm, milliseconds: of all seeds together, and the lowest and highest of any."""

    arm: Arm
    num: int
    shares: Floats
    values: Floats
    low: Floats
    high: Floats

    def at(self, share: float) -> float:
        return float(self.values[min(int(np.searchsorted(self.shares, share)), len(self.values) - 1)])


def latency_cdfs(comparison: Comparison) -> list[Plot]:
    """A figure for each latency that somebody has: TTFT, TPOT, ITL, end to end."""
    arms = arms_of(comparison)
    samples = [[latency_samples(measured(run)) for run in arm.runs] for arm in arms]
    plots: list[Plot] = []
    for latency in _WORDS:
        found = zip(arms, ([s[latency].values for s in of_arm] for of_arm in samples), strict=True)
        lines = [_line(arm, values) for arm, values in found if any(len(v) for v in values)]
        if lines:
            plots.append(_plot(latency, lines, _objectives(arms, latency)))
    return plots


def _line(arm: Arm, by_seed: Sequence[Floats]) -> _Line:
    pooled = np.sort(np.concatenate(by_seed))
    num = len(pooled)
    ranks = np.arange(num)
    if num > NUM_POINTS:
        tail = 1 - np.geomspace(0.1, 1 / num, NUM_POINTS // 4)
        shares = np.concatenate([np.linspace(0, 1, NUM_POINTS - NUM_POINTS // 4), tail])
        ranks = np.unique(np.rint(shares * (num - 1)).astype(np.int64))
    values, low, high = pooled[ranks], pooled[ranks], pooled[ranks]
    if len(by_seed) > 1:
        each = np.array([np.quantile(v, ranks / max(num - 1, 1)) for v in by_seed if len(v)])
        low, high = each.min(axis=0), each.max(axis=0)
    return _Line(arm, num, (ranks + 1) / num, values, low, high)


def _objectives(arms: Sequence[Arm], latency: str) -> list[float]:
    """Objectives of the requests, milliseconds."""
    name = _OBJECTIVES.get(latency)
    if name is None:
        return []
    slos = {request.slo for request in arms[0].first.requests if request.slo is not None}
    return sorted({value * 1000 for slo in slos if (value := getattr(slo, name)) is not None})


def _plot(latency: str, lines: Sequence[_Line], objectives: Sequence[float]) -> Plot:
    short, title, what = _WORDS[latency]
    scale, unit = (1000.0, "s") if max(line.at(0.5) for line in lines) >= 1000 else (1.0, "ms")
    logarithmic = _has_tail(lines)
    shown = [o for o in objectives[:_MOST_OBJECTIVES] if _fits(o, lines)]
    columns: dict[str, list[Any]] = {"arm": [], "share": [], f"{latency}_ms": [], "lowest_ms": [], "highest_ms": []}
    for line in lines:
        columns["arm"] += [line.arm.name] * len(line.shares)
        for name, values in zip(list(columns)[1:], (line.shares, line.values, line.low, line.high), strict=True):
            columns[name] += values.tolist()
    return Plot(
        name=f"{latency}_cdf",
        title=title,
        caption=" ".join(_caption(short, what, lines, logarithmic, objectives, shown, unit)),
        alt=f"{title}, cumulative. " + "; ".join(_said(line, scale, unit) for line in lines) + ".",
        columns=columns,
        draw=partial(_draw, lines, f"{short} ({unit})", what, scale, logarithmic, shown),
        height_in=2.0 + legend_in([line.arm for line in lines]),
    )


def _caption(
    short: str,
    what: str,
    lines: Sequence[_Line],
    logarithmic: bool,
    objectives: Sequence[float],
    shown: Sequence[float],
    unit: str,
) -> list[str]:
    said = [f"Share of {what} with {short} up to x; marks at the 50th, 90th and 99th percentile."]
    if logarithmic:
        said.append("The axis is logarithmic.")
    if any(line.num > len(line.values) for line in lines):
        num = max(line.num for line in lines)
        said.append(f"Lines are drawn at {max(len(line.values) for line in lines)} ranks of {num:,} values.")
    if any(len(line.arm.runs) > 1 for line in lines):
        said.append("Values of all seeds together; bands reach from the lowest to the highest seed.")
    if lines[0].arm.first.window is not None:
        said.append("Requests of the warm-up and the cool-down are left out.")
    beyond = len(objectives) - len(shown)
    if beyond:
        left = [o for o in objectives if o not in shown]
        scale = 1000 if unit == "s" else 1
        said.append(f"Objectives not shown: {', '.join(f'{o / scale:g} {unit}' for o in left)}.")
    return said


def _said(line: _Line, scale: float, unit: str) -> str:
    marked = ", ".join(f"{share:.0%} within {line.at(share) / scale:,.4g} {unit}" for share in MARKED)
    return f"{line.arm.said}: {marked}"


def _has_tail(lines: Sequence[_Line]) -> bool:
    middle, tail = max(line.at(0.5) for line in lines), max(line.at(0.99) for line in lines)
    return all(line.values[0] > 0 for line in lines) and tail > TAIL * middle


def _fits(objective: float, lines: Sequence[_Line]) -> bool:
    """Whether an objective is near enough that the lines keep their shape beside it."""
    return objective < 4 * max(float(line.values[-1]) for line in lines)


def _draw(
    lines: Sequence[_Line],
    label: str,
    what: str,
    scale: float,
    logarithmic: bool,
    objectives: Sequence[float],
    figure: Figure,
) -> None:
    axes = figure.subplots()
    thin_grid(axes)
    for place, line in enumerate(lines):
        look, values = line.arm.look, line.values / scale
        if len(line.arm.runs) > 1:
            axes.fill_betweenx(
                line.shares, line.low / scale, line.high / scale, color=look.colour, alpha=0.18, linewidth=0
            )
        # From the first value up, so that a line of few values shows its steps.
        xs, ys = np.concatenate([values[:1], values]), np.concatenate([[0.0], line.shares])
        axes.plot(xs, ys, color=look.colour, linestyle=look.dashes, drawstyle="steps-post")
        marks = [line.at(share) / scale for share in MARKED]
        axes.plot(marks, MARKED, color=look.colour, linestyle="", marker=look.marker, markerfacecolor="white", zorder=4)
        height = _letter_height(place, len(lines))
        write_letter(axes, look, line.at(height) / scale, height)
    for objective in objectives:
        draw_limit(axes, objective / scale, f"SLO {plain(objective / scale)}", vertical=True)
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylabel(f"Share of {what}")
    axes.set_xlabel(label)
    if logarithmic:
        axes.set_xscale("log")
        plain_log(axes.xaxis, *axes.get_xlim())
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(plain))
    add_legend(figure, [line.arm for line in lines], markers=True)


def _letter_height(place: int, num: int) -> float:
    """Heights away from the marks, and from each other, for lines that run together."""
    low = place % 2 == 0
    share = (place // 2 + 0.5) / -(-num // 2)
    return 0.12 + 0.28 * share if low else 0.6 + 0.2 * share
