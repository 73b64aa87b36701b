"""Figures of a comparison, each a function of it; drawn by matplotlib (extra ``report``)."""

from __future__ import annotations

from batchwright.lab.compare import Comparison
from batchwright.lab.figures.differences import differences
from batchwright.lab.figures.export import write_figures
from batchwright.lab.figures.fairness import fairness
from batchwright.lab.figures.gantt import gantt
from batchwright.lab.figures.latency_cdf import latency_cdfs
from batchwright.lab.figures.latex_table import latex_table
from batchwright.lab.figures.plot import Plot
from batchwright.lab.figures.timeline import timeline

__all__ = [
    "Plot",
    "differences",
    "fairness",
    "figures_of",
    "gantt",
    "latency_cdfs",
    "latex_table",
    "timeline",
    "write_figures",
]


def figures_of(comparison: Comparison) -> list[Plot]:
    """All figures that a comparison has something to show in, in the order of a report."""
    found = [
        differences(comparison),
        *latency_cdfs(comparison),
        timeline(comparison),
        gantt(comparison),
        fairness(comparison),
    ]
    return [plot for plot in found if plot is not None]
