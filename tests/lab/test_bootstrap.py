"""The block bootstrap: its draws give what the repeated values would give."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.lab.bootstrap import _MAX_GRID, NUM_RESAMPLES, BlockBootstrap
from batchwright.lab.interval import interval_of_draws
from batchwright.lab.samples import Samples

QS = (0.5, 0.9, 0.99)


def samples(rng: np.random.Generator, num_requests: int, most: int, *, ties: bool) -> Samples:
    owners = np.sort(rng.integers(num_requests, size=rng.integers(most // 2, most)))
    values = rng.integers(1, 9, len(owners)).astype(float) if ties else rng.lognormal(0, 1, len(owners))
    return Samples(values, owners)


def repeated(boot: BlockBootstrap, sample: Samples) -> list[np.ndarray]:
    """The values of each draw, one behind the other."""
    blocks = sample.owners * boot.num_blocks // boot.num_requests
    return [np.repeat(sample.values, weights[blocks].astype(int)) for weights in boot._weights]


@pytest.mark.parametrize(("seed", "ties"), list(product(range(6), [False, True])))
def test_weighted_statistics_are_those_of_the_repeated_values(seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    num = int(rng.integers(10, 60))
    boot = BlockBootstrap(num, seed, num_resamples=200)
    assert (boot._weights.sum(axis=1) == boot.num_blocks).all()
    sample = samples(rng, num, 80, ties=ties)
    drawn = repeated(boot, sample)
    assert boot.totals(sample) == pytest.approx([v.sum() for v in drawn])
    assert boot.means(sample) == pytest.approx([v.mean() if len(v) else np.nan for v in drawn], nan_ok=True)
    for q, found in zip(QS, boot.quantiles(sample, QS), strict=True):
        assert found == pytest.approx([np.quantile(v, q) if len(v) else np.nan for v in drawn], nan_ok=True)


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 5)), min_size=1, max_size=60), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_any_quantile_of_any_values(pairs: list[tuple[int, int]], q: float) -> None:
    """Blocks without values, few values, ties at both ends."""
    pairs.sort()
    sample = Samples(np.array([float(v) for _, v in pairs]), np.array([owner for owner, _ in pairs]))
    boot = BlockBootstrap(20, 1, num_resamples=30)
    (found,) = boot.quantiles(sample, [q])
    assert found == pytest.approx(
        [np.quantile(v, q) if len(v) else np.nan for v in repeated(boot, sample)], nan_ok=True
    )


def test_of_many_values_a_grid_stands_for_all() -> None:
    rng = np.random.default_rng(1)
    owners = np.repeat(np.arange(2000), 20)
    # A slow drift: blocks differ, and quantiles of the draws stray far.
    sample = Samples(rng.lognormal(0, 1, 40_000) * (1 + owners / 2000), owners)
    boot = BlockBootstrap(2000, num_resamples=100)
    drawn = repeated(boot, sample)
    for q, found in zip(QS, boot.quantiles(sample, QS), strict=True):
        expected = np.array([np.quantile(v, q) for v in drawn])
        assert np.abs(found - expected).max() < 0.05 * expected.std()
    assert len(sample) > 20 * _MAX_GRID


def test_no_values_at_all() -> None:
    boot = BlockBootstrap(20)
    empty = Samples(np.zeros(0), np.zeros(0, dtype=np.int64))
    assert np.isnan(boot.quantiles(empty, [0.5])[0]).all() and np.isnan(boot.means(empty)).all()


def test_draws_are_paired_and_follow_the_seeds() -> None:
    sample = Samples(np.arange(100.0), np.arange(100))
    one, two, other = BlockBootstrap(100, 3, 4), BlockBootstrap(100, 3, 4), BlockBootstrap(100, 3, 5)
    assert np.array_equal(one.means(sample), two.means(sample))
    assert not np.array_equal(one.means(sample), other.means(sample))
    assert len(one.means(sample)) == NUM_RESAMPLES


def test_blocks_hold_requests_that_follow_each_other() -> None:
    boot = BlockBootstrap(1000)
    blocks = boot._blocks(Samples(np.zeros(1000), np.arange(1000)))
    assert boot.num_blocks == 30
    assert (np.diff(blocks) >= 0).all()
    assert set(np.bincount(blocks).tolist()) <= {33, 34}


def test_dependence_within_blocks_widens_the_interval() -> None:
    """With one disturbance for 10 requests in a row, an interval that took them as independent would be too narrow."""
    rng = np.random.default_rng(2)
    wrong = 0
    for seed in range(100):
        noise = np.repeat(rng.normal(0, 1, (2, 100)), 10, axis=1)
        boot = BlockBootstrap(1000, seed)
        base, other = (boot.means(Samples(10 + n, np.arange(1000))) for n in noise)
        found = interval_of_draws((base, other), boot.num_blocks, 0.99, 10 + noise[0].mean(), 10 + noise[1].mean())
        assert found is not None
        wrong += not found.low <= 0 <= found.high
    assert wrong <= 5  # 1% is expected; 99% intervals over independent requests are wrong in about 40
