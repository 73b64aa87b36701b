"""Figures of designs, from their ``summary.json``: capacities against rate, sweeps along an axis, trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchwright.lab.figures.curves import Panel, curve_of, curves_plot
from batchwright.lab.figures.plot import Plot
from batchwright.lab.figures.trials import trial_plots
from batchwright.lab.metrics import METRICS

SWEPT = ("p99_ttft_ms", "p99_itl_ms", "mean_e2el_ms", "request_goodput", "request_throughput")
"""Metrics of a sweep that are drawn; goodput only where requests have objectives."""

MOST_PLOTS = 6
"""Figures of one sweep, where it has several axes."""

_X: dict[str, str] = {"rate": "Rate (requests/s)", "speedup": "Speedup", "concurrency": "Concurrent requests"}
_GOODPUT, _THROUGHPUT = "request_goodput", "request_throughput"
_SEEDS = "bands reach from the lowest to the highest of {} seeds"


def design_plots(summary: Mapping[str, Any], objectives: Mapping[str, float] | None = None) -> list[Plot]:
    """The figures of a sweep, of a search of capacities, or of parameters.

    Args:
        summary: what its ``to_json`` gave.
        objectives: of requests, by metric: drawn as lines in a sweep.
    """
    design = summary.get("design")
    if design == "capacity":
        return _capacity(summary)
    if design == "tune":
        return trial_plots(summary)
    return list(_sweep(summary, objectives or {})) if design == "sweep" else []


def _capacity(summary: Mapping[str, Any]) -> list[Plot]:
    arms: Mapping[str, Any] = summary["arms"]
    if not any(found["points"] for found in arms.values()):
        return []
    panels = []
    for bound in summary["bounds"]:
        text, unit = bound["text"], bound["unit"]
        curves = [
            curve_of(
                arm,
                {point["load"]: point["values"].get(text, ()) for point in found["points"]},
                {point["load"]: text not in point["limited_by"] for point in found["points"]},
            )
            for arm, found in arms.items()
        ]
        label = f"{bound['name']} ({unit})" if unit in ("s", "ms") else bound["name"]
        panels.append(Panel(label, [c for c in curves if len(c.xs)], bound["limit"], unit == "share"))
    caption = (
        "Loads that were tried. A filled mark meets the objective of its panel with "
        f"{summary['confidence']:.0%} confidence, a hollow one does not; " + _SEEDS.format(len(summary["seeds"])) + "."
    )
    of = "rate" if summary["unit"] == "requests/s" else "concurrency"
    title = "Against rate" if of == "rate" else "Against the number of users"
    return [curves_plot(of, title, _X[of], caption, list(arms), panels)]


def _sweep(summary: Mapping[str, Any], objectives: Mapping[str, float]) -> Iterator[Plot]:
    points = [point for point in summary["points"] if "summary" in point]
    number = 0
    axes: Mapping[str, Sequence[Any]] = summary["axes"]
    for axis, values in axes.items():
        if len(values) < 2 or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            continue
        groups: dict[str, list[Mapping[str, Any]]] = {}
        for point in points:
            rest = ", ".join(f"{name}={value}" for name, value in point["values"].items() if name != axis)
            groups.setdefault(rest, []).append(point)
        for rest, group in groups.items():
            panels = list(_swept(summary["arms"], axis, group, objectives))
            if number < MOST_PLOTS and panels and len(group) > 1:
                number += 1
                where = f" at {rest}" if rest else ""
                caption = f"A mark a point{where}; {_SEEDS.format(len(summary['seeds']))}."
                title = f"Against {axis}{where}"
                yield curves_plot(f"sweep_{number}", title, _X.get(axis, axis), caption, summary["arms"], panels)


def _swept(
    arms: Sequence[str], axis: str, points: Sequence[Mapping[str, Any]], objectives: Mapping[str, float]
) -> Iterator[Panel]:
    has_goodput = any(found.get(_GOODPUT) is not None for point in points for found in point["summary"].values())
    for name in SWEPT:
        if name == (_THROUGHPUT if has_goodput else _GOODPUT):
            continue
        curves = [
            curve_of(arm, {point["values"][axis]: point["spread"].get(arm, {}).get(name, ()) for point in points})
            for arm in arms
        ]
        if curves := [curve for curve in curves if len(curve.xs)]:
            yield Panel(METRICS[name].label, curves, objectives.get(name))
