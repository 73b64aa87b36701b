"""The numbers of one run, under the names of ``vllm bench serve --save-result`` and with its definitions."""

from __future__ import annotations

from collections import Counter

import numpy as np

from batchwright.lab.fairness import fairness_metrics
from batchwright.lab.metrics import QUANTILES, statistic
from batchwright.lab.peaks import peak_metrics
from batchwright.lab.plugin_metrics import BUILT_IN, MetricSet
from batchwright.lab.replicas import busy_imbalance
from batchwright.lab.run_record import RunRecord
from batchwright.lab.samples import Samples, latency_samples, met_slo
from batchwright.lab.starvation import starvation_metrics
from batchwright.lab.step_metrics import step_metrics
from batchwright.lab.window import measured, throughput

Summary = dict[str, float | int | None]
"""Metrics by name; None where a metric is undefined: no request finished, or none has an objective."""


NOT_SEEN = (
    *("num_preemptions", "recompute_tax", "cache_hit_rate", "num_steps", "steps_per_s"),
    *("longest_wait", "max_passed_over", "passed_over"),
)
"""Metrics that an endpoint does not show, and that would be 0 of its records; None there."""


def summarize(run: RunRecord, metrics: MetricSet = BUILT_IN) -> Summary:
    """The metrics of a run: those of ``METRICS``, which defines them, and those of plugins.

    Token counts and throughputs are of finished requests, as in vLLM, over ``duration``, the seconds from the start of
    the run to its end. Latencies are in milliseconds: ``mean_``, ``median_``, ``std_`` (of the population), ``p90_``,
    ``p95_`` and ``p99_`` (linear between ranks) of each of ``LATENCIES``, with ``_ms`` behind. Of a run with a window
    all is of the requests that arrive in it and over its length, and throughputs of all that ended in it.

    Args:
        run: its record, fresh or read from a file.
        metrics: those of plugins.

    Raises:
        PluginError: a metric of a plugin failed, or gave something else than a number; names metric and plugin.
    """
    if run.window is not None:
        return {**summarize(measured(run), metrics), **throughput(run)}
    requests = run.requests
    status = Counter(r.status for r in requests)
    finished = [r for r in requests if r.status == "finished"]
    duration = run.duration_s
    input_tokens = sum(r.num_prompt_tokens for r in finished)
    output_tokens = sum(r.num_output_tokens for r in finished)
    taken = sum(r.num_prompt_tokens for r in requests if r.status != "refused")
    ran = sum(r.num_prompt_tokens for r in requests if r.first_scheduled_ns is not None)
    bound = [r for r in requests if r.slo]

    def rate(count: float) -> float | None:
        return count / duration if duration > 0 else None

    summary: Summary = {
        "duration": duration,
        "completed": len(finished),
        "failed": len(requests) - len(finished),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": rate(len(finished)),
        "request_goodput": rate(sum(map(met_slo, requests))) if bound else None,
        "slo_attainment": sum(map(met_slo, bound)) / len(bound) if bound else None,
        "output_throughput": rate(output_tokens),
        "total_token_throughput": rate(input_tokens + output_tokens),
        "num_refused": status["refused"],
        "num_unfinished": status["unfinished"],
        "num_failed": status["failed"],
        "num_aborted": status["aborted"],
        "num_preemptions": sum(r.num_preemptions for r in requests),
        "num_tpot_undefined": sum(r.num_output_tokens <= 1 for r in finished),
        "recompute_tax": sum(r.num_recomputed_tokens for r in requests) / taken if taken else None,
        "cache_hit_rate": sum(r.num_cached_tokens for r in requests) / ran if ran else None,
        "busy_imbalance": busy_imbalance(run),
        **peak_metrics(run),
        **step_metrics(run),
        **starvation_metrics(run),
        **fairness_metrics(run),
    }
    for name, samples in latency_samples(run).items():
        summary |= {statistic(kind, name): value for kind, value in statistics(samples).items()}
    if run.is_endpoint:
        summary |= dict.fromkeys(NOT_SEEN)
    return {**summary, **metrics.summarize(run)}


def statistics(samples: Samples) -> dict[str, float | None]:
    """``mean``, ``std`` and each of ``QUANTILES`` of some values; all None where there are none."""
    values = samples.values
    if not len(values):
        return dict.fromkeys(("mean", "std", *QUANTILES))
    found = np.quantile(values, list(QUANTILES.values())).tolist()
    return {"mean": float(values.mean()), "std": float(values.std()), **dict(zip(QUANTILES, found, strict=True))}
