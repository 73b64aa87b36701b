"""Time lines: who waits, who runs, KV in use, tokens a step, for each arm on one time axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from batchwright.lab.compare import Comparison
from batchwright.lab.figures.arms import Arm, arms_of, seeds_of
from batchwright.lab.figures.axes import add_legend, draw_limit, legend_in, plain, thin_grid, time_scale, write_letter
from batchwright.lab.figures.binned import Binned, TimeLines, time_lines
from batchwright.lab.figures.plot import Plot
from batchwright.lab.figures.style import GRID
from batchwright.lab.run_record import RunRecord

Floats = NDArray[np.float64]

NUM_BINS = 240
_LETTER_WIDTH, _LETTER_HEIGHT = 0.06, 0.25
"""Of a letter in a panel of one column."""

_BANDS = 2
"""Arms up to which bands can be told apart."""

_PANELS: tuple[tuple[str, str, Callable[[TimeLines], Binned]], ...] = (
    ("waiting", "Waiting", lambda lines: lines.waiting),
    ("running", "Running", lambda lines: lines.running),
    ("kv_use", "KV in use", lambda lines: lines.kv_use),
    ("tokens", "Tokens a step", lambda lines: lines.tokens),
)


def timeline(comparison: Comparison) -> Plot | None:
    """The first seed's run of each arm; None where no arm took a step."""
    arms = [arm for arm in arms_of(comparison) if len(arm.first.steps)]
    if not arms:
        return None
    duration_ns = max(arm.first.duration_ns for arm in arms)
    edges = np.unique(np.linspace(0, max(duration_ns, 1), NUM_BINS + 1).astype(np.int64))
    lines = [time_lines(arm.first, edges) for arm in arms]
    width_s = float(edges[1] - edges[0]) / 1e9
    banded = len(arms) <= _BANDS and all(arm.first.num_replicas == 1 for arm in arms)
    left_out = _left_out(arms[0].first)
    return Plot(
        name="timeline",
        title="Over time",
        caption=(
            "Requests that wait, residents, share of KV blocks held, and tokens of a step. Each point is the mean "
            f"over {width_s:.3g} s"
            + ("; bands reach from the smallest to the largest value in it" if banded else "")
            + "."
            + (" Grey: warm-up and cool-down, which no table counts." if left_out else "")
            + seeds_of(arms)
        ),
        alt=". ".join(_said(arm, one) for arm, one in zip(arms, lines, strict=True)) + ".",
        columns=_columns(arms, lines),
        draw=partial(_draw, arms, lines, banded, left_out),
        height_in=4.1 + legend_in(arms),
        wide_in=4.6,
    )


def _columns(arms: Sequence[Arm], lines: Sequence[TimeLines]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"arm": [], "start_s": [], "end_s": []}
    for arm, one in zip(arms, lines, strict=True):
        edges_s = one.edges_ns / 1e9
        columns["arm"] += [arm.name] * (len(edges_s) - 1)
        columns["start_s"] += edges_s[:-1].tolist()
        columns["end_s"] += edges_s[1:].tolist()
        for name, _, of in _PANELS:
            binned = of(one)
            columns.setdefault(f"{name}_mean", []).extend(binned.mean.tolist())
            if name != "tokens":
                columns.setdefault(f"{name}_min", []).extend(binned.low.tolist())
                columns.setdefault(f"{name}_max", []).extend(binned.high.tolist())
    return columns


def _said(arm: Arm, lines: TimeLines) -> str:
    parts = (
        f"{label.lower()} {_number(name, float(np.nanmean(of(lines).mean)))} on average, at most "
        f"{_number(name, float(np.nanmax(of(lines).high)))}"
        for name, label, of in _PANELS
        if not np.isnan(of(lines).mean).all()
    )
    return f"{arm.said}: {', '.join(parts)}"


def _number(name: str, value: float) -> str:
    return f"{value:.0%}" if name == "kv_use" else f"{value:,.4g}"


