"""Intervals of a difference between two arms: of one run each, or of several seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.student import t_quantile

Floats = NDArray[np.float64]

_FEWEST = 10
"""Draws beyond a percentile, with which it can be told. Farther out it is stretched."""

_DEFINED = 0.99
"""Share of the draws in which a statistic must be defined, for its percentiles to say something."""


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


def interval_of_draws(base: Floats, other: Floats, num_blocks: int, level: float, at: float) -> Interval | None:
    """Of one run an arm: percentiles of a paired bootstrap, as wide as Student's t makes them.

    So few blocks give percentiles that are too narrow: they are taken where Student's t of ``num_blocks - 1`` degrees
    of freedom lies on the scale of the draws, sqrt(n / (n - 1)) t (Hesterberg, The American Statistician 69, 2015: the
    expanded percentile interval). Where fewer than 10 draws are farther out than that, each side is taken where there
    are 10, and stretched from the median in proportion, on the scale of standard normal deviations. Where both arms are
    above 0 in every draw this is done with the logarithm of their ratio: no share falls below -100%.

    Args:
        base, other: float64[draws]: the statistic of each arm; not finite where it is undefined.
        num_blocks: how many were drawn from.
        level: of the interval, such as 0.99.
        at: the first arm's value, of which the interval is a share.

    Returns:
        The interval; None where the statistic is undefined in too many draws.
    """
    defined = np.isfinite(base) & np.isfinite(other)
    if not defined.all():
        base, other = base[defined], other[defined]
        if len(base) < _DEFINED * len(defined):
            return None
    stretch = t_quantile((1 + level) / 2, max(num_blocks - 1, 1)) * math.sqrt(num_blocks / max(num_blocks - 1, 1))
    if at > 0 and (base > 0).all() and (other > 0).all():
        less, more = np.expm1(_stretched(np.log(other / base), stretch)).tolist()
        return Interval(less * at, more * at, less, more, level)
    low, high = _stretched(other - base, stretch)
    return Interval(low, high, low / at, high / at, level) if at > 0 else Interval(low, high, None, None, level)


def _stretched(draws: Floats, deviations: float) -> tuple[float, float]:
    """The ends at so many standard normal deviations from the median."""
    normal = NormalDist()
    tail = max(normal.cdf(-deviations), _FEWEST / len(draws))
    factor = max(1.0, deviations / -normal.inv_cdf(tail))
    low, middle, high = np.quantile(draws, [tail, 0.5, 1 - tail]).tolist()
    return middle - factor * (middle - low), middle + factor * (high - middle)


def interval_of_seeds(
    differences: Sequence[float], within: Sequence[float] | None, num_blocks: int, base: float, level: float
) -> Interval | None:
    """Of two seeds or more: mean of the seeds' differences, and Student's t.

    The variance of the mean is that between the seeds. Two or three of them may come out alike by chance; so a share of
    what blocks of requests within the seeds say of the same variance is added, all of it up to three seeds, 2 / (n - 1)
    of it beyond. (Resampling both seeds and blocks would add all of it however many seeds there are, and so count twice
    what they vary for the same reason: Davison and Hinkley, Bootstrap Methods, 1997, section 3.8.) Degrees of freedom
    are Satterthwaite's (Biometrics Bulletin 2, 1946), rounded down.

    Args:
        differences: of each seed, other - base.
        within: variance of each seed's difference over draws of blocks; None: there is none, as of one-number metrics.
        num_blocks: blocks of a seed.
        base: mean of the first arm's values, of which the interval is a share.
        level: of the interval.

    Returns:
        The interval; None where all differences are one number other than 0, and seeds so few that it may be chance.
    """
    num = len(differences)
    values = np.asarray(differences, dtype=np.float64)
    mean = float(values.mean())
    between = float(values.var(ddof=1)) / num
    share = 1.0 if num <= 3 else 2 / (num - 1)
    added = share * float(np.sum(within)) * num_blocks / max(num_blocks - 1, 1) / num**2 if within is not None else 0.0
    variance = between + added
    if variance == 0:
        # Counts may be apart by the same number every time; as likely a sign as heads in every throw of a coin.
        if mean != 0 and 2.0 ** (1 - num) > 1 - level:
            return None
        half = 0.0
    else:
        freedom = variance**2 / (between**2 / (num - 1) + added**2 / (num * max(num_blocks - 1, 1)))
        half = t_quantile((1 + level) / 2, max(1, int(freedom))) * math.sqrt(variance)
    low, high = mean - half, mean + half
    if not base > 0:
        return Interval(low, high, None, None, level)
    return Interval(low, high, low / base, high / base, level)
