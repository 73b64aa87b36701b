"""What two backends say of one A/B, held to each other."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from batchwright.errors import ComparisonError
from batchwright.lab import METRICS, Comparison, RequestMetric, RunRecord, compare
from batchwright.lab.agree import (
    AGREE,
    ALIKE,
    NEITHER,
    ONLY_FIRST,
    ONLY_SECOND,
    OPPOSITE,
    SIGNS,
    BackendsCompared,
    compare_backends,
)
from batchwright.lab.agree_report import format_agreement
from batchwright.lab.plugin_metrics import MetricSet
from batchwright.lab.run_record import RunLimits
from lab.hand import request, run
from lab.test_compare import noisy


@cache
def on(backend: str, shift: float, seed: int = 1, **values: Any) -> Comparison:
    """Two arms on a backend; B's gaps are longer by ``shift``."""
    runs = [noisy("a", seed, **values), noisy("b", seed + 1, shift=shift, **values)]
    return compare([replace(r, backend=backend) for r in runs])


def held(first: float, second: float, **values: Any) -> BackendsCompared:
    return compare_backends(on("sim:x@y", first), on("cpu:z", second, seed=5, **values))


@pytest.mark.parametrize(
    ("first", "second", "sign"),
    [
        (1.3, 1.3, AGREE),
        (0.7, 0.7, AGREE),
        (1.3, 0.7, OPPOSITE),
        (0.7, 1.3, OPPOSITE),
        (1.3, 1.0, ONLY_FIRST),
        (1.0, 0.7, ONLY_SECOND),
        (1.0, 1.0, NEITHER),
    ],
)
def test_the_sign_of_what_both_show(first: float, second: float, sign: str) -> None:
    found = held(first, second).agreement("mean_itl_ms")
    assert found.sign == sign
    assert found.tested
    assert found.verdicts[0].metric == found.verdicts[1].metric == "mean_itl_ms"
    shown = [v.difference for v in found.verdicts if v.difference and v.words in ("better", "worse")]
    assert [difference > 0 for difference in shown] == [shift > 1 for shift in (first, second) if shift != 1]


@pytest.mark.parametrize(("second", "overlap"), [(1.3, True), (1.05, False), (0.7, False)])
def test_intervals_overlap_or_not(second: float, overlap: bool) -> None:
    assert held(1.3, second).agreement("mean_itl_ms").overlap is overlap


def test_intervals_are_held_to_each_other_as_shares_of_the_first_arm() -> None:
    """A machine that is ten times slower agrees on the very same percentages."""

    def slowed(record: RunRecord) -> RunRecord:
        times = [
            replace(
                r,
                token_times_ns=type(r.token_times_ns)(
                    "q", [r.arrival_ns + 10 * (t - r.arrival_ns) for t in r.token_times_ns]
                ),
            )
            for r in record.requests
        ]
        return replace(record, requests=times, backend="cpu:slow")

    quick = on("sim:x@y", 1.3)
    compared = compare_backends(quick, compare([slowed(r) for r in quick.runs]))
    found = compared.agreement("mean_tpot_ms")
    quick_ms, slow_ms = (v.difference for v in found.verdicts)
    assert quick_ms is not None and slow_ms == pytest.approx(10 * quick_ms)
    assert (found.sign, found.overlap) == (AGREE, True)


def test_what_is_the_same_in_every_request_is_no_difference() -> None:
    one = noisy("a", 1)
    same = [compare([replace(one, backend=b), replace(one, arm="b", backend=b)]) for b in ("sim:x@y", "cpu:z")]
    assert {a.sign for a in compare_backends(*same).agreements} == {ALIKE}
    assert {a.sign for a in compare_backends(same[0], on("cpu:z", 1.3)).agreements if a.tested} >= {ONLY_SECOND}


def test_one_number_a_run_has_a_sign_and_no_say() -> None:
    """Throughput has no interval: chance may have made its sign, so it contradicts nobody."""
    first, second = ([request(0, times_ms=[10, 20])] for _ in range(2))

    def ab(backend: str, a_ms: float, b_ms: float) -> Comparison:
        a, b = (round(t * 1e6) for t in (a_ms, b_ms))
        return compare(
            [
                run(first, arm="a", backend=backend, duration_ns=a),
                run(second, arm="b", backend=backend, duration_ns=b),
            ]
        )

    compared = compare_backends(ab("sim:x@y", 100, 50), ab("cpu:z", 100, 200))
    assert lines(compared)["Throughput (req/s)"].split()[-2:] == ["(opposite)", "-"]
    found = compared.agreement("request_throughput")
    assert (found.sign, found.tested, found.overlap) == (OPPOSITE, False, None)
    assert compared.opposite == ()


def test_metrics_that_are_better_no_way_or_undefined_are_left_out() -> None:
    metrics = [a.metric for a in held(1.3, 1.3).agreements]
    assert set(metrics) <= {name for name, metric in METRICS.items() if metric.better}
    assert "request_goodput" not in metrics  # nobody has an objective
    assert {"mean_ttft_ms", "p99_itl_ms", "num_preemptions"} <= set(metrics)


