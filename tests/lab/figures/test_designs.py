"""Figures and pages of sweeps and capacity searches, from their summaries."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from batchwright.config import EngineConfig
from batchwright.errors import WorkloadError
from batchwright.lab import load_workload
from batchwright.lab.designs.capacity import capacity
from batchwright.lab.designs.sweep import sweep
from batchwright.lab.designs.tune import tune
from batchwright.lab.figures import Plot
from batchwright.lab.figures.designs import design_plots
from batchwright.lab.figures.style import COLUMN_IN, RC
from batchwright.lab.files import Folder, Manifest
from batchwright.lab.html.design_page import plots_of_folder, write_design_page
from batchwright.lab.html.sweep_tables import sweep_tables
from lab.html.pages import Page

WORKLOAD = "synthetic:rate=20,n=16,prompt=uniform(60,400),output=uniform(4,30),seed=3"
ARMS = {name: EngineConfig(policy=name) for name in ("prefill_first", "stall_free")}
SLO = "ttft_p99<0.1,itl_p99<0.02"


@cache
def swept() -> dict[str, Any]:
    over = {"rate": [5, 20, 80], "max_num_seqs": [4, 64]}
    return sweep(ARMS, load_workload(WORKLOAD), over, seeds=2).to_json()


@cache
def searched() -> dict[str, Any]:
    return capacity(ARMS, load_workload(WORKLOAD), SLO, seeds=2, tolerance=0.5).to_json()


@cache
def tuned() -> dict[str, Any]:
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    config = EngineConfig(policy="stall_free:chunk_size=512", max_num_seqs=64)
    over = ["policy.chunk_size=int(64,2048,log)", "max_num_seqs=8,64"]
    return tune(
        config, load_workload(WORKLOAD), over, goal="itl_p99", slo="ttft_p99<0.1", trials=6, seeds=1, held_out=2
    ).to_json()


def lines(plot: Plot) -> list[Any]:
    with rc_context(RC):
        figure = Figure(figsize=(COLUMN_IN, plot.height_in))
        plot.draw(figure)
        FigureCanvasAgg(figure).draw()
        return figure.axes


def test_a_sweep_has_a_figure_for_each_numeric_axis_and_the_rest_fixed() -> None:
    plots = design_plots(swept(), {"p99_ttft_ms": 100})
    assert [plot.title for plot in plots] == [
        "Against rate at max_num_seqs=4",
        "Against rate at max_num_seqs=64",
        "Against max_num_seqs at rate=5",
        "Against max_num_seqs at rate=20",
        "Against max_num_seqs at rate=80",
    ]
    first = plots[0].columns
    place = next(
        i
        for i, (metric, arm, x) in enumerate(zip(first["metric"], first["arm"], list(first.values())[2], strict=True))
        if (metric, arm, x) == ("P99 TTFT (ms)", "stall_free", 20)
    )
    (point,) = [p for p in swept()["points"] if p["values"] == {"rate": 20, "max_num_seqs": 4}]
    values = point["spread"]["stall_free"]["p99_ttft_ms"]
    assert len(values) == 2
    assert first["mean"][place] == pytest.approx(sum(values) / 2)
    assert (first["lowest"][place], first["highest"][place]) == (min(values), max(values))
    words = [t.get_text() for axes in lines(plots[0]) for t in axes.texts]
    assert "SLO 100" in words
    assert {"A", "B"} <= set(words)


def test_a_capacity_is_drawn_against_rate_with_its_objectives() -> None:
    (plot,) = design_plots(searched())
    panels = lines(plot)
    assert [axes.get_ylabel() for axes in panels] == ["ttft_p99 (s)", "itl_p99 (s)", "finished"]
    words = [[t.get_text() for t in axes.texts] for axes in panels]
    for found, limit in zip(words, ("0.1", "0.02", "0.99"), strict=True):
        assert f"SLO {limit}" in found
    for arm, found in searched()["arms"].items():
        for text, metric in (("ttft_p99<0.1", "ttft_p99 (s)"), ("itl_p99<0.02", "itl_p99 (s)")):
            here = [
                (m, x)
                for name, a, x, m in zip(*list(plot.columns.values())[:3], plot.columns["met"], strict=True)
                if (name, a) == (metric, arm)
            ]
            assert here == [(text not in p["limited_by"], p["rate"]) for p in found["points"] if p["values"][text][0]]
    assert {True, False} <= set(plot.columns["met"])


def test_the_loads_of_a_closed_loop_are_drawn_as_users() -> None:
    found = capacity(ARMS, load_workload(WORKLOAD).closed(2), "itl_p99<0.02", seeds=1, tolerance=1, highest=8)
    (plot,) = design_plots(found.to_json())
    assert (plot.name, plot.title) == ("concurrency", "Against the number of users")
    assert lines(plot)[-1].get_xlabel() == "Concurrent requests"
    assert set(plot.columns["Concurrent requests"]) <= set(range(1, 9))


def test_trials_are_drawn_in_their_order_and_along_each_parameter() -> None:
    history, parameters = design_plots(tuned())
    goals = [trial["goal"] for trial in tuned()["trials"]]
    assert list(history.columns["itl_p99 (s)"]) == goals and list(history.columns["trial"]) == list(range(6))
    (axes,) = lines(history)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Trial", "itl_p99 (s)")
    steps = next(line for line in axes.get_lines() if line.get_drawstyle() == "steps-post")
    kept = [trial["goal"] for trial in tuned()["trials"] if trial["met"]]
    assert list(steps.get_ydata()) == [min(kept[: place + 1]) for place in range(len(kept))]
    marks = [line for line in axes.get_lines() if line.get_marker() in ("o", "*")]
    assert [line.get_ydata()[0] for line in marks] == goals
    stars = [place for place, line in enumerate(marks) if line.get_marker() == "*"]
    assert stars == [tuned()["best"]]
    for place, trial in enumerate(tuned()["trials"]):
        assert (marks[place].get_markerfacecolor() != "white") == trial["met"]
    assert "as given" in [text.get_text() for text in axes.texts]
    size, choice = lines(parameters)
    assert (size.get_xscale(), size.get_xlabel()) == ("log", "policy.chunk_size")
    assert [text.get_text() for text in choice.get_xticklabels()] == ["8", "64"]
    assert {False, True} >= set(history.columns["met"])


def folder(path: Path, design: str, summary: dict[str, Any]) -> Folder:
    """As the command line leaves one, without its runs."""
    found = Folder(path)
    manifest = Manifest.of(design, ARMS, load_workload(WORKLOAD), runs=[], command=["batchwright", design, "<a>"])
    found.write_experiment(manifest)
    found.write_summary(summary)
    return found


@pytest.mark.parametrize("design", ["sweep", "capacity", "tune"])
def test_their_page_is_sound_and_says_what_was_found(tmp_path: Path, design: str) -> None:
    summary = {"sweep": swept, "capacity": searched, "tune": tuned}[design]()
    found = folder(tmp_path / "x", design, summary)
    write_design_page(found.report_path, found, plots_of_folder(found))
    text = found.report_path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.unclosed == []
    assert len(page.ids) == len(set(page.ids))
    assert not page.all("script")
    assert all(cell["scope"] in ("row", "col") for cell in page.all("th"))
    assert f"batchwright {design} '<a>'" in page.text
    for line in summary["closing"]:
        assert line in page.text
    if design == "sweep":
        assert "Verdicts at 6 points, against prefill_first" in page.text
        words = [cell for row in next(sweep_tables(summary)).rows for cell in row[1:]]
        assert sum(map(int, words)) == 6 * len(words) / 3, "every point is counted once a metric"
        assert "rate=20, max_num_seqs=4" in page.text
    elif design == "capacity":
        for arm, result in searched()["arms"].items():
            assert result["rate"] is not None
            assert f"{arm} meets the objectives up to {result['rate']:.4g} requests/s" in page.text
        for ratio in searched()["ratios"]:
            said = (
                f"{ratio['arm']} carries {ratio['ratio']:.3g} times the load of {ratio['base']} [{ratio['low']:.3g}, "
            )
            assert said in page.text
    else:
        best = summary["trials"][summary["best"]]["values"]["policy.chunk_size"]
        assert f"chunk_size: {best}" in page.text
        assert "On 2 fresh seeds, which no trial saw" in page.text and "ttft_p99<0.1, end of its interval" in page.text
        assert "Trial by trial" in page.text and "All trials" in page.text


def test_bounds_on_metrics_of_plugins_are_drawn_too() -> None:
    """The figure knows a bound by what the summary says of it: plugins need not be there any more."""
    summary = json.loads(json.dumps(searched()).replace("itl_p99<0.02", "carbon<3"))
    summary["bounds"][1] |= {"name": "carbon", "unit": "", "limit": 3.0}
    (plot,) = design_plots(summary)
    assert "carbon" in [axes.get_ylabel() for axes in lines(plot)]


def test_a_summary_of_an_older_release_says_how_to_go_on(tmp_path: Path) -> None:
    found = folder(tmp_path / "x", "sweep", {name: value for name, value in swept().items() if name != "closing"})
    with pytest.raises(WorkloadError, match=r"is of an older release, or of another experiment; call its"):
        write_design_page(found.report_path, found, [])


def test_a_design_without_results_is_an_error(tmp_path: Path) -> None:
    found = folder(tmp_path / "x", "sweep", swept())
    found.summary_path.unlink()
    with pytest.raises(WorkloadError, match=r"summary\.json"):
        plots_of_folder(found)
