"""What each figure shows is what the records say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from batchwright.lab import Comparison, compare
from batchwright.lab.figures import Plot, differences, fairness, figures_of, gantt, latency_cdfs, timeline
from batchwright.lab.figures.gantt import NUM_ROWS
from batchwright.lab.figures.style import COLUMN_IN, RC
from batchwright.lab.samples import latency_samples
from lab.figures.comparisons import CLIENTS, arm, crowd, long_tails, pair, seeded, simulated, single, troubled, windowed
from lab.hand import MS, S, request, run


def rows(plot: Plot, **wanted: str) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    """The columns of a plot's data, of the rows with these values."""
    keep = np.ones(len(next(iter(plot.columns.values()))), dtype=bool)
    for name, value in wanted.items():
        keep &= np.array(plot.columns[name]) == value
    return {name: np.array(values)[keep] for name, values in plot.columns.items()}


def cdf(comparison: Comparison, latency: str) -> Plot:
    return next(plot for plot in latency_cdfs(comparison) if plot.name == f"{latency}_cdf")


def axes_of(plot: Plot) -> Sequence[object]:
    with rc_context(RC):
        figure = Figure(figsize=(COLUMN_IN, plot.height_in))
        plot.draw(figure)
        FigureCanvasAgg(figure).draw()
        return figure.axes


def test_figures_come_in_the_order_of_a_report() -> None:
    cdfs = ["ttft_cdf", "tpot_cdf", "itl_cdf", "e2el_cdf"]
    assert [p.name for p in figures_of(pair())] == ["differences", *cdfs, "timeline", "requests", "fairness"]
    assert [p.name for p in figures_of(single())] == [*cdfs, "timeline", "requests", "fairness"]


def test_what_a_window_leaves_out_is_in_no_distribution_and_grey_on_the_time_line() -> None:
    for latency in ("ttft", "tpot", "itl", "e2el"):
        plot = cdf(windowed(), latency)
        assert max(plot.columns[f"{latency}_ms"]) < 900
        assert "Requests of the warm-up and the cool-down are left out." in plot.caption
    assert len(rows(cdf(windowed(), "ttft"), arm="a")["ttft_ms"]) == 64
    plot = timeline(windowed())
    assert plot is not None and "Grey: warm-up and cool-down, which no table counts." in plot.caption
    for axes in axes_of(plot):
        extents = [patch.get_extents().transformed(axes.transData.inverted()) for patch in axes.patches]  # type: ignore[attr-defined]
        (begin, first), (last, end) = sorted((box.x0, box.x1) for box in extents)
        assert (begin, first, last) == pytest.approx((0, 0.4, 3.6)) and end > 5
    plain = timeline(pair())
    assert plain is not None and "Grey" not in plain.caption and not axes_of(plain)[0].patches  # type: ignore[attr-defined]


# Distributions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("latency", ["ttft", "tpot", "itl", "e2el"])
@pytest.mark.parametrize("make", [pair, long_tails])
def test_a_distribution_is_that_of_the_samples(make, latency) -> None:
    comparison = make()
    plot = cdf(comparison, latency)
    for record in comparison.runs:
        values = np.sort(latency_samples(record)[latency].values)
        found = rows(plot, arm=record.arm)
        exact = np.searchsorted(values, found[f"{latency}_ms"], side="right") / len(values)
        assert found["share"] == pytest.approx(exact)
        assert found["share"][-1] == 1
        assert found[f"{latency}_ms"][[0, -1]] == pytest.approx(values[[0, -1]])


def test_many_values_are_thinned_and_the_caption_says_so() -> None:
    few, many = cdf(pair(), "ttft"), cdf(long_tails(), "itl")
    assert "ranks" not in few.caption
    assert len(rows(few, arm="prefill_first")["share"]) == 80
    assert len(rows(many, arm="a")["share"]) <= 400
    assert "ranks of 3,500 values" in many.caption


def test_a_tail_makes_the_axis_logarithmic() -> None:
    (log,) = axes_of(cdf(long_tails(), "e2el"))
    (linear,) = axes_of(cdf(pair(), "e2el"))
    assert log.get_xscale() == "log"  # type: ignore[attr-defined]
    assert linear.get_xscale() == "linear"  # type: ignore[attr-defined]
    assert "logarithmic" in cdf(long_tails(), "e2el").caption
    assert "logarithmic" not in cdf(pair(), "e2el").caption


