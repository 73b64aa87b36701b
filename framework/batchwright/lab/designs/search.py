"""Where does a yes turn into a no? Bracketing and bisection, told only what was answered so far."""

from __future__ import annotations

import math
from collections.abc import Mapping

GROWTH = 2.0
"""From one rate to the next while only yes, or only no, was heard."""

CHECK = 1.25
"""How far beside a bracket an answer is asked for, to notice one that is not monotone."""

_NEAR = 1.05


def bracket(answers: Mapping[float, bool]) -> tuple[float | None, float | None]:
    """The highest yes below every no, and the lowest no; None for one that there is not."""
    high = min((rate for rate, yes in answers.items() if not yes), default=None)
    low = max((rate for rate, yes in answers.items() if yes and (high is None or rate < high)), default=None)
    return low, high


def next_rate(
    answers: Mapping[float, bool],
    *,
    start: float,
    lowest: float,
    highest: float,
    tolerance: float,
    check: bool = True,
    whole: bool = False,
) -> float | None:
    """What to ask next; None: nothing more.

    It depends on the answers alone, not on their order: a search that was interrupted goes on as it would have.

    Args:
        answers: by rate, so far.
        start: asked first.
        lowest, highest: no rate beyond them is asked.
        tolerance: the bracket is narrow enough when high / low is at most 1 + tolerance.
        check: ask also a little below and above the bracket, which shows answers that are not monotone. One that
            contradicts the bracket moves it, and the search goes on.
        whole: ask whole numbers only; the bracket is narrow enough, too, where there is none between its ends.
    """
    if not answers:
        return min(max(start, lowest), highest)
    low, high = bracket(answers)
    if high is None:
        assert low is not None
        return min(low * GROWTH, highest) if low < highest else None
    if low is None:
        return max(_whole(high / GROWTH, whole), lowest) if high > lowest else None
    if high / low > (1 + tolerance) * (1 + 1e-9) and not (whole and high - low <= 1):
        middle = math.sqrt(low * high)
        return min(max(_whole(middle, whole), low + 1), high - 1) if whole else middle
    if check:
        for rate in (max(_whole(low / CHECK, whole), lowest), min(_whole(high * CHECK, whole), highest)):
            if not any(rate / _NEAR <= asked <= rate * _NEAR for asked in answers):
                return rate
    return None


def _whole(rate: float, whole: bool) -> float:
    return round(rate) if whole else rate


def most_left(answers: Mapping[float, bool], tolerance: float, *, whole: bool = False) -> int:
    """About how many more rates will be asked: exact where the answers are bracketed and monotone, and no whole numbers
    are asked for.
    """
    low, high = bracket(answers)
    width = math.log(high / low) if low is not None and high is not None else math.log(GROWTH)
    halvings = max(0, math.ceil(math.log2(width / math.log1p(tolerance)) - 1e-9))
    if whole and low is not None and high is not None:
        halvings = min(halvings, math.ceil(math.log2(high - low)))
    return halvings + 2 + (0 if low is not None and high is not None else 1)


def contradictions(answers: Mapping[float, bool]) -> tuple[float, ...]:
    """Rates with a yes above the lowest no: what a monotone answer does not have."""
    high = min((rate for rate, yes in answers.items() if not yes), default=math.inf)
    return tuple(sorted(rate for rate, yes in answers.items() if yes and rate > high))