def _left_out(run: RunRecord) -> list[tuple[float, float]]:
    """Seconds of the warm-up and of the cool-down, from and to; arrivals in them are not counted."""
    if run.window is None:
        return []
    arrivals = [o.arrival_ns / 1e9 for o in run.offered]
    first, stop = run.window.places([o.arrival_ns for o in run.offered])
    found = [(0.0, arrivals[first])] if first else []
    return [*found, (arrivals[stop], run.duration_s)] if stop < len(arrivals) else found


def _draw(
    arms: Sequence[Arm],
    lines: Sequence[TimeLines],
    banded: bool,
    left_out: Sequence[tuple[float, float]],
    figure: Figure,
) -> None:
    panels: Sequence[Axes] = figure.subplots(len(_PANELS), 1, sharex=True).ravel().tolist()
    scale, unit = time_scale(lines[0].edges_ns[-1] / 1e9)
    for axes, (name, label, of) in zip(panels, _PANELS, strict=True):
        thin_grid(axes)
        for begin_s, end_s in left_out:
            axes.axvspan(begin_s / scale, end_s / scale, color=GRID, alpha=0.6, linewidth=0, zorder=0.5)
        means = np.array([np.nan_to_num(of(one).mean) for one in lines])
        for arm, one, at in zip(arms, lines, _standing_out(means), strict=True):
            _draw_line(axes, arm, one, of(one), scale, banded, at)
        axes.set_ylim(bottom=0)
        axes.set_ylabel(label)
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=name in ("waiting", "running")))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0) if name == "kv_use" else FuncFormatter(plain))
    _draw_budget(panels[-1], arms)
    panels[-1].set_xlabel(f"Time ({unit})")
    panels[-1].xaxis.set_major_formatter(FuncFormatter(plain))
    panels[-1].set_xlim(0, float(lines[0].edges_ns[-1]) / 1e9 / scale)
    figure.align_ylabels(panels)
    add_legend(figure, arms)


def _draw_line(axes: Axes, arm: Arm, lines: TimeLines, binned: Binned, scale: float, banded: bool, at: int) -> None:
    edges = lines.edges_ns / 1e9 / scale
    middles = (edges[:-1] + edges[1:]) / 2
    look = arm.look
    if banded and binned.low is not binned.mean:
        axes.fill_between(middles, binned.low, binned.high, color=look.colour, alpha=0.18, linewidth=0, step="mid")
    axes.plot(middles, binned.mean, color=look.colour, linestyle=look.dashes, linewidth=1.0)
    if not np.isnan(binned.mean[at]):
        write_letter(axes, look, float(middles[at]), float(binned.mean[at]))


def _standing_out(means: Floats) -> list[int]:
    """For each arm the bin where its line is best told from the others', away from the letters of arms before it."""
    chosen: list[int] = []
    places = np.arange(means.shape[1])
    top = means.max() or 1.0
    for arm, own in enumerate(means):
        others = np.delete(means, arm, axis=0)
        score = own / top if not len(others) else (own - others.max(axis=0)) / top
        if score.max() < _LETTER_HEIGHT / 4:
            score = own / top  # it stands out nowhere: at its own highest point
        for other, at in enumerate(chosen):
            near = np.abs(places - at) / means.shape[1] < _LETTER_WIDTH
            score = score - 2 * (near & (np.abs(own - means[other, at]) / top < _LETTER_HEIGHT))
        edge = np.minimum(places, places[::-1]) / means.shape[1] < _LETTER_WIDTH / 2
        chosen.append(int(np.argmax(score - 2 * edge)))
    return chosen


def _draw_budget(axes: Axes, arms: Sequence[Arm]) -> None:
    """The token budget, where all arms have one and it is not far above what they use."""
    budgets = {arm.first.limits.max_num_batched_tokens for arm in arms}
    if len(budgets) == 1 and (budget := budgets.pop()) < 1.3 * axes.get_ylim()[1]:
        axes.set_ylim(top=max(axes.get_ylim()[1], 1.08 * budget))
        draw_limit(axes, budget, "budget", vertical=False)