def test_objectives_are_lines() -> None:
    def words(plot: Plot) -> list[str]:
        return [t.get_text() for axes in axes_of(plot) for t in axes.texts]  # type: ignore[attr-defined]

    assert "SLO 30" in words(cdf(pair(), "ttft"))
    assert "SLO 20" in words(cdf(pair(), "tpot"))
    assert not any("SLO" in word for word in words(cdf(pair(), "itl")))


def test_an_objective_far_beyond_is_named_instead() -> None:
    from batchwright.request import SLO

    plot = cdf(compare([arm("a", slo=SLO(ttft_s=9.0))]), "ttft")
    assert "Objectives not shown: 9000 ms." in plot.caption


def test_seeds_are_pooled_within_a_band() -> None:
    comparison = seeded()
    found = rows(cdf(comparison, "ttft"), arm="a")
    each = [np.sort(latency_samples(r)["ttft"].values) for r in comparison.of("a").values()]
    assert len(each) == 3
    assert found["ttft_ms"][-1] == max(v[-1] for v in each)
    assert found["lowest_ms"][0] == min(v[0] for v in each)
    assert found["highest_ms"][-1] == max(v[-1] for v in each)
    assert (found["lowest_ms"] <= found["highest_ms"]).all()
    assert "lowest to the highest seed" in cdf(comparison, "ttft").caption


def test_of_no_finished_request_there_is_no_line() -> None:
    plot = cdf(troubled(), "ttft")
    assert set(plot.columns["arm"]) == {"a", "b"}


# Differences -----------------------------------------------------------------------------------------------------


def test_differences_are_the_verdicts() -> None:
    comparison = pair()
    plot = differences(comparison)
    assert plot is not None
    assert len(plot.columns["metric"]) >= 12
    for place, metric in enumerate(plot.columns["metric"]):
        verdict = comparison.verdict(metric)
        assert verdict.interval is not None
        assert plot.columns["verdict"][place] == verdict.words
        assert plot.columns["difference_percent"][place] == pytest.approx(100 * (verdict.relative or 0))
        assert plot.columns["low_percent"][place] == pytest.approx(100 * (verdict.interval.relative_low or 0))
    assert "worse" in plot.columns["verdict"]


def test_the_word_stands_beside_the_mark_and_a_hollow_mark_shows_nothing() -> None:
    comparison = pair()
    plot = differences(comparison)
    assert plot is not None
    (axes,) = axes_of(plot)
    words = [t.get_text() for t in axes.texts]  # type: ignore[attr-defined]
    said = ["not shown" if w == "no difference shown" else w for w in plot.columns["verdict"]]
    assert words == said
    lines = axes.get_lines()  # type: ignore[attr-defined]
    marks = [line for line in lines if line.get_marker() not in ("None", "", None, "<", ">")]
    assert [mark.get_markerfacecolor() == "white" for mark in marks] == [w == "not shown" for w in said]


def test_an_interval_that_goes_on_beyond_the_figure_ends_in_an_arrowhead() -> None:
    comparison = pair()
    assert "arrowhead" in differences_of(comparison, low=-3.0).caption
    heads = [line.get_marker() for line in axes_of(differences_of(comparison, low=-3.0))[0].get_lines()]  # type: ignore[attr-defined]
    assert heads.count("<") == 1


def differences_of(comparison: Comparison, low: float) -> Plot:
    """The figure, were one interval as wide as that, and no other cut."""
    narrow = [
        replace(v, interval=v.interval and replace(v.interval, relative_low=v.relative, relative_high=v.relative))
        for v in comparison.verdicts
    ]
    place = next(i for i, v in enumerate(narrow) if v.interval is not None and v.metric == "mean_itl_ms")
    interval = narrow[place].interval
    assert interval is not None
    narrow[place] = replace(narrow[place], interval=replace(interval, relative_low=low))
    plot = differences(replace(comparison, verdicts=tuple(narrow)))
    assert plot is not None
    return plot


def test_one_arm_has_no_differences() -> None:
    assert differences(single()) is None


# Over time -------------------------------------------------------------------------------------------------------


def test_time_lines_have_the_mean_of_the_whole_run() -> None:
    comparison = simulated()
    plot = timeline(comparison)
    assert plot is not None
    for record in comparison.runs:
        found = rows(plot, arm=record.arm)
        widths = found["end_s"] - found["start_s"]
        alive = ~np.isnan(found["running_mean"])
        ends = np.array([0, *(s.end_ns for s in record.steps)]) / 1e9
        running = np.array([0, *(s.num_running for s in record.steps)])
        exact = float((running[:-1] * np.diff(ends)).sum())
        assert float((found["running_mean"] * widths)[alive].sum()) == pytest.approx(exact, rel=0.02)
        assert np.nanmax(found["running_max"]) == running.max()
        assert np.nanmax(found["kv_use_max"]) == pytest.approx(
            1 - min(s.free_blocks for s in record.steps) / record.limits.num_blocks
        )
        assert np.nanmax(found["waiting_max"]) == max(s.num_waiting for s in record.steps)


