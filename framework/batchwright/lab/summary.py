"""The numbers of one run, under the names of ``vllm bench serve --save-result`` and with its definitions."""

from __future__ import annotations

from collections import Counter

import numpy as np

from batchwright.lab.metrics import PERCENTILES
from batchwright.lab.replicas import busy_imbalance
from batchwright.lab.run_record import RunRecord
from batchwright.lab.samples import latency_samples, met_slo

Summary = dict[str, float | int | None]
"""Metrics by name; None where a metric is undefined: no request finished, or none has an objective."""


def summarize(run: RunRecord) -> Summary:
    """The metrics of a run.

    Token counts and throughputs are of finished requests, as in vLLM, over ``duration``, the seconds from the start of
    the run to its end. Latencies are in milliseconds: ``mean_``, ``median_``, ``std_`` (of the population), ``p90_``
    and ``p99_`` (linear between ranks) of ``ttft``, ``tpot``, ``itl`` and ``e2el``, each with ``_ms``. Beyond vLLM's:

    - ``request_goodput``: requests a second that finished within their own ``slo``. Refused, failed, aborted and
      unfinished ones missed it. A request without objectives only has to finish; None when no request has any.
    - ``num_refused``, ``num_unfinished``, ``num_failed``, ``num_aborted``: what did not finish, and how.
    - ``num_tpot_undefined``: finished requests of one output token, which TPOT leaves out.
    - ``num_preemptions``: evictions of all requests.
    - ``recompute_tax``: tokens computed again because of evictions, as a share of the prompt tokens of all requests
      that were taken.
    - ``cache_hit_rate``: share of the prompt tokens of all requests that ran which the prefix cache held.
    - ``busy_imbalance``: seconds in which the busiest replica executed a step, over the mean of all replicas; None with
      one.
    """
    requests = run.requests
    status = Counter(r.status for r in requests)
    finished = [r for r in requests if r.status == "finished"]
    duration = run.duration_s
    input_tokens = sum(r.num_prompt_tokens for r in finished)
    output_tokens = sum(r.num_output_tokens for r in finished)
    taken = sum(r.num_prompt_tokens for r in requests if r.status != "refused")
    ran = sum(r.num_prompt_tokens for r in requests if r.first_scheduled_ns is not None)

    def rate(count: float) -> float | None:
        return count / duration if duration > 0 else None

    summary: Summary = {
        "duration": duration,
        "completed": len(finished),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": rate(len(finished)),
        "request_goodput": rate(sum(map(met_slo, requests))) if any(r.slo for r in requests) else None,
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
    }
    for name, samples in latency_samples(run).items():
        values = samples.values
        some = len(values) > 0
        summary[f"mean_{name}_ms"] = float(values.mean()) if some else None
        summary[f"median_{name}_ms"] = float(np.median(values)) if some else None
        summary[f"std_{name}_ms"] = float(values.std()) if some else None
        for p in PERCENTILES:
            summary[f"p{p}_{name}_ms"] = float(np.percentile(values, p)) if some else None
    return summary
