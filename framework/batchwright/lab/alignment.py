"""How far two runs decided alike."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def share_that_differs(base: Sequence[int], other: Sequence[int]) -> float:
    """Share of steps whose batch has no counterpart in the other run, in order.

    1 less the longest common subsequence of both runs' batch fingerprints, over the longer run. So one step more in one
    run does not make all later steps differ, and the same batches in another order do. The k-th occurrence of a batch
    in one run only pairs with the k-th in the other; all keys are then unique, and the longest common subsequence is
    the longest increasing one of their places (Hunt and Szymanski, CACM 20, 1977), found in O(n log n).
    """
    longest = max(len(base), len(other))
    if not longest:
        return 0.0
    ends: list[int] = []  # ends[k]: the smallest place that ends an increasing sequence of k + 1
    for place in _places(np.asarray(base, dtype=np.uint64), np.asarray(other, dtype=np.uint64)).tolist():
        if not ends or place > ends[-1]:
            ends.append(place)
        else:
            ends[bisect_left(ends, place)] = place
    return 1 - len(ends) / longest


def _places(base: NDArray[np.uint64], other: NDArray[np.uint64]) -> Ints:
    """Where the batches of the second run, in their order, stand in the first; without those that do not."""
    names, kinds = np.unique(np.concatenate([base, other]), return_inverse=True)
    first, second = kinds[: len(base)], kinds[len(base) :]
    order = np.argsort(first, kind="stable")  # places of the first run, batch by batch
    begins = np.concatenate([[0], np.cumsum(np.bincount(first, minlength=len(names)))])
    at = begins[second] + _occurrences(second, len(names))
    there = at < begins[second + 1]
    found: Ints = order[at[there]]
    return found


def _occurrences(kinds: Ints, num_kinds: int) -> Ints:
    """How often each has come before."""
    order = np.argsort(kinds, kind="stable")
    counts = np.bincount(kinds, minlength=num_kinds)
    begins = np.repeat(np.cumsum(counts) - counts, counts)
    found: Ints = np.empty(len(kinds), dtype=np.int64)
    found[order] = np.arange(len(kinds)) - begins
    return found
