"""Numbers and differences in words, as every table says them."""

from __future__ import annotations

from batchwright.lab.interval import Interval
from batchwright.lab.metrics import Metric
from batchwright.lab.verdict import NO_DIFFERENCE, NOT_SHOWN, Verdict

NONE = "-"
_MOST = 100.0


def number(metric: Metric, value: float | int | None) -> str:
    """A value of a metric as tables show it; ``-`` where it is undefined. A mean of counts has a decimal."""
    if value is None:
        return NONE
    decimals = metric.decimals or (1 if value != int(value) else 0)
    return f"{value * metric.scale:z,.{decimals}f}"


def size(metric: Metric, verdict: Verdict | None, *, interval: bool = True) -> str:
    """How large a difference is, with its interval: in percent of the first arm where that says something; of shares in
    percentage points (``pp``), else in the metric's own unit.

    ``-`` where there is none; nothing where the verdict says all: no difference, or without ``interval`` none shown.
    """
    if verdict is None or verdict.difference is None:
        return NONE
    if verdict.words == NO_DIFFERENCE or (verdict.words == NOT_SHOWN and not interval):
        return ""
    found = verdict.interval if interval else None
    if verdict.relative is None or not in_percent(metric, verdict):
        unit = " pp" if metric.is_share else ""
        one = f"{_change(metric, verdict.difference)}{unit}"
        said = [] if found is None else [_change(metric, found.low), _highest(metric, found, verdict.base)]
    else:
        one, unit = f"{percent(verdict.relative)}%", "%"
        ends = (None, None) if found is None else (found.relative_low, found.relative_high)
        said = [percent(end) for end in ends if end is not None]
    if len(said) < 2:
        return one
    # Where nothing is shown, the interval is all there is to say: a single size would be read as one.
    return f"[{said[0]}{unit}, {said[1]}{unit}]" if verdict.words == NOT_SHOWN else f"{one} [{said[0]}, {said[1]}]"


def in_percent(metric: Metric, verdict: Verdict) -> bool:
    """Whether a difference is said in percent of the first arm: not of shares, nor of counts, nor where that is 0."""
    return verdict.relative is not None and not metric.is_share and metric.decimals > 0


def _highest(metric: Metric, found: Interval, base: float | int | None) -> str:
    """The upper end; of more than a hundred times the first arm's value only that it is that."""
    if base is None or found.relative_high is None or found.relative_high <= _MOST:
        return _change(metric, found.high)
    return f">{_change(metric, _MOST * base)}"


def _change(metric: Metric, by: float) -> str:
    decimals = metric.decimals or (1 if by != int(by) else 0)
    return f"{by * metric.scale:+z,.{decimals}f}"


def percent(share: float) -> str:
    """A signed share in percent, without the sign for it; of more than a hundred times only that it is that."""
    if share > _MOST:
        return f">{100 * _MOST:+,.0f}"
    return f"{100 * share:+z.{0 if abs(round(share, 3)) >= 1 else 1}f}"