def test_panels_share_the_time() -> None:
    plot = timeline(pair())
    assert plot is not None
    panels = axes_of(plot)
    assert len(panels) == 4
    assert len({panel.get_xlim() for panel in panels}) == 1  # type: ignore[attr-defined]


# Requests --------------------------------------------------------------------------------------------------------


def test_bars_are_the_phases_of_the_requests() -> None:
    comparison = simulated()
    plot = gantt(comparison)
    assert plot is not None
    assert "evicted" in plot.columns["phase"]
    spans: dict[tuple[str, str], float] = defaultdict(float)
    for name, request_id, begin, end in zip(
        *(plot.columns[c] for c in ("arm", "request_id", "start_s", "end_s")), strict=True
    ):
        spans[name, request_id] += end - begin
    for record in comparison.runs:
        for each in record.requests:
            assert each.finish_s is not None
            assert spans[record.arm, each.request_id] == pytest.approx(each.finish_s - each.arrival_s)


def test_of_many_requests_those_are_shown_in_which_arms_differ_most() -> None:
    a, b = arm("a", num=200), arm("b", num=200)
    for place in range(120, 130):
        times = [t / 1e6 + 3000 for t in b.requests[place].token_times_ns]
        b.requests[place] = request(place, arrival_ms=50 * place, times_ms=times)
    plot = gantt(compare([a, b]))
    assert plot is not None
    shown = {int(name[1:]) for name in plot.columns["request_id"]}
    assert len(shown) == NUM_ROWS
    assert set(range(120, 130)) <= shown
    assert f"{NUM_ROWS} of 200 requests are shown" in plot.caption
    assert "not a typical stretch" in plot.caption


def test_of_one_arm_those_are_shown_that_waited_longest() -> None:
    """Who runs at time 0, as on a virtual clock, has not waited at all."""
    begun = [0] * 100 + [(k - 99) * MS for k in range(100, 200)]
    requests = [request(k, times_ms=[begun[k] / MS + 1], first_scheduled_ns=begun[k]) for k in range(200)]
    plot = gantt(compare([run(requests, duration_ns=S)]))
    assert plot is not None
    assert {int(name[1:]) for name in plot.columns["request_id"]} == set(range(200 - NUM_ROWS, 200))


def test_all_arms_show_the_same_requests_and_the_first_four_only() -> None:
    plot = gantt(crowd())
    assert plot is not None
    shown = defaultdict(set)
    for name, request_id in zip(plot.columns["arm"], plot.columns["request_id"], strict=True):
        shown[name].add(request_id)
    assert list(shown) == list(crowd().arms[:4])
    assert len({frozenset(ids) for ids in shown.values()}) == 1
    assert "The first 4 of 7 arms are shown." in plot.caption


# Fairness --------------------------------------------------------------------------------------------------------


def test_service_counts_prompts_once_and_output_tokens_twice() -> None:
    plot = fairness(pair())
    assert plot is not None
    for client in CLIENTS:
        own = [r for r in pair().runs[0].requests if r.client_id == client]
        expected = sum(r.num_prompt_tokens + 2 * r.num_output_tokens for r in own)
        found = rows(plot, arm="prefill_first", client=client)["service_tokens"]
        assert found[0] == 0
        assert found[-1] == expected
        assert (np.diff(found) >= 0).all()
    each = np.array([rows(plot, arm="prefill_first", client=c)["service_tokens"] for c in CLIENTS])
    gap = rows(plot, arm="prefill_first", client="largest gap")["service_tokens"]
    assert gap == pytest.approx(each.max(axis=0) - each.min(axis=0))


def test_one_client_is_treated_fairly() -> None:
    requests = [request(i, times_ms=[i + 1, i + 9], client_id="x") for i in range(4)]
    assert fairness(compare([run(requests, duration_ns=S)])) is None


def test_of_many_clients_some_have_a_name() -> None:
    record = arm("a")
    for place, each in enumerate(record.requests):
        each.client_id = f"client {place % 40}"
    plot = fairness(compare([record]))
    assert plot is not None
    assert "Of 40 clients the 5 served most" in plot.caption
    assert len(set(plot.columns["client"])) == 41
