"""Metrics, by hand and by numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.lab import METRICS, summarize
from batchwright.lab.samples import latency_samples
from batchwright.lab.shown import SHOWN
from batchwright.request import SLO
from lab.hand import S, request, run


def test_two_requests_by_hand() -> None:
    one = request(0, arrival_ms=100, times_ms=[150, 170, 200], num_prompt_tokens=30)
    two = request(1, arrival_ms=200, times_ms=[300, 310, 320, 360, 370], num_prompt_tokens=10, num_preemptions=2)
    found = summarize(run([one, two], duration_ns=2 * S))
    assert found["mean_ttft_ms"] == 75
    assert found["mean_e2el_ms"] == 135
    assert found["mean_tpot_ms"] == pytest.approx((50 / 2 + 70 / 4) / 2)
    assert found["mean_itl_ms"] == pytest.approx((20 + 30 + 10 + 10 + 40 + 10) / 6)
    assert found["median_itl_ms"] == 15
    assert found["p90_itl_ms"] == pytest.approx(35)
    assert found["std_ttft_ms"] == 25
    assert found["completed"] == 2
    assert found["duration"] == 2
    assert found["total_input_tokens"] == 40
    assert found["total_output_tokens"] == 8
    assert found["request_throughput"] == 1
    assert found["output_throughput"] == 4
    assert found["total_token_throughput"] == 24
    assert found["num_preemptions"] == 2
    assert found["request_goodput"] is None


def test_every_metric_has_a_name_a_label_and_a_value() -> None:
    found = summarize(run([request(times_ms=[1, 2])]))
    assert set(found) == set(METRICS)
    assert set(SHOWN) <= set(METRICS)
    assert len({m.label for m in METRICS.values()}) == len(METRICS)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.lists(st.integers(1, 10**6), min_size=1, max_size=12)),
        min_size=1,
        max_size=20,
    )
)
@settings(max_examples=100, deadline=None)
def test_latencies_by_the_plainest_code(values) -> None:
    requests = []
    for i, (arrival, gaps) in enumerate(values):
        requests.append(request(i, arrival_ms=arrival, times_ms=np.cumsum([arrival, *gaps])[1:].tolist()))
    found = summarize(run(requests))
    ttft, tpot, itl, e2el = [], [], [], []
    for arrival, gaps in values:
        times = np.cumsum([arrival, *gaps])[1:]
        ttft.append(times[0] - arrival)
        e2el.append(times[-1] - arrival)
        itl += list(np.diff(times))
        if len(times) > 1:
            tpot.append((e2el[-1] - ttft[-1]) / (len(times) - 1))
    for name, expected in (("ttft", ttft), ("tpot", tpot), ("itl", itl), ("e2el", e2el)):
        if not expected:
            assert found[f"mean_{name}_ms"] is found[f"p99_{name}_ms"] is None
            continue
        assert found[f"mean_{name}_ms"] == pytest.approx(np.mean(expected))
        assert found[f"median_{name}_ms"] == pytest.approx(np.median(expected))
        assert found[f"std_{name}_ms"] == pytest.approx(np.std(expected), abs=1e-6)
        assert found[f"p90_{name}_ms"] == pytest.approx(np.percentile(expected, 90))
        assert found[f"p99_{name}_ms"] == pytest.approx(np.percentile(expected, 99))


def test_owners_name_the_request_of_each_value() -> None:
    requests = [
        request(0, times_ms=[5, 6, 8]),
        request(1, status="aborted", times_ms=[1, 2]),
        request(2, times_ms=[7]),
        request(3, times_ms=[9, 10]),
    ]
    found = latency_samples(run(requests))
    assert found["ttft"].owners.tolist() == found["e2el"].owners.tolist() == [0, 2, 3]
    assert found["tpot"].owners.tolist() == [0, 3]
    assert found["itl"].owners.tolist() == [0, 0, 3]
    assert found["itl"].values.tolist() == [1, 2, 1]


def test_tpot_of_one_token_is_left_out_and_counted() -> None:
    """Scenario B4."""
    requests = [request(0, times_ms=[100]), request(1, times_ms=[100, 130]), request(2, times_ms=[50])]
    found = summarize(run(requests))
    assert found["mean_tpot_ms"] == found["median_tpot_ms"] == found["p99_tpot_ms"] == 30
    assert found["num_tpot_undefined"] == 2
    only = summarize(run([request(0, times_ms=[100])]))
    assert only["mean_tpot_ms"] is None
    assert only["mean_itl_ms"] is None
    assert only["mean_ttft_ms"] == 100


def test_what_did_not_finish_stands_beside_and_counts_as_missed() -> None:
    """Scenario B3."""
    slo = SLO(ttft_s=0.2, tpot_s=0.05)
    requests = [
        request(0, times_ms=[100, 150], slo=slo),  # met
        request(1, times_ms=[201, 210], slo=slo),  # too late
        request(2, times_ms=[100, 151], slo=slo),  # too slow
        request(3, times_ms=[200, 250], slo=slo),  # just met
        request(4, times_ms=[10], slo=slo),  # one token: no TPOT to miss
        request(5, status="refused", error="no room", slo=slo),
        request(6, times_ms=[10, 20], status="unfinished", finish_reason=None, slo=slo),
        request(7, times_ms=[10, 20], status="failed", finish_reason="error", slo=slo),
        request(8, times_ms=[10, 20], status="aborted", finish_reason="abort", slo=slo),
        request(9, times_ms=[900, 990]),  # no objectives: it only has to finish
    ]
    found = summarize(run(requests, duration_ns=2 * S))
    assert found["request_goodput"] == 4 / 2
    assert found["completed"] == 6
    for status in ("refused", "unfinished", "failed", "aborted"):
        assert found[f"num_{status}"] == 1
    assert found["total_output_tokens"] == 2 * 5 + 1  # of finished requests only
    # Latencies are of the finished ones: those that failed with early tokens do not improve them.
    assert found["mean_ttft_ms"] == pytest.approx(np.mean([100, 201, 100, 200, 10, 900]))


def test_nothing_finished() -> None:
    found = summarize(run([request(0, status="refused"), request(1)], duration_ns=0))
    assert found["completed"] == 0
    assert {v for k, v in found.items() if k.endswith("_ms")} == {None}
    assert found["request_throughput"] is None
    assert found["cache_hit_rate"] is None
    assert found["recompute_tax"] == 0


def test_recompute_tax_and_cache_hits_are_shares_of_prompt_tokens() -> None:
    requests = [
        request(0, times_ms=[1], num_prompt_tokens=100, num_cached_tokens=64, num_recomputed_tokens=30),
        request(1, times_ms=[1], num_prompt_tokens=50),
        request(2, num_prompt_tokens=50),  # taken, never ran
        request(3, num_prompt_tokens=1000, status="refused"),
    ]
    found = summarize(run(requests))
    assert found["recompute_tax"] == 30 / 200
    assert found["cache_hit_rate"] == 64 / 150
