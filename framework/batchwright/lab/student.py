"""Student's t: how much wider an interval is where its spread was estimated from few values."""

from __future__ import annotations

import math
from functools import lru_cache

_MOST = 1000
"""Degrees of freedom from which on it is the normal distribution for all that is shown here."""


@lru_cache(maxsize=1024)
def t_quantile(share: float, freedom: int) -> float:
    """The value below which a share of Student's distribution lies.

    Exact for whole degrees of freedom, by the finite sums of Abramowitz and Stegun (1964), 26.7.3 and 26.7.4.

    Args:
        share: above 0.5 and below 1.
        freedom: degrees of freedom, at least 1.
    """
    freedom = min(freedom, _MOST)
    low, high = 0.0, 1.0
    while _within(high, freedom) < 2 * share - 1:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        if _within(middle, freedom) < 2 * share - 1:
            low = middle
        else:
            high = middle
    return high


def _within(t: float, freedom: int) -> float:
    """The share of the distribution between -t and t."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    if freedom % 2:
        total, term = 0.0, cosine
        for k in range(1, freedom - 1, 2):
            total += term
            term *= cosine * cosine * (k + 1) / (k + 2)
        return 2 / math.pi * (angle + sine * total)
    total, term = 0.0, 1.0
    for k in range(1, freedom, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    return sine * total
