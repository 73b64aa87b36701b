"""Which runs may be compared, and what is concluded."""

from __future__ import annotations

import json
from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright.errors import ComparisonError
from batchwright.lab import METRICS, compare
from batchwright.lab.alignment import share_that_differs
from batchwright.lab.run_record import RunRecord
from batchwright.request import SLO
from lab.hand import MS, offered, request, run


def noisy(arm: str, seed: int, *, num: int = 200, shift: float = 1.0, noise: float = 0.05, **values: Any) -> RunRecord:
    """One workload, with noise on every gap that is this run's own, and gaps longer by ``shift``."""
    load, own = np.random.default_rng(0), np.random.default_rng([1, seed])
    requests = []
    for i in range(num):
        gaps = load.lognormal(np.log(20), 0.4, size=10) * np.exp(own.normal(0, noise, 10))
        gaps[1:] *= shift
        requests.append(request(i, arrival_ms=50 * i, times_ms=(50 * i + np.cumsum(gaps)).tolist(), **values))
    return run(requests, arm=arm)


# Pairing ---------------------------------------------------------------------------------------------------------


def pair(**change: Any) -> list[RunRecord]:
    """Two runs of 12 requests; in the second some offers differ."""
    requests = [request(i, arrival_ms=i, times_ms=[i + 10, i + 20]) for i in range(12)]
    a, b = run(requests, arm="a"), run(requests, arm="b")
    b.offered = [offered(r, **change) if i in (3, 7) else offered(r) for i, r in enumerate(requests)]
    return [a, b]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"arrival_ns": 5 * MS + 1}, "r000003 (arrival 0.003000 s and 0.005000 s)"),
        ({"prompt_hash": "ffff"}, "r000003 (prompt 0123456789abcdef and ffff)"),
        ({"num_output_tokens": 9}, "r000003 (asked output length 2 and 9)"),
        ({"request_id": "x"}, "r000003 (id r000003 and x)"),
    ],
)
def test_different_requests_are_not_compared(change, says) -> None:
    """Scenario B2."""
    with pytest.raises(ComparisonError) as error:
        compare(pair(**change))
    message = str(error.value)
    assert message.startswith("arms 'a' and 'b' cannot be compared: 2 of 12 offered requests differ: ")
    assert says in message
    assert "r000007" in message
    assert "r000004" not in message


def test_a_different_declared_limit_alone_is_a_matter_of_settings() -> None:
    compare(pair(max_tokens=50))


def test_many_differences_are_counted_and_three_are_shown() -> None:
    a, b = pair()
    b.offered = [replace(o, prompt_hash="ff") for o in b.offered]
    with pytest.raises(ComparisonError, match=r"12 of 12 .* and 9 more; prompts follow the vocabulary") as error:
        compare([a, b])
    assert str(error.value).count("(prompt") == 3


def test_a_different_number_of_requests_is_not_compared() -> None:
    a, b = pair()
    b.offered.pop()
    b.requests.pop()
    with pytest.raises(ComparisonError, match="12 and 11 requests were offered"):
        compare([a, b])


def test_requests_that_finished_with_different_lengths_are_not_compared() -> None:
    """Scenario B2."""
    a, b = pair()
    b.requests = list(b.requests)
    b.requests[5] = request(5, arrival_ms=5, times_ms=[9, 10, 11])
    with pytest.raises(ComparisonError, match=r"1 requests finished in both .* r000005 \(2 and 3 output tokens\)"):
        compare([a, b])
    b.requests[5] = request(5, arrival_ms=5, times_ms=[9, 10, 11], status="aborted")
    compare([a, b])


def test_every_arm_is_held_against_the_first() -> None:
    a, b = pair()
    c = replace(pair(prompt_hash="ff")[1], arm="c")
    with pytest.raises(ComparisonError, match="arms 'a' and 'c'"):
        compare([a, b, c])


def test_no_run_and_one_name_twice() -> None:
    with pytest.raises(ComparisonError, match="no run to compare"):
        compare([])
    a, _ = pair()
    with pytest.raises(ComparisonError, match="two arms are called 'a', and have runs of seed 0"):
        compare([a, a])


# Verdicts --------------------------------------------------------------------------------------------------------


def test_a_run_against_itself_shows_no_difference() -> None:
    """Scenario B1, on records."""
    a = noisy("a", 1, slo=SLO(ttft_s=0.02))
    found = compare([a, replace(a, arm="b")])
    assert {v.words for v in found.verdicts} == {"no difference"}
    assert len(found.verdicts) == len(METRICS)


@pytest.mark.parametrize("metric", ["mean_itl_ms", "median_itl_ms", "p99_itl_ms", "mean_tpot_ms", "mean_e2el_ms"])
def test_a_longer_gap_is_worse_with_its_size(metric) -> None:
    found = compare([noisy("a", 1), noisy("b", 2, shift=1.1)]).verdict(metric)
    assert found.words == "worse"
    assert 0 < found.interval.low < found.difference < found.interval.high
    assert found.interval.relative_low < found.relative < found.interval.relative_high
    assert found.relative == pytest.approx(0.1, abs=0.04)
    back = compare([noisy("b", 2, shift=1.1), noisy("a", 1)]).verdict(metric)
    assert back.words == "better"
    assert back.difference == pytest.approx(-found.difference)


