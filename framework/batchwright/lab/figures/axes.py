"""What the figures' axes share: letters on lines, a legend, plain numbers on logarithmic scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from batchwright.lab.figures.arms import Arm
from batchwright.lab.figures.style import INK, Look

Floats = NDArray[np.float64]

_ONE_ROW = 44
"""Characters of a legend that fit beside each other in one column of a paper."""


def add_legend(figure: Figure, arms: Sequence[Arm], *, markers: bool = False) -> None:
    """The arms above all axes, a row each, or side by side where their names are short."""
    handles = [
        Line2D(
            [],
            [],
            color=arm.look.colour,
            linestyle=arm.look.dashes,
            marker=arm.look.marker if markers else "",
            label=arm.label,
        )
        for arm in arms
    ]
    longest = max(len(arm.label) for arm in arms)
    columns = max(1, min(len(arms), int(_ONE_ROW * figure.get_figwidth() / 3.3) // (longest + 7)))
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=columns,
        columnspacing=1.2,
        labelspacing=0.25,
        handletextpad=0.6,
    )


def legend_in(arms: Sequence[Arm]) -> float:
    """Inches that the legend takes in height, one column wide."""
    longest = max(len(arm.label) for arm in arms)
    columns = max(1, min(len(arms), _ONE_ROW // (longest + 7)))
    return 0.14 * -(-len(arms) // columns) + 0.05


def write_letter(axes: Axes, look: Look, x: float, y: float) -> None:
    """The arm's letter on its line: the same without colour, and where lines cross."""
    axes.text(
        x,
        y,
        look.letter,
        color=look.colour,
        fontsize=7,
        fontweight="bold",
        ha="center",
        va="center",
        zorder=5,
        bbox={"boxstyle": "circle,pad=0.12", "facecolor": "white", "edgecolor": look.colour, "linewidth": 0.6},
    )


def plain_log(axis: Axis, low: float, high: float) -> None:
    """Numbers as they are written, not powers of ten; 2 and 5 too where few decades are shown."""
    decades = np.log10(high / low) if 0 < low < high else 1.0
    subs = (1.0,) if decades > 2.5 else (1.0, 2.0, 5.0) if decades > 0.8 else tuple(float(n) for n in range(1, 10))
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=6))
    axis.set_major_formatter(FuncFormatter(plain))
    axis.set_minor_formatter(NullFormatter())


def plain(value: float, _: int | None = None) -> str:
    """A number of an axis: 20,000, 0.5."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def thin_grid(axes: Axes) -> None:
    """Lines of a grid for the numbers that are written, and none between."""
    axes.grid(visible=True, which="major")
    axes.grid(visible=False, which="minor")
    axes.tick_params(length=2, width=0.5)
    axes.tick_params(which="minor", length=1, width=0.4)


def draw_limit(axes: Axes, value: float, text: str, *, vertical: bool, at_end: bool = False) -> None:
    """A line for an objective or a limit, with its words on it: of a level one, at its begin or its end."""
    line: dict[str, Any] = {"color": INK, "linewidth": 0.8, "linestyle": (0, (2, 2)), "zorder": 1.5}
    box: dict[str, Any] = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    if vertical:
        axes.axvline(value, **line)
        place: dict[str, Any] = {
            "transform": axes.get_xaxis_transform(),
            "rotation": 90,
            "ha": "center",
            "va": "bottom",
        }
        axes.text(value, 0.04, text, fontsize=7, bbox=box, zorder=2, **place)
    else:
        axes.axhline(value, **line)
        flat: dict[str, Any] = {"ha": "right" if at_end else "left", "va": "center"}
        axes.text(
            0.98 if at_end else 0.02,
            value,
            text,
            fontsize=7,
            bbox=box,
            zorder=2,
            transform=axes.get_yaxis_transform(),
            **flat,
        )


def time_scale(duration_s: float) -> tuple[float, str]:
    """What seconds are divided by along a time line, and the unit in words."""
    if duration_s > 7200:
        return 3600.0, "hours"
    return (60.0, "minutes") if duration_s > 240 else (1.0, "seconds")
