"""When requests arrive: gaps, shapes of the rate, slices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright import EngineConfig
from batchwright.errors import WorkloadError
from batchwright.lab import ArrivalSpec, load_workload, run_arm, with_arrivals
from batchwright.lab.arrival_times import STEADY, Shape, draw_times
from fake_backend import FakeBackend
from lab.shapes import S, programs, quick, sessions

# Times ------------------------------------------------------------------------------------------------------------


@quick
@given(
    num=st.integers(1, 300),
    rate=st.floats(0.01, 1e4),
    burstiness=st.floats(0.05, 50),
    seed=st.integers(0, 999),
    shape=st.sampled_from([STEADY, Shape("constant"), Shape("ramp", (1, 3)), Shape("ramp", (2, 0))]),
)
def test_the_last_arrival_is_at_num_over_rate_whatever_the_gaps(
    num: int, rate: float, burstiness: float, seed: int, shape: Shape
) -> None:
    times = draw_times(num, rate, burstiness, shape, np.random.default_rng(seed))
    assert times[-1] == pytest.approx(num / rate * 1e9, rel=1e-6, abs=2)
    assert (np.diff(times) >= 0).all() and times[0] >= 0


def test_shapes() -> None:
    constant = np.diff([r.arrival_ns for r in load_workload("synthetic:rate=4,n=50,shape=constant").rows])
    assert set(constant) == {S // 4}
    times = np.array([r.arrival_ns / 1e9 for r in load_workload("synthetic:rate=10,n=3000,shape=onoff(2,3)").rows])
    assert (times % 5 <= 2 + 1e-9).all()
    assert len(times) / times.max() == pytest.approx(10, rel=0.02)
    assert np.histogram(times, bins=[0, 2])[0][0] == pytest.approx(50, rel=0.3)  # 25 a second while they come
    for ends, rates in (((1, 3), (5.25, 14.75)), ((2, 0), (19.5, 0.5)), ((4, 4), (10, 10))):
        times = Shape("ramp", ends).times_s(np.arange(1, 20001) / 20000, 2000)
        counts = np.histogram(times, bins=20, range=(0, 2000))[0]
        assert counts[[0, -1]] / 100 == pytest.approx(rates, abs=0.02)


def test_new_arrivals_leave_the_rest_as_it_is() -> None:
    load = load_workload("synthetic:rate=inf,n=8,turns=3,think=0.5")
    spec = ArrivalSpec.parse("rate=2,shape=constant")
    again = with_arrivals(load, spec)
    starts = [r for r in again.rows if not r.after]
    assert [r.arrival_ns for r in starts] == [S // 2 * i for i in range(1, 9)]
    assert [r.row_id for r in starts] == [r.row_id for r in load.rows if not r.after]
    assert {r.row_id: (r.after, r.num_prompt_tokens) for r in again.rows} == {
        r.row_id: (r.after, r.num_prompt_tokens) for r in load.rows
    }
    for text, words in (
        ("rate=0", "rate of arrivals is '0'"),
        ("n=3", "arrivals has no 'n'"),
        ("rate", "not key=value"),
    ):
        with pytest.raises(WorkloadError, match=words):
            ArrivalSpec.parse(text)


def test_a_rate_and_what_has_none() -> None:
    load = load_workload("synthetic:rate=4,n=40,turns=2,think=1")
    assert load.rate == pytest.approx(4)
    assert load.at_rate(10).rate == pytest.approx(10, rel=1e-6)
    assert {r.think_s for r in load.at_rate(10).rows} == {0.0, 1.0}
    with pytest.raises(WorkloadError, match="no times to stretch"):
        load_workload("synthetic:rate=inf,n=4").at_rate(3)
    for rate in (0, -1, math.nan, math.inf):
        with pytest.raises(WorkloadError, match="rate must be a finite number above 0"):
            load.at_rate(rate)


# Slices -----------------------------------------------------------------------------------------------------------


def test_slices_by_time_and_by_count() -> None:
    load = load_workload("synthetic:rate=1,n=20,shape=constant")
    assert [r.arrival_ns // S for r in load.window(5, 8).rows] == [0, 1, 2]
    assert len(load.window(0, math.inf)) == 20
    assert [r.arrival_ns // S for r in load.from_row(17).rows] == [0, 1, 2]
    for call, words in (
        (lambda: load.window(8, 5), "a window is FROM:UNTIL in seconds"),
        (lambda: load.window(math.nan, 5), "a window is FROM:UNTIL"),
        (
            lambda: load.window(100, 200),
            "nobody of workload .* arrives from 100 to 200 s; its last request arrives at 20 s",
        ),
        (lambda: load.from_row(20), "has 20 requests: skip 20 leaves none"),
        (lambda: load.from_row(-1), "skip must be a whole number of at least 0"),
    ):
        with pytest.raises(WorkloadError, match=words):
            call()


@quick
@given(spec=st.one_of(sessions, programs), data=st.data())
def test_who_waits_for_a_row_that_was_cut_off_waits_no_longer(spec: str, data: Any) -> None:
    load = load_workload(spec)
    skip, limit = data.draw(st.integers(0, len(load) - 1)), data.draw(st.integers(1, len(load)))
    part = load.from_row(skip).first(limit)
    names = {r.row_id for r in part.rows}
    for row in part.rows:
        assert names.issuperset(row.after)
    assert part.rows[0].arrival_ns == 0 or not skip
    record = run_arm(EngineConfig(), part, backend=FakeBackend(max_model_len=4096), declared="exact")
    assert all(r.status == "finished" for r in record.requests)
