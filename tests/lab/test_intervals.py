"""Intervals of one run and of several seeds, Student's t, and how strict each of many tests is."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from batchwright.errors import ConfigError
from batchwright.lab.family import LEVEL, PRIMARY, Family, share_of
from batchwright.lab.interval import interval_of_draws, interval_of_seeds
from batchwright.lab.metrics import METRICS
from batchwright.lab.shown import SHOWN
from batchwright.lab.student import t_quantile

# Student's t -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "freedom", "t"),
    [
        (0.975, 1, 12.7062),
        (0.995, 1, 63.6567),
        (0.975, 2, 4.3027),
        (0.995, 5, 4.0321),
        (0.9995, 9, 4.7809),
        (0.975, 29, 2.0452),
        (0.995, 29, 2.7564),
        (0.9995, 120, 3.3735),
    ],
)
def test_t_is_that_of_the_tables(share: float, freedom: int, t: float) -> None:
    """Two-sided 95%, 99% and 99.9% points of the usual tables."""
    assert t_quantile(share, freedom) == pytest.approx(t, abs=6e-5)


def test_t_of_many_degrees_is_normal() -> None:
    assert t_quantile(0.999, 10**6) == pytest.approx(NormalDist().inv_cdf(0.999), abs=0.01)


# One run -----------------------------------------------------------------------------------------------------------


def test_percentiles_are_stretched_to_students_t() -> None:
    """Of normal draws the interval is the mean and t standard errors, also far beyond the last draw."""
    rng = np.random.default_rng(0)
    base = np.full(200_000, 10.0)
    other = base + rng.normal(1, 0.1, 200_000)
    for level in (0.95, 0.99, 0.9999):
        found = interval_of_draws(base, other, 30, level, 10.0)
        assert found is not None and found.level == level
        half = t_quantile((1 + level) / 2, 29) * 0.1 * (30 / 29) ** 0.5
        assert (found.low, found.high) == pytest.approx((1 - half, 1 + half), abs=0.01)
        assert (found.relative_low, found.relative_high) == pytest.approx((found.low / 10, found.high / 10), rel=1e-6)


def test_shares_leave_out_0_where_the_difference_does() -> None:
    """Also where the first arm varies from draw to draw as much as the difference: words and numbers say one thing."""
    rng = np.random.default_rng(0)
    base = rng.lognormal(2, 1, 20_000)
    for factor in (1.2, 1.5, 3.0):
        found = interval_of_draws(base, base * factor + rng.normal(0, 0.5, 20_000), 5, 0.99, 10.0)
        assert found is not None and found.relative_low is not None and found.relative_high is not None
        assert (found.relative_low > 0) == (found.low > 0)
        assert (found.relative_low, found.relative_high) == pytest.approx((found.low / 10, found.high / 10))


def test_no_share_is_below_all_of_it() -> None:
    """An arm that takes a seventh, give or take; at a level that asks for what is far beyond the draws."""
    rng = np.random.default_rng(3)
    base = rng.normal(130, 10, 2000)
    found = interval_of_draws(base, base / 7 * rng.lognormal(0, 0.3, 2000), 5, 0.999, 130.0)
    assert found is not None and found.relative_low is not None and found.relative_high is not None
    assert -1 < found.relative_low < -6 / 7 < found.relative_high
    back = interval_of_draws(base / 7, base, 5, 0.999, 130 / 7)
    again = interval_of_draws(base, base / 7, 5, 0.999, 130.0)
    assert back is not None and again is not None and back.relative_low is not None and again.relative_high is not None
    assert 1 + back.relative_low == pytest.approx(1 / (1 + again.relative_high))  # whichever arm is the first


def test_a_skewed_statistic_has_a_skewed_interval() -> None:
    draws = np.random.default_rng(1).lognormal(0, 0.5, 100_000)
    found = interval_of_draws(np.zeros(100_000), draws, 30, 0.99, 0.0)
    assert found is not None and found.relative_low is None  # base can be 0
    assert found.high - 1 > 2 * (1 - found.low)


def test_a_statistic_that_is_undefined_in_many_draws_has_no_interval() -> None:
    draws = np.ones(1000)
    draws[:11] = np.nan
    assert interval_of_draws(draws, np.ones(1000), 30, 0.99, 1.0) is None
    assert interval_of_draws(draws[:1000], np.ones(1000) * 2, 30, 0.99, 1.0) is None
    draws[1:] = 1
    assert interval_of_draws(draws, np.ones(1000) * 2, 30, 0.99, 1.0) is not None


# Seeds -------------------------------------------------------------------------------------------------------------


def test_without_blocks_it_is_the_paired_t() -> None:
    """One-number metrics: 5 differences of mean 2 and variance 2.5."""
    found = interval_of_seeds([0.0, 1.0, 2.0, 3.0, 4.0], None, 30, 20.0, 0.95)
    assert found is not None
    half = 2.7764 * (2.5 / 5) ** 0.5
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), abs=1e-3)
    assert (found.relative_low, found.relative_high) == pytest.approx((found.low / 20, found.high / 20))


def test_seeds_that_come_out_alike_by_chance_are_not_believed() -> None:
    """Two differences nearly equal; within each run blocks say that it may as well be 1 more or less."""
    alone = interval_of_seeds([1.0, 1.001], None, 30, 10.0, 0.95)
    found = interval_of_seeds([1.0, 1.001], [1.0, 1.0], 30, 10.0, 0.95)
    assert alone is not None and found is not None
    assert alone.low > 0.9 and found.low < 0
    half = t_quantile(0.975, 58) * (2 * 30 / 29 / 4) ** 0.5
    assert found.high - found.low == pytest.approx(2 * half, rel=0.01)


def test_blocks_say_less_the_more_seeds_there_are() -> None:
    rng = np.random.default_rng(5)
    widths = []
    for num in (2, 20):
        values = rng.normal(0, 1, num)
        values = (values - values.mean()) / values.std(ddof=1)
        pair = [interval_of_seeds(values, within, 30, 0.0, 0.95) for within in (None, [1.0] * num)]
        assert pair[0] is not None and pair[1] is not None and pair[0].relative_low is None
        widths.append(pair[1].high / pair[0].high)
    assert widths[0] < 0.5  # of two, they replace a t of one degree of freedom
    assert 1 < widths[1] < 1.06


def test_the_same_count_apart_every_time_may_be_chance() -> None:
    assert interval_of_seeds([1.0] * 5, None, 30, 10.0, 0.95) is None  # a coin: 2 in 32
    found = interval_of_seeds([1.0] * 6, None, 30, 10.0, 0.95)
    assert found is not None and (found.low, found.high) == (1, 1)
    none = interval_of_seeds([0.0, 0.0], None, 30, 10.0, 0.95)
    assert none is not None and (none.low, none.high) == (0, 0)


@pytest.mark.parametrize(("num", "ratio"), [(2, 0.5), (3, 0.5), (5, 0.0), (5, 1.0), (20, 0.0), (20, 4.0)])
def test_intervals_of_seeds_hold_as_often_as_they_say(num: int, ratio: float) -> None:
    """``ratio``: variance between seeds that blocks do not see, over that which they see."""
    rng = np.random.default_rng([num, int(10 * ratio)])
    missed, rounds = 0, 2000
    for _ in range(rounds):
        within = (rng.chisquare(29, num) / 29 * (29 / 30)).tolist()
        values = rng.normal(0, (1 + ratio) ** 0.5, num).tolist()
        found = interval_of_seeds(values, within, 30, 0.0, 0.95)
        assert found is not None
        missed += not found.low <= 0 <= found.high
    assert missed / rounds < 0.065  # of 5%; 2000 rounds stray by 0.5%


# Many tests --------------------------------------------------------------------------------------------------------


def test_the_risk_is_shared_out_and_adds_up() -> None:
    tested = [name for name in SHOWN if METRICS[name].better is not None]
    for num_arms in (1, 3):
        levels = Family().levels(tested, num_arms)
        assert set(levels) == set(tested)
        assert num_arms * sum(1 - level for level in levels.values()) == pytest.approx(1 - LEVEL)
        primary = {levels[name] for name in PRIMARY}
        assert len(primary) == 1 and primary.pop() == pytest.approx(1 - 0.025 / len(PRIMARY) / num_arms)
        assert max(levels[name] for name in PRIMARY) < min(levels[n] for n in tested if n not in PRIMARY)
        # What only files hold is tested as strictly, and costs the table nothing.
        more = Family().levels([*tested, "p90_itl_ms"], num_arms)
        assert more == levels | {"p90_itl_ms": levels["median_itl_ms"]}


@pytest.mark.parametrize("tested", [["mean_itl_ms"], ["mean_e2el_ms"]])
def test_a_test_alone_has_all_the_risk(tested: list[str]) -> None:
    assert Family(0.9).levels(tested) == {tested[0]: pytest.approx(0.9)}


def test_a_family_is_what_a_command_line_says() -> None:
    assert Family.parse() == Family()
    assert Family.parse(0.99, "mean_itl_ms, p99_ttft_ms") == Family(0.99, ("mean_itl_ms", "p99_ttft_ms"))
    for level in (0.2, 1.0, 1.5):
        with pytest.raises(ConfigError, match=r"at least 0\.5 and below 1"):
            Family(level)
    with pytest.raises(ConfigError, match="did you mean 'mean_itl_ms'"):
        Family.parse(None, "mean_itl").check()
    with pytest.raises(ConfigError, match="duration is better neither way"):
        Family.parse(None, "duration").check()


@pytest.mark.parametrize(
    ("level", "said"), [(0.95, "95%"), (0.9958, "99.6%"), (0.99996, "99.996%"), (0.999, "99.9%"), (0.9991, "99.9%")]
)
def test_levels_are_never_said_to_be_sure(level: float, said: str) -> None:
    assert share_of(level) == said
