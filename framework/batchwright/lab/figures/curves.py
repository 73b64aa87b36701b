"""Metrics against a rate or a setting, an arm a line, panels above each other: of capacities and sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from batchwright.lab.figures.arms import Arm
from batchwright.lab.figures.axes import add_legend, draw_limit, legend_in, plain, plain_log, thin_grid, write_letter
from batchwright.lab.figures.plot import Plot
from batchwright.lab.figures.style import look

_MANY = 8.0
"""Largest over smallest, from which on an axis is logarithmic."""

_PANEL_IN = 1.25


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric of one arm.

    Attributes:
        arm: its name.
        xs: where it was measured, ascending.
        means, lows, highs: mean over seeds, and the lowest and highest seed.
        met: at each place whether objectives were met; None: nobody asked.
    """

    arm: str
    xs: Sequence[float]
    means: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    met: Sequence[bool] | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """One metric of all arms.

    Attributes:
        metric: for its axis, with the unit.
        curves: an arm each.
        limit: an objective; None: there is none.
        is_share: values are shares, up to 1.
    """

    metric: str
    curves: Sequence[Curve]
    limit: float | None = None
    is_share: bool = False


def curves_plot(name: str, title: str, x: str, caption: str, arms: Sequence[str], panels: Sequence[Panel]) -> Plot:
    """A figure of panels that share the axis ``x``."""
    looks = [Arm(arm, look(place), ()) for place, arm in enumerate(arms)]
    said = (
        f"{panel.metric}: "
        + "; ".join(
            f"{curve.arm} from {curve.means[0]:,.4g} at {curve.xs[0]:g} to {curve.means[-1]:,.4g} at {curve.xs[-1]:g}"
            for curve in panel.curves
            if len(curve.xs)
        )
        for panel in panels
    )
    return Plot(
        name=name,
        title=title,
        caption=caption,
        alt=". ".join(said) + ".",
        columns=_columns(x, panels),
        draw=partial(_draw, looks, x, panels),
        height_in=0.45 + _PANEL_IN * len(panels) + legend_in(looks),
    )


def curve_of(arm: str, places: Mapping[float, Sequence[Any]], met: Mapping[float, bool] | None = None) -> Curve:
    """A curve from the values of all seeds at each place; places without any are left out."""
    kept = [(x, [float(v) for v in places[x] if v is not None]) for x in sorted(places)]
    kept = [(x, values) for x, values in kept if values]
    return Curve(
        arm,
        [x for x, _ in kept],
        [float(np.mean(values)) for _, values in kept],
        [min(values) for _, values in kept],
        [max(values) for _, values in kept],
        None if met is None else [met[x] for x, _ in kept],
    )


def _columns(x: str, panels: Sequence[Panel]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {n: [] for n in ("metric", "arm", x, "mean", "lowest", "highest", "met", "limit")}
    for panel in panels:
        for curve in panel.curves:
            met = curve.met if curve.met is not None else [None] * len(curve.xs)
            for row in zip(curve.xs, curve.means, curve.lows, curve.highs, met, strict=True):
                for name, cell in zip(columns, (panel.metric, curve.arm, *row, panel.limit), strict=True):
                    columns[name].append(cell)
    return columns


def _draw(arms: Sequence[Arm], x: str, panels: Sequence[Panel], figure: Figure) -> None:
    drawn: Sequence[Axes] = figure.subplots(len(panels), 1, sharex=True, squeeze=False).ravel().tolist()
    by_name = {arm.name: arm for arm in arms}
    for axes, panel in zip(drawn, panels, strict=True):
        thin_grid(axes)
        for curve in panel.curves:
            _draw_curve(axes, by_name[curve.arm], curve, arms.index(by_name[curve.arm]), len(arms))
        _scale(axes, panel)
        if panel.limit is not None:
            at_end = _is_free_at_end(axes, panel, panel.limit)
            draw_limit(axes, panel.limit, f"SLO {plain(panel.limit)}", vertical=False, at_end=at_end)
        axes.set_ylabel(panel.metric)
    xs = sorted({place for panel in panels for curve in panel.curves for place in curve.xs})
    if xs and xs[0] > 0 and xs[-1] / xs[0] > _MANY:
        drawn[-1].set_xscale("log")
        plain_log(drawn[-1].xaxis, *drawn[-1].get_xlim())
    else:
        drawn[-1].xaxis.set_major_locator(MaxNLocator(6))
        drawn[-1].xaxis.set_major_formatter(FuncFormatter(plain))
    drawn[-1].set_xlabel(x)
    figure.align_ylabels(drawn)
    add_legend(figure, arms, markers=True)


def _draw_curve(axes: Axes, arm: Arm, curve: Curve, place: int, num: int) -> None:
    how = arm.look
    axes.fill_between(curve.xs, curve.lows, curve.highs, color=how.colour, alpha=0.18, linewidth=0)
    axes.plot(curve.xs, curve.means, color=how.colour, linestyle=how.dashes)
    met = curve.met if curve.met is not None else [True] * len(curve.xs)
    for x, y, filled in zip(curve.xs, curve.means, met, strict=True):
        face = how.colour if filled else "white"
        axes.plot([x], [y], linestyle="", color=how.colour, marker=how.marker, markerfacecolor=face, zorder=4)
    if len(curve.xs) > 1:
        at = min(int((place + 0.5) / num * (len(curve.xs) - 1)), len(curve.xs) - 2)
        x, y = (curve.xs[at] + curve.xs[at + 1]) / 2, (curve.means[at] + curve.means[at + 1]) / 2
        write_letter(axes, how, x, y)


def _is_free_at_end(axes: Axes, panel: Panel, limit: float) -> bool:
    """Whether the curves are farther from a limit where they end than where they begin."""
    is_log = axes.get_yscale() == "log"

    def room(place: int) -> float:
        ends = [curve.means[place] for curve in panel.curves if len(curve.xs)]
        apart = (abs(np.log(y / limit)) if is_log and y > 0 and limit > 0 else abs(y - limit) for y in ends)
        return float(min(apart, default=0.0))

    return room(-1) > room(0)


def _scale(axes: Axes, panel: Panel) -> None:
    values = [value for curve in panel.curves for value in (*curve.lows, *curve.highs)]
    if panel.limit is not None:
        values.append(panel.limit)
    low, high = min(values, default=0.0), max(values, default=1.0)
    if not panel.is_share and low > 0 and high / low > 4 * _MANY:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.3, high * 1.3)
        plain_log(axes.yaxis, low, high)
        return
    if panel.is_share:
        room = 0.15 * (1.0 - low) + 0.005
        axes.set_ylim(low - room, 1.0 + room)
    else:
        axes.set_ylim(0, 1.12 * high if high > 0 else 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(plain))
