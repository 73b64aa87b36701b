"""The busiest second of a run, as ``vllm bench serve`` finds it."""

from __future__ import annotations

import numpy as np

from batchwright.lab.run_record import RunRecord
from batchwright.lab.samples import all_times


def peak_metrics(run: RunRecord) -> dict[str, float | int | None]:
    """``max_output_tokens_per_s`` and ``max_concurrent_requests``.

    Over seconds that count from the arrival of the first request that finished; of finished requests only. Both maxima
    may be of different seconds, as there (``calculate_metrics`` of vllm/benchmarks/serve.py, release 0.32.0).
    """
    finished = [r for r in run.requests if r.status == "finished" and len(r.token_times_ns)]
    if not finished:
        return {"max_output_tokens_per_s": None, "max_concurrent_requests": None}
    arrivals = np.array([r.arrival_ns for r in finished], dtype=np.int64)
    start = int(arrivals.min())
    tokens = all_times(finished)
    began = (arrivals - start) // 10**9
    ended = (np.array([r.token_times_ns[-1] for r in finished], dtype=np.int64) - start) // 10**9
    there = np.zeros(int(ended.max()) + 2, dtype=np.int64)  # how many more are there in a second than in the one before
    np.add.at(there, began, 1)
    np.add.at(there, ended + 1, -1)
    return {
        "max_output_tokens_per_s": int(np.bincount((tokens - start) // 10**9).max()),
        "max_concurrent_requests": int(np.cumsum(there).max()),
    }