def test_noise_alone_is_rarely_called_a_difference() -> None:
    """Scenario B1 with noise: 25 pairs; at most 5% of them are to have any false word."""
    names = [m for m in METRICS if m.endswith("_ms") and not m.startswith("std")]
    wrong = 0
    for seed in range(25):
        a, b = noisy("a", 2 * seed, num=80), noisy("b", 2 * seed + 1, num=80)
        assert a.requests != b.requests
        found = compare([a, b])
        words = {found.verdict(name).words for name in names}
        assert words <= {"no difference shown", "better", "worse", "no difference"}
        wrong += bool(words & {"better", "worse"})
    assert wrong <= 4  # at 5%, 5 of 25 would come once in 140 times


def test_a_shift_of_three_percent_is_found() -> None:
    found = [compare([noisy("a", 2 * s), noisy("b", 2 * s + 1, shift=1.03)]).verdict("mean_itl_ms") for s in range(10)]
    assert sum(v.words == "worse" for v in found) >= 9


def test_fewer_than_ten_requests_carry_no_verdict() -> None:
    found = compare([noisy("a", 1, num=9), noisy("b", 2, num=9, shift=2)]).verdict("mean_itl_ms")
    assert (found.words, found.interval) == ("no difference shown", None)
    assert found.relative > 0.9


def test_goodput_is_tested_and_throughput_is_not() -> None:
    slo = SLO(tpot_s=0.023)
    found = compare([noisy("a", 1, slo=slo), noisy("b", 2, shift=1.3, slo=slo)])
    goodput = found.verdict("request_goodput")
    assert goodput.words == "worse"
    assert goodput.interval.low < goodput.difference < goodput.interval.high < 0
    assert found.verdict("request_throughput").words == "not tested"
    assert found.verdict("num_refused").words == "no difference"


def test_undefined_metrics() -> None:
    one = run([request(i, times_ms=[5]) for i in range(12)], arm="a")
    none = run([replace(r, status="refused", token_times_ns=array("q")) for r in one.requests], arm="b")
    none.offered = one.offered
    found = compare([one, none])
    assert found.verdict("mean_ttft_ms").words == "undefined"
    assert found.verdict("mean_tpot_ms").words == "no difference"  # in both: each has one token only
    assert found.verdict("completed").words == "not tested"
    assert found.verdict("completed").difference == -12


def test_one_run_has_a_summary_and_no_verdict() -> None:
    found = compare([noisy("a", 1)])
    assert found.verdicts == ()
    assert found.summaries["a"]["completed"] == 200
    assert found.spread["a"]["completed"] == [200]
    with pytest.raises(ComparisonError, match="no verdict on 'mean_itl_ms'"):
        found.verdict("mean_itl_ms")


def test_a_comparison_as_json_is_the_same_each_time(tmp_path) -> None:
    texts = []
    for name in ("one", "two"):
        compare([noisy("a", 1), noisy("b", 2)]).write_json(tmp_path / name)
        texts.append((tmp_path / name).read_bytes())
    assert texts[0] == texts[1]
    value = json.loads(texts[0])
    assert value["summary"]["a"]["completed"] == 200
    assert [r["arm"] for r in value["runs"]] == ["a", "b"]
    assert RunRecord.from_json(value["runs"][1]) == noisy("b", 2)
    assert {"metric", "verdict", "low", "high", "level", "num_seeds"} <= set(value["verdicts"][0])
    assert (value["arms"], value["seeds"], value["level"]) == (["a", "b"], [0], 0.95)


# Alignment -------------------------------------------------------------------------------------------------------


def longest_common_subsequence(a: list[Any], b: list[Any]) -> int:
    best = np.zeros((len(a) + 1, len(b) + 1), dtype=int)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            best[i + 1, j + 1] = best[i, j] + 1 if x == y else max(best[i, j + 1], best[i + 1, j])
    return int(best[-1, -1])


@given(st.lists(st.integers(0, 30), max_size=25), st.lists(st.integers(0, 30), max_size=25))
@settings(max_examples=200, deadline=None)
def test_alignment_is_the_longest_common_subsequence_of_numbered_batches(a, b) -> None:
    def numbered(values: list[int]) -> list[tuple[int, int]]:
        return [(v, values[:i].count(v)) for i, v in enumerate(values)]

    longest = max(len(a), len(b))
    expected = 1 - longest_common_subsequence(numbered(a), numbered(b)) / longest if longest else 0
    assert share_that_differs(a, b) == pytest.approx(expected)


def test_one_step_more_is_one_difference_and_another_order_is_one_too() -> None:
    steps = list(range(100))
    assert share_that_differs(steps, steps) == 0
    assert share_that_differs(steps, [*steps[:3], 1000, *steps[3:]]) == pytest.approx(1 / 101)
    assert share_that_differs([1, 2], [2, 1]) == 0.5
    assert share_that_differs([1] * 10, [1] * 9) == pytest.approx(0.1)
    assert share_that_differs([1, 2], [3, 4]) == 1
