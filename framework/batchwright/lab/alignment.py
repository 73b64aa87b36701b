"""How far two runs decided alike."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence


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
    places = {key: place for place, key in enumerate(_numbered(base))}
    ends: list[int] = []  # ends[k]: the smallest place that ends an increasing sequence of k + 1
    for key in _numbered(other):
        place = places.get(key)
        if place is not None:
            at = bisect_left(ends, place)
            ends[at : at + 1] = [place]
    return 1 - len(ends) / longest


def _numbered(batches: Iterable[int]) -> Iterable[tuple[int, int]]:
    seen: Counter[int] = Counter()
    for batch in batches:
        seen[batch] += 1
        yield batch, seen[batch]
