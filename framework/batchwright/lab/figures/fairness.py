"""Fairness over time: service that each client received, and the largest gap between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from batchwright.lab.compare import Comparison
from batchwright.lab.fairness import OUTPUT_WEIGHT, PROMPT_WEIGHT
from batchwright.lab.figures.arms import Arm, arms_of, seeds_of
from batchwright.lab.figures.axes import plain, thin_grid, time_scale, write_letter
from batchwright.lab.figures.plot import Plot
from batchwright.lab.figures.service import Served, served_by
from batchwright.lab.figures.style import FAINT, INK, look, shorten

NUM_TIMES = 120
MOST_CLIENTS = 5
"""Clients with a line of their own; of more, the others are drawn alike."""

MOST_ARMS = 4


def fairness(comparison: Comparison) -> Plot | None:
    """Of workloads with two clients or more; else None."""
    every = arms_of(comparison)
    arms = every[:MOST_ARMS]
    num_clients = len({request.client_id for request in arms[0].first.requests})
    if num_clients < 2:
        return None
    end_ns = max(arm.first.duration_ns for arm in every)
    times = np.linspace(0, max(end_ns, 1), NUM_TIMES + 1).astype(np.int64)
    served = [served_by(arm.first, times) for arm in every]
    named = _named(served[0])
    said = [
        f"Service so far: {PROMPT_WEIGHT:g} for a prompt token, {OUTPUT_WEIGHT:g} for an output token, over the weight "
        "of the client. Below: the client served most so far less the one served least; clients who ask for less "
        "widen it too."
    ]
    if num_clients > len(named):
        said.append(
            f"Of {num_clients:,} clients the {len(named)} served most by {arms[0].look.letter} have a line of their "
            "own; the others are grey."
        )
    if len(arms) < len(every):
        said.append(f"The upper panels show the first {len(arms)} of {len(every)} arms.")
    return Plot(
        name="fairness",
        title="Fairness over time",
        caption=" ".join(said) + seeds_of(every),
        alt=f"{num_clients} clients. "
        + "; ".join(f"{a.said}: largest gap {s.gap.max():,.0f} tokens" for a, s in zip(every, served, strict=True))
        + ".",
        columns=_columns(every, served),
        draw=partial(_draw, every, served, named),
        height_in=1.0 + 1.05 * len(arms) + 1.2,
        wide_in=1.0 + 1.05 * len(arms) + 1.2,
    )


def _named(service: Served) -> list[str]:
    return service.clients[:MOST_CLIENTS] if len(service.clients) > MOST_CLIENTS + 1 else service.clients


def _columns(arms: Sequence[Arm], served: Sequence[Served]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"arm": [], "client": [], "time_s": [], "service_tokens": []}
    for arm, service in zip(arms, served, strict=True):
        rows = [*zip(service.clients, service.total, strict=True), ("largest gap", service.gap)]
        for client, values in rows:
            columns["arm"] += [arm.name] * len(values)
            columns["client"] += [client] * len(values)
            columns["time_s"] += service.times_s.tolist()
            columns["service_tokens"] += values.tolist()
    return columns


def _draw(arms: Sequence[Arm], served: Sequence[Served], named: Sequence[str], figure: Figure) -> None:
    shown = min(len(arms), MOST_ARMS)
    panels: Sequence[Axes] = figure.subplots(shown + 1, 1, sharex=True).ravel().tolist()
    scale, unit = time_scale(float(served[0].times_s[-1]))
    most = max(float(service.total.max()) for service in served)
    factor, tokens = (1000.0, "1,000 tokens") if most >= 10_000 else (1.0, "tokens")
    for axes, arm, service in zip(panels, arms, served, strict=False):
        thin_grid(axes)
        _draw_clients(axes, service, named, scale, factor)
        axes.set_ylim(0, 1.05 * max(most / factor, 1e-9))
        axes.set_ylabel("Service", fontsize=8)
        axes.set_title(f"{arm.look.letter}  {shorten(arm.name, 42)}", fontsize=8, loc="left", pad=2)
    gaps = panels[-1]
    thin_grid(gaps)
    for place, (arm, service) in enumerate(zip(arms, served, strict=True)):
        gaps.plot(service.times_s / scale, service.gap / factor, color=arm.look.colour, linestyle=arm.look.dashes)
        at = int((place + 1) / (len(arms) + 1) * NUM_TIMES)
        write_letter(gaps, arm.look, service.times_s[at] / scale, service.gap[at] / factor)
    gaps.set_ylim(bottom=0)
    gaps.set_ylabel("Largest gap")
    gaps.xaxis.set_major_formatter(FuncFormatter(plain))
    gaps.set_xlabel(f"Time ({unit}); service in {tokens}")
    gaps.set_xlim(0, float(served[0].times_s[-1]) / scale)
    for axes in panels:
        axes.yaxis.set_major_formatter(FuncFormatter(plain))
        axes.yaxis.set_major_locator(MaxNLocator(3))
    figure.align_ylabels(panels)


def _draw_clients(axes: Axes, service: Served, named: Sequence[str], scale: float, factor: float) -> None:
    """Clients look alike in all panels: colour, dashes, and their name at the end of the line."""
    ends: list[tuple[float, str, str]] = []
    for client, total in zip(service.clients, service.total, strict=True):
        values = total / factor
        if client not in named:
            axes.plot(service.times_s / scale, values, color=FAINT, linewidth=0.4, alpha=0.5)
            continue
        how = look(named.index(client))
        axes.plot(service.times_s / scale, values, color=how.colour, linestyle=how.dashes, linewidth=1.1)
        ends.append((float(values[-1]), shorten(client, 10), how.colour))
    for (value, text, colour), height in zip(sorted(ends), _apart(sorted(v for v, _, _ in ends)), strict=True):
        axes.annotate(
            text,
            (1.0, value),
            (1.015, height),
            xycoords=axes.get_yaxis_transform(),
            textcoords=axes.get_yaxis_transform(),
            fontsize=7,
            color=INK,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0},
        )


def _apart(values: Sequence[float]) -> list[float]:
    """Heights for names beside ascending values: at them, or where lines end together, apart and below the top."""
    room = 0.15 * max(values, default=0.0)
    heights = list(values)
    for place in range(len(heights) - 2, -1, -1):
        heights[place] = min(heights[place], heights[place + 1] - room)
    return heights
