"""The metrics that tables show; files have all."""

from __future__ import annotations

from collections.abc import Mapping

from batchwright.errors import ConfigError, did_you_mean
from batchwright.lab.metrics import METRICS, QUANTILES, Metric, statistic
from batchwright.lab.samples import LATENCIES

SHOWN = (
    *(f"{kind}_{latency}_ms" for latency in ("ttft", "itl", "tpot", "e2el") for kind in ("mean", "median", "p99")),
    "request_throughput",
    "output_throughput",
    "slo_attainment",
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
    "jain_fairness",
    "max_service_gap",
    "busy_imbalance",
)
"""Of Batchwright's own, in their order."""


def shown_metrics(metrics: Mapping[str, Metric] = METRICS) -> list[Metric]:
    """What a table shows of these metrics, in order: ``SHOWN``, and those of plugins that ask for it."""
    return [metrics[name] for name in SHOWN] + [m for m in metrics.values() if m.shown and m.name not in SHOWN]


def choose_metrics(text: str, metrics: Mapping[str, Metric] = METRICS) -> list[Metric]:
    """The metrics that somebody names for a table, in that order.

    Args:
        text: names with commas between them; the name of a latency stands for its mean and quantiles, ``all`` for all.
        metrics: those that there are.

    Raises:
        ConfigError: there is no metric of a name; the message gives the nearest names.
    """
    found: dict[str, Metric] = {}
    for name in filter(None, map(str.strip, text.split(","))):
        if name == "all":
            found |= metrics
        elif name in LATENCIES:
            found |= {n: metrics[n] for n in (statistic(kind, name) for kind in ("mean", *QUANTILES))}
        elif name in metrics:
            found[name] = metrics[name]
        else:
            raise ConfigError(f"--metrics: there is no metric {name!r}; {did_you_mean(name, (*metrics, *LATENCIES))}")
    if not found:
        raise ConfigError("--metrics is empty: name some, as in mean_ttft_ms,kv_use_mean, or leave it out")
    return list(found.values())
