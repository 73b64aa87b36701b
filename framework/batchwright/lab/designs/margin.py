"""How far the mean of a few values may be off."""

from __future__ import annotations

import math
from collections.abc import Sequence

from batchwright.lab.student import t_quantile


def mean_margin(values: Sequence[float], share: float) -> float:
    """The quantile of Student's t times the standard error of the mean; 0 of a single value.

    Args:
        values: independent of each other.
        share: of t's distribution below the quantile: the confidence of a one-sided interval.
    """
    num = len(values)
    if num < 2:
        return 0.0
    mean = math.fsum(values) / num
    variance = math.fsum((v - mean) ** 2 for v in values) / (num - 1)
    return t_quantile(share, num - 1) * math.sqrt(variance / num)


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean; None where there is no value, or one is undefined."""
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None
