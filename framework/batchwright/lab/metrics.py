"""The metrics of a summary: names, units, labels for tables, definitions, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from batchwright.lab.samples import LATENCY_KINDS

Better = Literal["lower", "higher"]

PERCENTILES = (90, 95, 99)

QUANTILES: dict[str, float] = {"median": 0.5, **{f"p{p}": p / 100 for p in PERCENTILES}}
"""The quantiles of each latency, by the word that its metrics begin with."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a summary.

    Attributes:
        name: as in the JSON of ``vllm bench serve`` where that has it.
        label: for tables, with the unit; ``(%)`` is of shares.
        better: which way is better; None: neither by itself.
        decimals: shown in tables.
        scale: what the value is multiplied by in tables; 100 is of shares.
        unit: of the value; empty: a plain number or a share.
        doc: its definition, in a sentence.
        shown: whether tables have it without being asked; of a plugin's metrics.
    """

    name: str
    label: str
    better: Better | None
    decimals: int = 2
    scale: float = 1.0
    unit: str = ""
    doc: str = ""
    shown: bool = False

    @property
    def is_share(self) -> bool:
        """Whether tables have it in percent, and its differences in percentage points."""
        return self.scale == 100


def statistic(kind: str, latency: str) -> str:
    """The name of a metric: ``statistic("p99", "ttft")`` is ``p99_ttft_ms``."""
    return f"{kind}_{latency}_ms"


def _latencies() -> list[Metric]:
    kinds = {"mean": "lower", **dict.fromkeys(QUANTILES, "lower"), "std": None}
    found: list[Metric] = []
    for name, latency in LATENCY_KINDS.items():
        for kind, better in kinds.items():
            label = f"{kind.capitalize()} {latency.label} ({latency.unit})"
            unit, doc = latency.unit, latency.doc
            found.append(Metric(statistic(kind, name), label, "lower" if better else None, unit=unit, doc=doc))
    return found


_METRICS = (
    *_latencies(),
    Metric(
        "request_throughput", "Throughput (req/s)", "higher", 2, 1, "requests/s", "Finished requests over duration."
    ),
    Metric("output_throughput", "Output tokens/s", "higher", 1, 1, "tokens/s", "Their output tokens over duration."),
    Metric(
        "total_token_throughput", "All tokens/s", "higher", 1, 1, "tokens/s", "Their prompt and output tokens over it."
    ),
    Metric(
        "max_output_tokens_per_s",
        "Peak output tokens/s",
        "higher",
        0,
        1,
        "tokens/s",
        "The most output tokens of finished requests in one second; seconds count from the first arrival.",
    ),
    Metric(
        "max_concurrent_requests",
        "Peak concurrency (requests)",
        None,
        0,
        1,
        "requests",
        "The most finished requests that were there in one such second, waiting or running.",
    ),
    Metric(
        "request_goodput",
        "Goodput (req/s)",
        "higher",
        2,
        1,
        "requests/s",
        "Requests that finished within every objective they have, over duration; one without objectives only has to "
        "finish. Undefined where no request has any.",
    ),
    Metric(
        "slo_attainment",
        "SLO attainment (%)",
        "higher",
        1,
        100,
        "",
        "Share of the offered requests with objectives that finished within each of them.",
    ),
    Metric("completed", "Finished", "higher", 0, 1, "requests", "Requests that finished."),
    Metric("failed", "Not finished", "lower", 0, 1, "requests", "All the others: the sum of the four below."),
    Metric("num_refused", "Refused", "lower", 0, 1, "requests", "Never taken: infeasible, or shed by the policy."),
    Metric("num_unfinished", "Unfinished", "lower", 0, 1, "requests", "The run ended first."),
    Metric("num_failed", "Failed", "lower", 0, 1, "requests", "Ended by an error."),
    Metric("num_aborted", "Aborted", None, 0, 1, "requests", "Given up by their client."),
    Metric("num_preemptions", "Preemptions", "lower", 0, 1, "", "Evictions of all requests."),
    Metric(
        "recompute_tax",
        "Recomputed (%)",
        "lower",
        1,
        100,
        "",
        "Tokens computed again because of evictions, over the prompt tokens of all requests that were taken.",
    ),
    Metric(
        "cache_hit_rate",
        "Cache hits (%)",
        "higher",
        1,
        100,
        "",
        "Share of the prompt tokens of all requests that ran which the prefix cache held at their first admission.",
    ),
    Metric(
        "kv_use_mean",
        "KV use, mean (%)",
        None,
        1,
        100,
        "",
        "Share of the KV blocks that requests hold after a step, mean over steps by their time.",
    ),
    Metric("kv_use_peak", "KV use, peak (%)", None, 1, 100, "", "The largest such share."),
    Metric(
        "mean_batch_size",
        "Mean batch size (requests)",
        None,
        1,
        1,
        "requests",
        "Requests in a step's batch, mean over steps.",
    ),
    Metric("median_batch_size", "Median batch size (requests)", None, 0, 1, "requests", "The median over steps."),
    Metric("p99_batch_size", "P99 batch size (requests)", None, 0, 1, "requests", "The 99th percentile over steps."),
    Metric(
        "mean_step_tokens",
        "Mean tokens a step",
        None,
        1,
        1,
        "tokens",
        "Prompt tokens (recomputed ones too) and decodes of a step, mean over steps.",
    ),
    Metric("median_step_tokens", "Median tokens a step", None, 0, 1, "tokens", "The median over steps."),
    Metric("p99_step_tokens", "P99 tokens a step", None, 0, 1, "tokens", "The 99th percentile over steps."),
    Metric("num_steps", "Steps", None, 0, 1, "", "Steps of all replicas."),
    Metric("steps_per_s", "Steps/s", None, 1, 1, "1/s", "Steps over duration."),
    Metric(
        "waiting_share",
        "Somebody waits (% of time)",
        "lower",
        1,
        100,
        "",
        "Time of steps that left somebody waiting, over duration and replicas.",
    ),
    Metric(
        "longest_wait",
        "Longest wait (ms)",
        "lower",
        2,
        1000,
        "s",
        "The longest stretch in which a request waited: from arrival or eviction to admission, or the end of the run.",
    ),
    Metric(
        "max_passed_over",
        "Most often passed over (requests)",
        "lower",
        0,
        1,
        "requests",
        "The most requests that came later than one and were scheduled before it.",
    ),
    Metric(
        "passed_over",
        "Passed over (%)",
        None,
        1,
        100,
        "",
        "Share of the requests that were taken before which one was scheduled that came later.",
    ),
    Metric(
        "jain_fairness",
        "Jain's fairness index",
        "higher",
        3,
        1,
        "",
        "(Σx)² / (n·Σx²) over clients; x is the service that a client got per second and weight while it and another "
        "had requests waiting. Undefined where that never happened.",
    ),
    Metric(
        "max_service_gap",
        "Largest service gap (tokens)",
        "lower",
        0,
        1,
        "tokens",
        "The largest difference of the service that two clients got over any time in which both had requests waiting "
        "throughout: |W_f(t1, t2) - W_g(t1, t2)|.",
    ),
    Metric(
        "busy_imbalance",
        "Busiest replica / mean",
        None,
        2,
        1,
        "",
        "Seconds in which the busiest replica executed a step, over the mean of all; undefined with one.",
    ),
    Metric("num_tpot_undefined", "Without TPOT", None, 0, 1, "requests", "Finished requests of one output token."),
    Metric("total_input_tokens", "Input tokens", None, 0, 1, "tokens", "Prompt tokens of finished requests."),
    Metric("total_output_tokens", "Output tokens", None, 0, 1, "tokens", "Output tokens of finished requests."),
    Metric("duration", "Duration (s)", None, 2, 1, "s", "From the start of the run to its end."),
)

METRICS: dict[str, Metric] = {m.name: m for m in _METRICS}
"""Every metric of a summary, by name; plugins may add others."""
