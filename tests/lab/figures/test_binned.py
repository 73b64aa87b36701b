"""Time lines in bins, against a sum over every nanosecond."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batchwright.lab.figures.binned import time_lines
from batchwright.lab.records import StepRecord
from batchwright.lab.run_record import RunLimits
from lab.hand import run

LIMITS = RunLimits(8, 2048, None, 4096, 10, 16)

STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(0, 9), st.integers(0, 10), st.integers(0, 50)),
    min_size=1,
    max_size=12,
)


def made(drawn: list[tuple[int, int, int, int, int]]) -> list[StepRecord]:
    now, found = 0, []
    for index, (idle, took, waiting, free, tokens) in enumerate(drawn):
        begin = now + idle
        now = begin + took
        found.append(StepRecord(index, begin, now, tokens, 0, 0, waiting, waiting, free))
    return found


@given(STEPS, st.integers(1, 9), st.integers(0, 8))
def test_means_and_extremes_are_those_of_every_moment(drawn, num_bins, after) -> None:
    steps = made(drawn)
    end = steps[-1].end_ns + after
    edges = np.unique(np.linspace(0, end, num_bins + 1).astype(np.int64))
    found = time_lines(run([], steps, limits=LIMITS, duration_ns=end), edges)

    waiting = np.zeros(end)
    for step in steps:
        waiting[step.end_ns :] = step.num_waiting
    for place, (a, b) in enumerate(pairwise(edges.tolist())):
        assert np.isclose(found.waiting.mean[place], waiting[a:b].mean())
        assert found.waiting.low[place] == waiting[a:b].min()
        assert found.waiting.high[place] == waiting[a:b].max()
        tokens = [s.num_prefill_tokens for s in steps if a <= s.end_ns < b or (s.end_ns == b == edges[-1])]
        assert np.isclose(found.tokens.mean[place], np.mean(tokens)) if tokens else np.isnan(found.tokens.mean[place])


def test_kv_in_use_is_what_is_not_free() -> None:
    steps = [StepRecord(0, 0, 10, 1, 0, 0, 0, 1, 4), StepRecord(1, 10, 20, 1, 0, 0, 0, 1, 9)]
    found = time_lines(run([], steps, limits=LIMITS, duration_ns=40), np.array([0, 10, 20, 40]))
    assert np.allclose(found.kv_use.mean, [0, 0.6, 0.1])


def test_replicas_add_up_and_their_kv_pools_are_averaged() -> None:
    steps = [
        StepRecord(0, 0, 10, 4, 0, 0, 3, 2, 0, replica=0),
        StepRecord(0, 0, 20, 6, 0, 0, 5, 1, 5, replica=1),
    ]
    two = run([], steps, limits=LIMITS, duration_ns=30, settings={"replicas": 2})
    found = time_lines(two, np.array([0, 10, 20, 30]))
    assert np.allclose(found.waiting.mean, [0, 3, 8])
    assert np.allclose(found.running.mean, [0, 2, 3])
    assert np.allclose(found.kv_use.mean, [0, 0.5, 0.75])


def test_after_the_end_of_a_run_there_is_nothing() -> None:
    steps = [StepRecord(0, 0, 10, 4, 0, 0, 3, 2, 0)]
    found = time_lines(run([], steps, limits=LIMITS, duration_ns=10), np.array([0, 10, 20, 30]))
    assert np.isnan(found.waiting.mean).tolist() == [False, True, True]
