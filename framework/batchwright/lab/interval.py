"""Intervals of a difference between two arms: of one run each, or of several seeds.

Both are an estimate, its standard error and Student's t. Where both arms are above 0 throughout they are made for the
logarithm of the ratio, so that no share falls below -100%; elsewhere for the difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.student import t_quantile

Floats = NDArray[np.float64]
Draws = tuple[Floats, Floats]
"""float64[draws] of the first arm and of the other: a statistic in each draw of blocks; not finite where undefined."""

_DEFINED = 0.99
"""Share of the draws in which a statistic must be defined, for their variance to say something."""

_FARTHEST = 20.0
"""Logarithm of a ratio beyond which an end says no more than that nothing is known: 485 million times."""

_ALIKE = 1e-12
"""Values that differ by no more than this share of themselves differ by rounding."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Of a difference, other - base.

    Attributes:
        low, high: of the difference.
        relative_low, relative_high: the same as shares of the first arm's value; None where that is not above 0.
        level: the share of such intervals that hold the true difference, each taken by itself.
    """

    low: float
    high: float
    relative_low: float | None
    relative_high: float | None
    level: float


def interval_of_draws(draws: Draws, num_blocks: int, level: float, base: float, other: float) -> Interval | None:
    """Of one run an arm: Student's t of ``num_blocks - 1`` degrees of freedom, with the standard error of a bootstrap.

    The variance over draws of n blocks is n / (n - 1) times too small, as that of any sample (Davison and Hinkley,
    Bootstrap Methods, 1997, section 2.5). Percentiles of the draws, though stretched for so few blocks, called two to
    three times as many differences as they should (``benchmarks/aa.py``, of 30 to 150 requests): far out they hang on
    single blocks.

    Args:
        draws: of both arms, on the same blocks.
        num_blocks: how many were drawn from.
        level: of the interval, such as 0.99.
        base, other: the statistic of each run.

    Returns:
        The interval; None where the statistic is undefined in too many draws.
    """
    defined = _defined(draws)
    if defined is None:
        return None
    ratio = min(base, other) > 0 and all(bool((arm > 0).all()) for arm in defined)
    one, two = defined
    variance = float((np.log(two / one) if ratio else two - one).var())
    freedom = max(num_blocks - 1, 1)
    half = t_quantile((1 + level) / 2, freedom) * math.sqrt(variance * num_blocks / freedom)
    return _around(math.log(other / base) if ratio else other - base, half, ratio, base, level)


def interval_of_seeds(
    base: Sequence[float], other: Sequence[float], draws: Sequence[Draws] | None, num_blocks: int, level: float
) -> Interval | None:
    """Of two seeds or more: the difference or the ratio of the means over seeds, and Student's t.

    The variance is that between the seeds, for a ratio linearised at the means (Davison and Hinkley, 1997, section
    2.7). Two or three seeds may come out alike by chance; so a share of what blocks of requests within the seeds say of
    the same variance is added, all of it up to three seeds, 2 / (n - 1) of it beyond. (Resampling both seeds and blocks
    would add all of it however many seeds there are, and so count twice what they vary for the same reason: the same,
    section 3.8.) Degrees of freedom are Satterthwaite's (Biometrics Bulletin 2, 1946), rounded down.

    Args:
        base, other: the statistic of each seed.
        draws: of each seed, on blocks of its requests; None: there are none, as of one-number metrics.
        num_blocks: blocks of a seed.
        level: of the interval.

    Returns:
        The interval; None where all differences are one number other than 0, and seeds so few that it may be chance.
    """
    num = len(base)
    means = fmean(base), fmean(other)
    ratio = min(*base, *other) > 0
    scale = means if ratio else (1.0, 1.0)
    values = np.asarray(other, dtype=np.float64) / scale[1] - np.asarray(base, dtype=np.float64) / scale[0]
    between = float(values.var(ddof=1)) / num
    added = 0.0
    if (spread := _within(draws, scale)) is not None:
        share = 1.0 if num <= 3 else 2 / (num - 1)
        added = share * sum(spread) * num_blocks / max(num_blocks - 1, 1) / num**2
    variance = between + added
    if variance <= (_ALIKE * (1.0 if ratio else float(np.abs(values).max()))) ** 2:
        # Counts may be apart by the same number every time; as likely a sign as heads in every throw of a coin.
        if means[0] != means[1] and 2.0 ** (1 - num) > 1 - level:
            return None
        half = 0.0
    else:
        freedom = variance**2 / (between**2 / (num - 1) + added**2 / (num * max(num_blocks - 1, 1)))
        half = t_quantile((1 + level) / 2, max(1, int(freedom))) * math.sqrt(variance)
    return _around(math.log(means[1] / means[0]) if ratio else means[1] - means[0], half, ratio, means[0], level)


def _within(draws: Sequence[Draws] | None, scale: tuple[float, float]) -> list[float] | None:
    """Variance of each seed's difference over draws of blocks; None where there is none, or not of every seed."""
    found: list[float] = []
    for of_seed in draws or ():
        defined = _defined(of_seed)
        if defined is None:
            return None
        one, two = defined
        found.append(float((two / scale[1] - one / scale[0]).var()))
    return found or None


def _defined(draws: Draws) -> Draws | None:
    """The draws in which both arms have a number; None where these are too few."""
    base, other = draws
    defined = np.isfinite(base) & np.isfinite(other)
    if defined.all():
        return draws
    return (base[defined], other[defined]) if defined.mean() >= _DEFINED else None


def _around(middle: float, half: float, ratio: bool, base: float, level: float) -> Interval:
    """On the scale of the difference, and as shares of the first arm's value."""
    low, high = middle - half, middle + half
    if ratio:
        less, more = (math.expm1(min(end, _FARTHEST)) for end in (low, high))
        return Interval(less * base, more * base, less, more, level)
    if not base > 0:
        return Interval(low, high, None, None, level)
    return Interval(low, high, low / base, high / base, level)
