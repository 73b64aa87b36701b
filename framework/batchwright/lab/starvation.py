"""How long a request waited at the most, and how often requests were passed over by others that came later."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.run_record import RunRecord
from batchwright.lab.samples import end_of, stretches_out

Ints = NDArray[np.int64]

_NEVER = np.iinfo(np.int64).max


def starvation_metrics(run: RunRecord) -> dict[str, float | int | None]:
    """``longest_wait``, ``max_passed_over`` and ``passed_over``; of requests that were taken, finished or not.

    Without those that ran nobody knows since when, as on a server elsewhere.
    """
    taken = [
        r for r in run.requests if r.status != "refused" and (r.first_scheduled_ns is not None or not r.token_times_ns)
    ]
    if not taken:
        return {"longest_wait": None, "max_passed_over": None, "passed_over": None}
    longest = 0
    for record in taken:
        begun, end = record.first_scheduled_ns, record.finish_ns
        end = end_of(run) if end is None else end
        longest = max(longest, (end if begun is None else begun) - record.arrival_ns)
        if record.preempted_ns:
            longest = max(longest, *(b - a for a, b in stretches_out(record, end)), 0)
    passes = passed_over(
        np.array([r.arrival_ns for r in taken], dtype=np.int64),
        np.array([_NEVER if r.first_scheduled_ns is None else r.first_scheduled_ns for r in taken], dtype=np.int64),
    )
    return {
        "longest_wait": longest / 1e9,
        "max_passed_over": int(passes.max()),
        "passed_over": float((passes > 0).mean()),
    }


def passed_over(arrivals: Ints, begun: Ints) -> Ints:
    """int64[n]: for each request, how many came later and began earlier.

    Args:
        arrivals: int64[n]: when each came; of equal ones, the earlier in this order came first.
        begun: int64[n]: when each began.

    Counts the inversions of each element by merging, in O(n log² n) without a loop over requests.
    """
    order = np.argsort(arrivals, kind="stable")
    ranks = np.unique(begun[order], return_inverse=True)[1].astype(np.int64)
    num = len(ranks)
    counts = np.zeros(num, dtype=np.int64)
    if (np.diff(ranks) < 0).any():
        places = np.arange(num)
        half = 1
        while half < num:
            block, right = places // (2 * half), (places // half) % 2
            # By block, then by when they began; of equals the left half first, so that these count for nobody.
            merged = np.argsort((block * num + ranks) * 2 + right, kind="stable")
            rights = right[merged]
            before = np.cumsum(rights)
            since = np.searchsorted(block[merged], block[merged])  # where each block begins
            counts[merged] += np.where(rights == 0, before - np.where(since > 0, before[since - 1], 0), 0)
            half *= 2
    found = np.empty(num, dtype=np.int64)
    found[order] = counts
    return found
