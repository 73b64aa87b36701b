"""Objectives of a run: what is read, what is refused, and what counts as met."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.errors import ConfigError
from batchwright.lab.designs.bounds import parse_bounds, split_slo, with_finished
from batchwright.lab.designs.measure import describe_names, parse_measure
from batchwright.lab.metrics import METRICS
from batchwright.lab.summary import summarize
from batchwright.request import SLO

from ..hand import request, run


def read(text: str) -> list[tuple[str, bool, float, bool]]:
    return [(b.measure.metric, b.below, b.limit, b.included) for b in parse_bounds(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "ttft_p99<1.0,itl_p99<0.05,goodput>0.95",
            [("p99_ttft_ms", True, 1.0, False), ("p99_itl_ms", True, 0.05, False), ("goodput", False, 0.95, False)],
        ),
        ("p99_ttft_ms<1000", [("p99_ttft_ms", True, 1000, False)]),
        (" ttft_p99 <= 1s , p90_itl_ms<0.05s", [("p99_ttft_ms", True, 1, True), ("p90_itl_ms", True, 50, False)]),
        ("ttft_mean<500ms", [("mean_ttft_ms", True, 0.5, False)]),
        ("ttft_p99<400s,p1_tpot_ms<0.2ms", [("p99_ttft_ms", True, 400, False), ("p1_tpot_ms", True, 0.2, False)]),
        ("goodput>=95%", [("goodput", False, 0.95, True)]),
        ("e2el_p99.9<2e1", [("p99.9_e2el_ms", True, 20, False)]),
        ("e2el_median<20", [("median_e2el_ms", True, 20, False)]),
        (
            "request_goodput>3.5,num_preemptions<10",
            [("request_goodput", False, 3.5, False), ("num_preemptions", True, 10, False)],
        ),
        ("num_aborted>1", [("num_aborted", False, 1, False)]),
    ],
)  # fmt: skip
def test_bounds_are_read(text: str, expected: list[tuple[str, bool, float, bool]]) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tfft_p99<1", "unknown metric of --slo 'tfft_p99'; did you mean 'ttft_p99'"),
        ("p99_tfft_ms<1", "did you mean 'p99_ttft_ms'"),
        ("nonsense<1", "unknown metric of --slo 'nonsense'; there are ttft_p99, tpot_p99, itl_p99, e2el_p99"),
        ("ttft_p99", "'ttft_p99' is not metric<value or metric>value, as in 'ttft_p99<1.0"),
        ("", "'' is not metric<value"),
        ("ttft_p99<1,,itl_p99<1", "'' is not metric<value"),
        ("<1", "'<1' is not metric<value"),
        ("ttft_p99=<1", "is not metric<value"),
        ("ttft_p99=1", "= is for objectives of each request, ttft=1.0 and tpot=0.05"),
        ("ttft_p99<", "'' is not a number of seconds; as in ttft_p99<0.5 or ttft_p99<500ms"),
        ("ttft_p99<fast", "'fast' is not a number of seconds"),
        ("p99_ttft_ms<inf", "'inf' is not a number of milliseconds"),
        ("ttft_p99<-1", "the limit must be a finite number of at least 0"),
        ("ttft_p99<1e999", "the limit must be a finite number"),
        ("ttft_p99<1000", "is in seconds, and 1000 s are hardly meant; write ttft_p99<1000ms or p99_ttft_ms<1000"),
        ("p99_itl_ms<0.05", "is in milliseconds, and 0.05 ms are hardly meant; write p99_itl_ms<0.05s or itl_p99<0.05"),
        ("ttft_p99<50%", "ttft_p99 is a time of seconds"),
        ("goodput>95", "goodput is a share of all offered requests, from 0 to 1; as in goodput>0.95 or goodput>95%"),
        ("goodput>1s", "goodput is a share"),
        ("goodput<0.9", "asks for what is worse: in goodput higher is better; write goodput>0.9"),
        ("ttft_p99>=1", "asks for what is worse: in ttft_p99 lower is better; write ttft_p99<=1"),
        ("request_goodput>3s", "request_goodput is a plain number; leave 's' out"),
        ("ttft_p100<1", "a percentile is one from p1 to p99.9"),
        ("ttft_p0.5<1", "a percentile is one from p1 to p99.9"),
        ("ttft_p99<1,p99_ttft_ms<900", "'ttft_p99<1' and 'p99_ttft_ms<900' bound the same metric"),
    ],
)
def test_what_is_wrong_with_them_is_said(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_bounds(text)
    assert words in str(caught.value)


def test_an_unknown_metric_is_answered_with_all_of_them() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_bounds("nonsense<1")
    for name in METRICS:
        latency = name.endswith("_ms")
        assert latency or name in str(caught.value), name
    assert describe_names() in str(caught.value)


def test_objectives_of_requests_stand_beside_those_of_the_run() -> None:
    goals, bounds = split_slo("ttft=1.0, goodput>0.95 ,tpot=0.05")
    assert goals == "ttft=1.0,tpot=0.05"
    assert [b.text for b in bounds] == ["goodput>0.95"]
    assert split_slo("ttft=1.0") == ("ttft=1.0", ())
    with pytest.raises(ConfigError, match="objectives of each request"):
        parse_bounds("ttft=1.0,goodput>0.9")


def test_where_nobody_speaks_of_those_that_are_missed_a_bound_is_added() -> None:
    assert [b.text for b in with_finished(parse_bounds("ttft_p99<1"))] == ["ttft_p99<1", "finished>0.99"]
    for text in ("ttft_p99<1,goodput>0.9", "finished>0.5"):
        assert [b.text for b in with_finished(parse_bounds(text))] == text.split(",")


def test_values_are_of_the_run() -> None:
    """Ten requests: one refused, one unfinished, one too slow, by times that are easy to check."""
    slo = SLO(ttft_s=0.5, tpot_s=None)
    requests = [request(i, times_ms=[100 * (i + 1), 100 * (i + 1) + 50], slo=slo) for i in range(8)]
    requests += [request(8, status="refused", slo=slo), request(9, slo=slo)]
    one = run(requests)
    assert parse_measure("goodput").of(one) == pytest.approx(0.5)
    assert parse_measure("finished").of(one) == pytest.approx(0.8)
    ttft = [0.1 * (i + 1) for i in range(8)]
    assert parse_measure("ttft_p99.9").of(one) == pytest.approx(np.percentile(ttft, 99.9))
    assert parse_measure("p25_ttft_ms").of(one) == pytest.approx(1000 * np.percentile(ttft, 25))
    assert parse_measure("ttft_p50").of(one) == parse_measure("ttft_median").of(one)
    assert parse_measure("itl_mean").of(one) == pytest.approx(0.05)
    summary = summarize(one)
    for name in METRICS:
        value = summary[name]
        assert parse_measure(name).of(one, summary) == (None if value is None else pytest.approx(value))


def test_what_is_undefined_is_not_met() -> None:
    one = run([request(0, status="refused")])
    (bound,) = parse_bounds("ttft_p95<1")
    assert bound.measure.of(one) is None
    assert not bound.met(None) and bound.edge([0.1, None], 0.95) is None
    (share,) = parse_bounds("goodput>0.5")
    assert share.measure.of(one) == 0 and not share.met(0)


def test_the_limit_itself_counts_where_it_is_said() -> None:
    (strict,), (loose,) = parse_bounds("ttft_p99<1"), parse_bounds("ttft_p99<=1")
    assert not strict.met(1.0) and loose.met(1.0) and strict.met(0.999) and not loose.met(1.001)


def test_the_edge_of_the_interval_is_students() -> None:
    """0.8, 0.9, 1.0 s: mean 0.9, standard error 0.0577, t of two degrees of freedom at 95% 2.920."""
    (below,), (above,) = parse_bounds("ttft_p99<1.1"), parse_bounds("goodput>0.7")
    values = [0.8, 0.9, 1.0]
    assert below.edge(values, 0.95) == pytest.approx(0.9 + 2.920 * 0.1 / 3**0.5, abs=1e-4)
    assert above.edge(values, 0.95) == pytest.approx(0.9 - 2.920 * 0.1 / 3**0.5, abs=1e-4)
    assert below.edge([0.7], 0.95) == 0.7


@given(st.lists(st.floats(0.1, 2), min_size=2, max_size=8), st.floats(0.1, 2))
def test_a_bound_is_met_with_confidence_only_where_the_mean_meets_it(values: list[float], limit: float) -> None:
    (bound,) = parse_bounds(f"ttft_p99<{limit:.6f}")
    edges = [bound.edge(values, confidence) for confidence in (0.6, 0.9, 0.99)]
    assert edges == sorted(edges, key=float)  # type: ignore[arg-type]
    if bound.met(edges[0]):
        assert np.mean(values) < limit