def test_metrics_of_plugins_are_held_to_each_other_too() -> None:
    own = MetricSet({"wait": RequestMetric(lambda r: r.num_output_tokens, "Wait", "lower", shown=True)})
    first, second = (compare(on(backend, 1.2).runs, metrics=own) for backend in ("sim:a@b", "cpu:a"))
    compared = compare_backends(first, second)
    assert compared.agreement("mean_wait").sign == ALIKE
    assert any(a.metric == "mean_ttft_ms" for a in compared.agreements) and format_agreement(compared)
    with pytest.raises(ComparisonError, match=r"in other metrics \(mean_wait, median_wait, .*with the same plugins"):
        compare_backends(first, on("cpu:a", 1.2))


def test_contradictions_are_those_that_both_show() -> None:
    compared = held(1.3, 0.7)
    assert {"mean_itl_ms", "mean_tpot_ms"} <= {a.metric for a in compared.opposite}
    assert all(a.sign == OPPOSITE for a in compared.opposite)
    assert held(1.3, 1.2).opposite == ()


def test_sizes_and_ends_that_differ_are_told() -> None:
    first, second = on("sim:x@y", 1.2), on("cpu:z", 1.2)
    assert compare_backends(first, second).notes == ()
    other = [replace(r, limits=RunLimits(8, 2048, None, 4096, 64, 32)) for r in second.runs]
    first_request, *rest = other[1].requests
    other[1].requests = [replace(first_request, status="failed"), *rest]
    limits, ends = compare_backends(first, compare(other)).notes
    assert "num_blocks 1024, block_size 16 on sim:x@y and num_blocks 64, block_size 32 on cpu:z" in limits
    assert ends.startswith("b finished 200 requests on sim:x@y and 199 on cpu:z")


def test_only_the_same_experiment_is_compared() -> None:
    one = on("sim:x@y", 1.2)
    with pytest.raises(ComparisonError, match="different arms, a, b and b, a"):
        compare_backends(one, compare(one.runs[::-1]))
    with pytest.raises(ComparisonError, match="there is one arm, 'a'"):
        compare_backends(compare(one.runs[:1]), compare(one.runs[:1]))
    other = [replace(r, workload={**r.workload, "hash": "11"}) for r in one.runs]
    with pytest.raises(ComparisonError, match="different workloads, 00 and 11"):
        compare_backends(one, compare(other))
    with pytest.raises(ComparisonError, match="nothing on 'nonsense' of arm 'b'; arms: b"):
        compare_backends(one, one).agreement("nonsense")


def test_json_holds_both_comparisons_and_every_agreement(tmp_path: Path) -> None:
    compared = held(1.3, 0.7)
    compared.write_json(tmp_path / "out.json")
    value = json.loads((tmp_path / "out.json").read_text())
    assert value["backends"] == ["sim:x@y", "cpu:z"]
    assert [c["runs"][0]["backend"] for c in value["comparisons"]] == value["backends"]
    assert [a["metric"] for a in value["agreements"]] == [a.metric for a in compared.agreements]
    found = next(a for a in value["agreements"] if a["metric"] == "mean_itl_ms")
    assert (found["arm"], found["sign"], found["tested"], found["intervals_overlap"]) == ("b", OPPOSITE, True, False)
    assert found["differences"][0]["low"] > 0 > found["differences"][1]["high"]
    assert {a["sign"] for a in value["agreements"]} <= set(SIGNS)


# The report ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 120])
def test_the_report_fits_and_is_plain(width: int) -> None:
    text = format_agreement(held(1.3, 0.7), width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def lines(compared: BackendsCompared) -> dict[str, str]:
    return {line[:18].strip(): line for line in format_agreement(compared, 120).splitlines() if line.strip()}


def test_a_row_has_both_differences_the_sign_and_the_intervals() -> None:
    compared = held(1.3, 0.7)
    line = lines(compared)["Mean ITL (ms)"]
    for verdict in compared.agreement("mean_itl_ms").verdicts:
        value = verdict.to_json()
        low, high = 100 * value["relative_low"], 100 * value["relative_high"]
        assert f"{100 * (verdict.relative or 0):+.1f}% [{low:+.1f}, {high:+.1f}]" in line
    assert line.split()[-2:] == ["opposite", "apart"]
    assert lines(held(1.3, 1.3))["Mean ITL (ms)"].split()[-2:] == ["agree", "overlap"]
    assert lines(held(1.3, 1.0))["Mean ITL (ms)"].split()[-3:-1] == ["only", "sim"]
    assert lines(held(1.0, 1.3))["Mean ITL (ms)"].split()[-3:-1] == ["only", "cpu"]
    both = lines(compare_backends(on("sim:x@y", 1.3), on("sim:z@y", 1.0, seed=5)))
    assert both["Mean ITL (ms)"].split()[-3:-1] == ["only", "first"]


def test_the_closing_lines_count_and_name_contradictions() -> None:
    compared = held(1.3, 0.7)
    text = " ".join(format_agreement(compared).split())
    shown = [a for a in compared.agreements if a.tested and a.sign in (AGREE, OPPOSITE)]
    agreed = sum(a.sign == AGREE for a in shown)
    assert f"{len(shown)} differences are shown on both backends: the sign agrees in {agreed}" in text
    assert "Mean ITL (ms): the backends contradict each other on b" in text
    assert "sim:x@y: decisions differ in" in text
    assert "no difference is shown on both backends" in " ".join(format_agreement(held(1.0, 1.0)).split())
