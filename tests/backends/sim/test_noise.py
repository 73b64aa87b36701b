"""Chance in step times: as much as was asked for, and the same however it is looked at."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from batchwright import EngineConfig
from batchwright.errors import ConfigError
from batchwright.lab import RunRecord, load_workload, run_arm
from batchwright_backends.sim.noise import StepNoise


def run(seed: int = 0, **options: Any) -> RunRecord:
    values = {"backend": "sim:llama-3.1-8b@h100", "backend_options": options, "seed": seed}
    return run_arm(EngineConfig.parse(values), load_workload("synthetic:rate=2,n=8,prompt=100,output=50"))


def durations(record: RunRecord) -> list[int]:
    return [s.end_ns - s.start_ns for s in record.steps]


@pytest.mark.parametrize("sigma", [0.05, 0.5])
def test_factors_are_lognormal_with_mean_one(sigma: float) -> None:
    factors = [StepNoise(sigma, 5).factor(index) for index in range(20_000)]
    logs = [math.log(f) for f in factors]
    assert statistics.fmean(factors) == pytest.approx(1, abs=4 * sigma / 100)
    assert statistics.stdev(logs) == pytest.approx(sigma, rel=0.03)
    assert statistics.fmean(logs) == pytest.approx(-sigma * sigma / 2, abs=4 * sigma / 100)
    low, middle, high = (statistics.quantiles(logs, n=100)[i] for i in (15, 49, 83))
    assert (high - middle) == pytest.approx(sigma, rel=0.05) and (middle - low) == pytest.approx(sigma, rel=0.05)


def test_neighbouring_steps_have_nothing_in_common() -> None:
    logs = [math.log(StepNoise(1.0, 5).factor(index)) for index in range(5000)]
    for lag in (1, 2, 16):
        assert abs(statistics.correlation(logs[lag:], logs[:-lag])) < 0.05


def test_seed_and_stream_change_the_draws_and_nothing_else_does() -> None:
    plain, noisy = durations(run()), durations(run(noise=0.1))
    assert noisy == durations(run(noise=0.1)) and len(noisy) == len(plain)
    assert noisy != durations(run(seed=1, noise=0.1)) != durations(run(noise=0.1, noise_seed=1)) != noisy
    assert statistics.fmean(noisy) == pytest.approx(statistics.fmean(plain), rel=0.05)
    assert durations(run(noise=0)) == plain


def test_noise_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"noise = -0\.1"):
        run(noise=-0.1)
