"""The metrics that tables show; files have all."""

from __future__ import annotations

from collections.abc import Mapping

from batchwright.lab.metrics import METRICS, Metric

SHOWN = (
    *(f"{kind}_{latency}_ms" for latency in ("ttft", "itl", "tpot", "e2el") for kind in ("mean", "median", "p99")),
    "request_throughput",
    "output_throughput",
    "request_goodput",
    "completed",
    "num_refused",
    "num_unfinished",
    "num_failed",
    "num_aborted",
    "num_tpot_undefined",
    "num_preemptions",
    "recompute_tax",
    "cache_hit_rate",
    "busy_imbalance",
)
"""Of Batchwright's own, in their order."""


def shown_metrics(metrics: Mapping[str, Metric] = METRICS) -> list[Metric]:
    """What a table shows of these metrics, in order: ``SHOWN``, and those of plugins that ask for it."""
    return [metrics[name] for name in SHOWN] + [m for m in metrics.values() if m.shown and m.name not in SHOWN]
