"""Intervals of one run and of several seeds, Student's t, and how strict each of many tests is."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

from batchwright.errors import ConfigError
from batchwright.lab.family import LEVEL, PRIMARY, Family, share_of
from batchwright.lab.interval import Floats, Interval, interval_of_draws, interval_of_seeds
from batchwright.lab.metrics import METRICS
from batchwright.lab.shown import SHOWN
from batchwright.lab.student import t_quantile
from batchwright.lab.verdict import BETTER, NOT_SHOWN, NOT_TESTED, Verdict
from batchwright.lab.wording import number, percent, size

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


def test_it_is_students_t_and_the_error_of_the_draws() -> None:
    """At any level, also far beyond the last draw."""
    rng = np.random.default_rng(0)
    base = np.full(2000, 0.0)
    other = base + rng.normal(1, 0.1, 2000)
    for level in (0.95, 0.99, 0.9999):
        found = interval_of_draws((base, other), 30, level, 0.0, 1.0)
        assert found is not None and found.level == level
        half = t_quantile((1 + level) / 2, 29) * float(other.std()) * (30 / 29) ** 0.5
        assert (found.low, found.high) == pytest.approx((1 - half, 1 + half))
        assert found.relative_low is None  # base can be 0


def test_shares_leave_out_0_where_the_difference_does() -> None:
    """Also where the first arm varies from draw to draw as much as the difference: words and numbers say one thing."""
    rng = np.random.default_rng(0)
    base = rng.lognormal(2, 1, 20_000)
    for factor in (1.2, 1.5, 3.0):
        other = base * factor + rng.normal(0, 0.5, 20_000)
        found = interval_of_draws((base, other), 5, 0.99, 10.0, 10 * factor)
        assert found is not None and found.relative_low is not None and found.relative_high is not None
        assert (found.relative_low > 0) == (found.low > 0)
        assert (found.relative_low, found.relative_high) == pytest.approx((found.low / 10, found.high / 10))


def test_no_share_is_below_all_of_it() -> None:
    """An arm that takes a seventh, give or take; at a level that asks for what is far beyond the draws."""
    rng = np.random.default_rng(3)
    base = rng.normal(130, 10, 2000)
    other = base / 7 * rng.lognormal(0, 0.3, 2000)
    found = interval_of_draws((base, other), 5, 0.999, 130.0, 130 / 7)
    assert found is not None and found.relative_low is not None and found.relative_high is not None
    assert -1 < found.relative_low < -6 / 7 < found.relative_high
    back = interval_of_draws((other, base), 5, 0.999, 130 / 7, 130.0)
    assert back is not None and back.relative_low is not None
    assert 1 + back.relative_low == pytest.approx(1 / (1 + found.relative_high))  # whichever arm is the first


def test_an_interval_past_all_use_is_a_number_still() -> None:
    """Records are JSON, which has no infinity; and nobody reads 27 digits."""
    draws = np.exp(np.linspace(-200, 200, 100))
    found = interval_of_draws((np.ones(100), draws), 5, 0.999, 1.0, 1.0)
    assert found is not None and found.low == -1 and found.relative_high is not None
    assert 1e6 < found.high == found.relative_high < math.inf
    assert percent(found.relative_high) == ">+10,000"
    assert percent(found.low) == "-100"
    assert percent(math.expm1(math.log(2))) == percent(0.9999) == "+100"


def test_an_end_that_says_nothing_is_short_in_every_unit() -> None:
    metric = METRICS["longest_wait"]
    interval = Interval(-8.0, 3_900_970_745_651.9, -0.99, 4.8e8, 0.99)
    verdict = Verdict("two", metric.name, 8.0, 5.0, -3.0, interval, NOT_SHOWN)
    assert size(METRICS["num_preemptions"], verdict) == "[-8, >+800]"
    assert size(metric, verdict) == "[-99.0%, >+10,000%]"


def test_zero_has_no_minus() -> None:
    assert percent(-1e-9) == percent(1e-9) == "+0.0"
    assert number(METRICS["cache_hit_rate"], -1e-9) == "0.0"
    metric = METRICS["slo_attainment"]
    verdict = Verdict("two", metric.name, 0.5, 0.5, -1e-9, Interval(-0.1, -1e-9, -0.2, -2e-9, 0.99), BETTER)
    assert size(metric, verdict) == "+0.0 pp [-10.0, +0.0]"


def test_differences_of_shares_are_in_percentage_points() -> None:
    metric = METRICS["slo_attainment"]
    verdict = Verdict("two", metric.name, 0.5, 0.6, 0.1, Interval(0.02, 0.18, 0.04, 0.36, 0.99), BETTER)
    assert size(metric, verdict) == "+10.0 pp [+2.0, +18.0]"
    assert size(metric, replace(verdict, words=NOT_SHOWN)) == "[+2.0 pp, +18.0 pp]"
    assert size(metric, replace(verdict, interval=None, words=NOT_TESTED)) == "+10.0 pp"


def test_a_statistic_that_is_undefined_in_many_draws_has_no_interval() -> None:
    draws = np.ones(1000)
    draws[:11] = np.nan
    assert interval_of_draws((draws, np.ones(1000)), 30, 0.99, 1.0, 1.0) is None
    assert interval_of_draws((np.ones(1000) * 2, draws), 30, 0.99, 2.0, 1.0) is None
    draws[1:] = 1
    assert interval_of_draws((draws, np.ones(1000) * 2), 30, 0.99, 1.0, 2.0) is not None


@pytest.mark.parametrize("num", [5, 8, 20])
def test_intervals_of_a_run_hold_as_often_as_they_say(num: int) -> None:
    """Of few blocks, at the level that a table of twenty metrics asks for: percentiles do not."""
    rng = np.random.default_rng(num)
    missed, rounds = 0, 2000
    weights = rng.multinomial(num, np.full(num, 1 / num), size=400) / num
    for _ in range(rounds):
        one, two = np.exp(rng.normal(0, 0.1, (2, num)))
        found = interval_of_draws((weights @ one, weights @ two), num, 0.99, float(one.mean()), float(two.mean()))
        assert found is not None
        missed += not found.low <= 0 <= found.high
    assert missed / rounds < 0.017  # of 1%; 2000 rounds stray by 0.2%


# Seeds -------------------------------------------------------------------------------------------------------------


def test_without_blocks_it_is_the_paired_t() -> None:
    """One-number metrics, 0 in one seed: 5 differences of mean 2 and variance 2.5."""
    base = [0.0, 20.0, 20.0, 20.0, 40.0]
    found = interval_of_seeds(base, [b + d for b, d in zip(base, range(5), strict=True)], None, 30, 0.95)
    assert found is not None
    half = 2.7764 * (2.5 / 5) ** 0.5
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half), abs=1e-3)
    assert (found.relative_low, found.relative_high) == pytest.approx((found.low / 20, found.high / 20))


def test_of_seeds_above_0_it_is_the_ratio_of_means() -> None:
    """An arm that takes a hundredth, in seeds that differ widely: differences would reach below all of it."""
    base, other = [10.0, 20.0, 60.0], [0.1, 0.4, 0.4]
    found = interval_of_seeds(base, other, None, 30, 0.95)
    assert found is not None and found.relative_low is not None and found.relative_high is not None
    residuals = np.asarray(other) / 0.3 - np.asarray(base) / 30
    half = 4.3027 * (float(residuals.var(ddof=1)) / 3) ** 0.5
    assert found.relative_low == pytest.approx(0.01 * math.exp(-half) - 1, abs=1e-6)
    assert found.relative_high == pytest.approx(0.01 * math.exp(half) - 1, abs=1e-6)
    back = interval_of_seeds(other, base, None, 30, 0.95)
    assert back is not None and back.relative_low is not None
    assert 1 + back.relative_low == pytest.approx(1 / (1 + found.relative_high))


def test_seeds_that_come_out_alike_by_chance_are_not_believed() -> None:
    """Two differences nearly equal; within each run blocks say that it may as well be 1 more or less."""
    base, other = [0.0, 0.0], [1.0, 1.001]
    alone = interval_of_seeds(base, other, None, 30, 0.95)
    found = interval_of_seeds(base, other, [_spread(1.0)] * 2, 30, 0.95)
    assert alone is not None and found is not None
    assert alone.low > 0.9 and found.low < 0
    half = t_quantile(0.975, 58) * (2 * 30 / 29 / 4) ** 0.5
    assert found.high - found.low == pytest.approx(2 * half, rel=0.01)


def test_blocks_say_less_the_more_seeds_there_are() -> None:
    rng = np.random.default_rng(5)
    widths = []
    for num in (2, 20):
        values = rng.normal(0, 1, num)
        values = ((values - values.mean()) / values.std(ddof=1)).tolist()
        pair = [interval_of_seeds([0.0] * num, values, draws, 30, 0.95) for draws in (None, [_spread(1.0)] * num)]
        assert pair[0] is not None and pair[1] is not None and pair[0].relative_low is None
        widths.append(pair[1].high / pair[0].high)
    assert widths[0] < 0.5  # of two, they replace a t of one degree of freedom
    assert 1 < widths[1] < 1.06


def test_blocks_that_are_undefined_in_one_seed_say_nothing() -> None:
    draws = [_spread(1.0), (np.full(100, np.nan), np.ones(100))]
    assert interval_of_seeds([1.0, 2.0], [2.0, 5.0], draws, 30, 0.95) == interval_of_seeds(
        [1.0, 2.0], [2.0, 5.0], None, 30, 0.95
    )


@pytest.mark.parametrize("base", [0.0, 10.0])
def test_the_same_count_apart_every_time_may_be_chance(base: float) -> None:
    assert interval_of_seeds([base] * 5, [base + 1] * 5, None, 30, 0.95) is None  # a coin: 2 in 32
    found = interval_of_seeds([base] * 6, [base + 1] * 6, None, 30, 0.95)
    assert found is not None and (found.low, found.high) == pytest.approx((1, 1))
    none = interval_of_seeds([base] * 2, [base] * 2, None, 30, 0.95)
    assert none is not None and (none.low, none.high) == (0, 0)


def test_the_same_ratio_every_time_may_be_chance() -> None:
    """Which differs by rounding only."""
    base = [0.1, 0.3, 0.7]
    assert interval_of_seeds(base, [b * 1.1 for b in base], None, 30, 0.95) is None


@pytest.mark.parametrize("level", [0.0, 30.0])
@pytest.mark.parametrize(("num", "ratio"), [(2, 0.5), (3, 0.5), (5, 0.0), (5, 1.0), (20, 0.0), (20, 4.0)])
def test_intervals_of_seeds_hold_as_often_as_they_say(num: int, ratio: float, level: float) -> None:
    """``ratio``: variance between seeds that blocks do not see, over that which they see; ``level``: of both arms."""
    rng = np.random.default_rng([num, int(10 * ratio)])
    missed, rounds = 0, 2000
    for _ in range(rounds):
        draws = [_spread(v, level) for v in rng.chisquare(29, num) / 29 * (29 / 30)]
        values = (level + rng.normal(0, (1 + ratio) ** 0.5, num)).tolist()
        found = interval_of_seeds([level] * num, values, draws, 30, 0.95)
        assert found is not None
        missed += not found.low <= 0 <= found.high
    assert missed / rounds < 0.065  # of 5%; 2000 rounds stray by 0.5%


def _spread(variance: float, level: float = 0.0) -> tuple[Floats, Floats]:
    """Draws of two arms whose differences have just this variance."""
    strays = np.tile([-1.0, 1.0], 50) * variance**0.5
    return np.full(100, level), level + strays


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
