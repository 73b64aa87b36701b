"""The metrics of a summary: names, labels for tables, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchwright.lab.samples import LATENCIES

PERCENTILES = (90, 99)


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a summary.

    Attributes:
        name: as in the JSON of ``vllm bench serve`` where that has it.
        label: for tables, with the unit.
        better: which way is better; None: neither by itself.
        decimals: shown in tables.
        scale: what the value is multiplied by in tables.
    """

    name: str
    label: str
    better: Literal["lower", "higher"] | None
    decimals: int = 2
    scale: float = 1.0


def _latencies() -> list[Metric]:
    kinds = ["mean", "median", *(f"p{p}" for p in PERCENTILES)]
    found: list[Metric] = []
    for latency in LATENCIES:
        for kind in kinds:
            label = f"{kind.capitalize()} {latency.upper()} (ms)"
            found.append(Metric(f"{kind}_{latency}_ms", label, "lower"))
        found.append(Metric(f"std_{latency}_ms", f"Std {latency.upper()} (ms)", None))
    return found


_METRICS = (
    *_latencies(),
    Metric("request_throughput", "Throughput (req/s)", "higher"),
    Metric("output_throughput", "Output tokens/s", "higher", 1),
    Metric("total_token_throughput", "All tokens/s", "higher", 1),
    Metric("request_goodput", "Goodput (req/s)", "higher"),
    Metric("completed", "Finished", "higher", 0),
    Metric("num_refused", "Refused", "lower", 0),
    Metric("num_unfinished", "Unfinished", "lower", 0),
    Metric("num_failed", "Failed", "lower", 0),
    Metric("num_aborted", "Aborted", None, 0),
    Metric("num_preemptions", "Preemptions", "lower", 0),
    Metric("recompute_tax", "Recomputed (%)", "lower", 1, 100),
    Metric("cache_hit_rate", "Cache hits (%)", "higher", 1, 100),
    Metric("busy_imbalance", "Busiest replica / mean", None),
    Metric("num_tpot_undefined", "Without TPOT", None, 0),
    Metric("total_input_tokens", "Input tokens", None, 0),
    Metric("total_output_tokens", "Output tokens", None, 0),
    Metric("duration", "Duration (s)", None),
)

METRICS: dict[str, Metric] = {m.name: m for m in _METRICS}
"""Every metric of a summary, by name."""
