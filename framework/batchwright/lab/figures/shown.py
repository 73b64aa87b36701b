"""Which metrics the tables and figures of a comparison have."""

from __future__ import annotations

from collections.abc import Mapping

from batchwright.lab.compare import PRIMARY_MARK, Comparison
from batchwright.lab.metrics import Metric
from batchwright.lab.shown import SHOWN
from batchwright.lab.verdict import Verdict


def shown_metrics(comparison: Comparison) -> list[Metric]:
    """Those of the table on a terminal that some arm has; those of plugins that ask for it behind them."""
    every = comparison.metrics.metrics
    names = [*SHOWN, *(name for name, metric in every.items() if metric.shown and name not in SHOWN)]
    return [every[name] for name in names if any(s.get(name) is not None for s in comparison.summaries.values())]


def label_of(metric: Metric, comparison: Comparison) -> str:
    """A metric's label, marked where it is one of the primary ones."""
    return f"{metric.label} {PRIMARY_MARK}" if metric.name in comparison.family.primary else metric.label


def verdicts_of(comparison: Comparison) -> Mapping[tuple[str, str], Verdict]:
    """Verdicts by arm and metric."""
    return {(verdict.arm, verdict.metric): verdict for verdict in comparison.verdicts}
