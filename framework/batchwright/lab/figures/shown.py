"""Which metrics the tables and figures of a comparison have."""

from __future__ import annotations

from collections.abc import Mapping

from batchwright.lab import shown
from batchwright.lab.compare import Comparison
from batchwright.lab.metrics import Metric
from batchwright.lab.verdict import Verdict


def shown_metrics(comparison: Comparison) -> list[Metric]:
    """Those of the table on a terminal that some arm has; those of plugins that ask for it behind them."""
    summaries = comparison.summaries.values()
    metrics = shown.shown_metrics(comparison.metrics.metrics)
    return [metric for metric in metrics if any(summary.get(metric.name) is not None for summary in summaries)]


def verdicts_of(comparison: Comparison) -> Mapping[tuple[str, str], Verdict]:
    """Verdicts by arm and metric."""
    return {(verdict.arm, verdict.metric): verdict for verdict in comparison.verdicts}
