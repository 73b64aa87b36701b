"""Numbers and differences in words, as every table says them."""

from __future__ import annotations

from batchwright.lab.metrics import Metric
from batchwright.lab.verdict import NO_DIFFERENCE, NOT_SHOWN, Verdict

NONE = "-"


def number(metric: Metric, value: float | int | None) -> str:
    """A value of a metric as tables show it; ``-`` where it is undefined."""
    return NONE if value is None else f"{value * metric.scale:,.{metric.decimals}f}"


def size(metric: Metric, verdict: Verdict | None, *, interval: bool = True) -> str:
    """How large a difference is, with its interval: in percent of the first arm where that says something, else plain.

    ``-`` where there is none; nothing where the verdict says all: no difference, or without ``interval`` none shown.
    """
    if verdict is None or verdict.difference is None:
        return NONE
    if verdict.words == NO_DIFFERENCE or (verdict.words == NOT_SHOWN and not interval):
        return ""
    if verdict.relative is None or metric.scale != 1 or metric.decimals == 0:
        one = f"{verdict.difference * metric.scale:+,.{metric.decimals}f}"
    else:
        one = f"{percent(verdict.relative)}%"
    found = verdict.interval if interval else None
    if found is None or found.relative_low is None or found.relative_high is None:
        return one
    low, high = percent(found.relative_low), percent(found.relative_high)
    # Where nothing is shown, the interval is all there is to say: a single size would be read as one.
    return f"[{low}%, {high}%]" if verdict.words == NOT_SHOWN else f"{one} [{low}, {high}]"


def percent(share: float) -> str:
    """A signed share in percent, without the sign for it."""
    return f"{100 * share:+.{0 if abs(share) >= 1 else 1}f}"
