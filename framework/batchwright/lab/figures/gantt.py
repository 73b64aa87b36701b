"""A Gantt chart of some requests: when each waited, prefilled, decoded, or was out after an eviction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from batchwright.lab.compare import Comparison
from batchwright.lab.figures.arms import Arm, arms_of, seeds_of
from batchwright.lab.figures.axes import plain, thin_grid
from batchwright.lab.figures.phases import Phases, phases_of
from batchwright.lab.figures.plot import Plot
from batchwright.lab.figures.style import INK, shorten
from batchwright.lab.records import RequestRecord

NUM_ROWS = 40
"""Requests that are drawn, where there are more."""

MOST_ARMS = 4

Bar = tuple[float, dict[str, Any]]
_BARS: dict[str, Bar] = {
    "waiting": (0.22, {"facecolor": "#9a9a9a", "edgecolor": "none"}),
    "prefill": (0.9, {"facecolor": "#D55E00", "edgecolor": INK, "linewidth": 0.3}),
    "decode": (0.55, {"facecolor": "#7fb8d8", "edgecolor": "none"}),
    "evicted": (0.55, {"facecolor": "white", "edgecolor": INK, "linewidth": 0.4, "hatch": "//////"}),
}
"""Height and look of each phase: heights and hatches tell them apart without colour."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The requests that are drawn, of one arm."""

    arm: Arm
    records: Sequence[RequestRecord]
    phases: Sequence[Phases]


def gantt(comparison: Comparison) -> Plot | None:
    """Requests that arrived one after another, the same ones in each arm; None where there are none."""
    every = arms_of(comparison)
    arms = every[:MOST_ARMS]
    total = len(arms[0].first.requests)
    if not total:
        return None
    begin = _most_telling(arms) if total > NUM_ROWS else 0
    chosen = slice(begin, begin + NUM_ROWS)
    rows = [_rows(arm, arm.first.requests[chosen]) for arm in arms]
    evicted = any(phases.evicted for one in rows for phases in one.phases)
    num = len(rows[0].records)
    return Plot(
        name="requests",
        title="Requests one by one",
        caption=" ".join(_caption(arms, len(every), num, total, evicted)) + seeds_of(arms),
        alt=f"{num} requests as bars in time, in order of arrival. " + "; ".join(_said(one) for one in rows) + ".",
        columns=_columns(rows),
        draw=partial(_draw, rows, evicted),
        height_in=0.6 + len(rows) * (0.35 + 0.036 * num),
        wide_in=0.6 + len(rows) * (0.35 + 0.045 * num),
    )


def _rows(arm: Arm, records: Sequence[RequestRecord]) -> _Rows:
    return _Rows(arm, records, [phases_of(record, arm.first.duration_ns) for record in records])


def _caption(arms: Sequence[Arm], num_arms: int, num: int, total: int, evicted: bool) -> list[str]:
    said = ["A bar a request, by arrival, first at the top: thin while it waits, high in prefill, lower in decode."]
    if evicted:
        said.append("Hatched: evicted, until it is admitted again and prefills once more.")
    if num < total:
        which = "in which the arms' latencies differ most" if len(arms) > 1 else "that waited longest"
        said.append(f"{num} of {total:,} requests are shown, the {num} in a row {which}: not a typical stretch.")
    if len(arms) < num_arms:
        said.append(f"The first {len(arms)} of {num_arms} arms are shown.")
    return said


def _most_telling(arms: Sequence[Arm]) -> int:
    """Where the row of requests begins that shows most of what tells the arms apart; of one arm, who waits longest."""
    if len(arms) == 1:
        run = arms[0].first
        begun = [run.duration_ns if r.first_scheduled_ns is None else r.first_scheduled_ns for r in run.requests]
        score = np.array(begun, np.float64) - np.array([r.arrival_ns for r in run.requests], np.float64)
    else:
        ends = np.array([_ends(arm) for arm in arms])
        score = ends.max(axis=0) - ends.min(axis=0)
    sums = np.concatenate([[0.0], np.cumsum(score)])
    return int(np.argmax(sums[NUM_ROWS:] - sums[:-NUM_ROWS]))


def _ends(arm: Arm) -> NDArray[np.float64]:
    run = arm.first
    return np.array([run.duration_ns if r.finish_ns is None else r.finish_ns for r in run.requests], np.float64)


def _columns(rows: Sequence[_Rows]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"arm": [], "request_id": [], "status": [], "phase": [], "start_s": [], "end_s": []}
    for one in rows:
        for record, phases in zip(one.records, one.phases, strict=True):
            for phase in _BARS:
                for begin, end in getattr(phases, phase):
                    cells = (one.arm.name, record.request_id, record.status, phase, begin / 1e9, end / 1e9)
                    for name, cell in zip(columns, cells, strict=True):
                        columns[name].append(cell)
    return columns


def _said(rows: _Rows) -> str:
    spans = {phase: sum(e - b for p in rows.phases for b, e in getattr(p, phase)) / 1e9 for phase in _BARS}
    return f"{rows.arm.said}: " + ", ".join(f"{s:,.3g} s of {p}" for p, s in spans.items() if s)


def _draw(rows: Sequence[_Rows], evicted: bool, figure: Figure) -> None:
    panels: Sequence[Axes] = figure.subplots(len(rows), 1, sharex=True, squeeze=False).ravel().tolist()
    start = min(record.arrival_ns for one in rows for record in one.records) / 1e9
    end = max((e for one in rows for p in one.phases for bars in _all(p) for _, e in bars), default=0) / 1e9
    for axes, one in zip(panels, rows, strict=True):
        thin_grid(axes)
        axes.grid(visible=False, axis="y")
        for phase, (height, look) in _BARS.items():
            axes.add_collection(PolyCollection(_boxes(one, phase, height), **look))
        for place, record in enumerate(one.records):
            if record.status in ("refused", "failed", "aborted"):
                at = (record.finish_ns if record.finish_ns is not None else record.arrival_ns) / 1e9
                axes.plot([at], [place], marker="x", color=INK, markersize=3, markeredgewidth=0.8)
        axes.set_ylim(len(one.records) - 0.3, -0.7)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_title(f"{one.arm.look.letter}  {shorten(one.arm.name, 42)}", fontsize=8, loc="left", pad=2)
    room = 0.02 * max(end - start, 1e-9)
    panels[-1].set_xlim(start - room, end + room)
    panels[-1].xaxis.set_major_formatter(FuncFormatter(plain))
    panels[-1].set_xlabel("Time (s)")
    shown = [phase for phase in _BARS if phase != "evicted" or evicted]
    handles: list[Any] = [Patch(label=phase, **_BARS[phase][1]) for phase in shown]
    if any(r.status in ("refused", "failed", "aborted") for one in rows for r in one.records):
        (cross,) = panels[0].plot([], [], marker="x", linestyle="", color=INK, markersize=3, label="not finished")
        handles.append(cross)
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=len(handles),
        handlelength=1.2,
        columnspacing=0.9,
        handletextpad=0.4,
    )


def _all(phases: Phases) -> Sequence[Sequence[tuple[int, int]]]:
    return phases.waiting, phases.prefill, phases.decode, phases.evicted


def _boxes(rows: _Rows, phase: str, height: float) -> list[list[tuple[float, float]]]:
    boxes: list[list[tuple[float, float]]] = []
    for place, phases in enumerate(rows.phases):
        low, high = place - height / 2, place + height / 2
        for begin, end in getattr(phases, phase):
            a, b = begin / 1e9, end / 1e9
            boxes.append([(a, low), (b, low), (b, high), (a, high)])
    return boxes
