"""Metrics of plugins: registered, computed of fresh and of saved runs, and judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchwright import EngineConfig, hookimpl
from batchwright.errors import ConfigError, PluginError
from batchwright.lab import (
    RequestMetric,
    RequestRecord,
    RunMetric,
    RunRecord,
    ab,
    compare,
    format_report,
    load_workload,
    run_arm,
    summarize,
)
from batchwright.lab.shown import choose_metrics
from batchwright.plugins import Plugins, load_plugins
from fake_plugins import FakePoint, install, module_of
from lab.hand import request, run

WORKLOAD = load_workload("synthetic:rate=40,n=60,prompt=uniform(20,900),output=uniform(2,30),seed=5")


def stretch(record: RequestRecord) -> float | None:
    """End-to-end latency over what it would have been without a wait."""
    if record.first_scheduled_ns is None or record.num_output_tokens < 2:
        return None
    end = record.token_times_ns[-1]
    return (end - record.arrival_ns) / (end - record.first_scheduled_ns)


METRICS: dict[str, Any] = {
    "stretch": RequestMetric(stretch, "Stretch", "lower", 3, doc="E2EL over the same without waiting.", shown=True),
    "longest_step": RunMetric(
        lambda run: max(((s.end_ns - s.start_ns) / 1e6 for s in run.steps), default=None), "Longest step (ms)", "lower"
    ),
    "num_events": lambda run: len(run.events),
}


def plugins(**brought: Any) -> Plugins:
    """Loaded from one entry point a plugin: its name to the metrics it registers."""
    points = [
        FakePoint(name, module_of(register_metrics=hookimpl(lambda metrics=metrics: metrics)), f"{name}-dist")
        for name, metrics in brought.items()
    ]
    return load_plugins(points=points)


def test_a_summary_has_them_beside_its_own() -> None:
    record = run_arm(EngineConfig(policy="vllm_v1", max_num_seqs=4), WORKLOAD)
    found = summarize(record, plugins(acme=METRICS).metric_set)
    values = [value for r in record.requests if (value := stretch(r)) is not None]
    assert max(values) > 1.2
    assert found["mean_stretch"] == pytest.approx(np.mean(values))
    assert found["p99_stretch"] == pytest.approx(np.percentile(values, 99))
    assert found["std_stretch"] == pytest.approx(np.std(values))
    assert found["longest_step"] == pytest.approx(max(s.end_ns - s.start_ns for s in record.steps) / 1e6)
    assert found["num_events"] == len(record.events)
    assert {name: found[name] for name in summarize(record)} == summarize(record)


def test_what_no_request_has_is_undefined() -> None:
    found = summarize(run([request(0, status="refused")]), plugins(acme=METRICS).metric_set)
    assert found["mean_stretch"] is found["p99_stretch"] is found["longest_step"] is None


def test_a_metric_of_requests_gets_intervals_and_one_of_runs_does_not() -> None:
    arms = {name: EngineConfig(policy=name, max_num_seqs=4) for name in ("vllm_v1", "sjf")}
    arms["sjf"] = EngineConfig(policy="sjf", max_num_seqs=4)
    installed = load_plugins()
    for name, metric in plugins(acme=METRICS).metrics.items():
        installed.metrics[name], installed.origin["metrics", name] = metric, "acme"
    comparison = ab(arms, WORKLOAD, installed=installed, declared="exact")
    of_requests, of_run = comparison.verdict("mean_stretch"), comparison.verdict("longest_step")
    assert of_requests.interval is not None
    assert of_requests.interval.low <= of_requests.interval.high
    assert of_run.interval is None
    assert of_run.words in ("not tested", "no difference")
    assert comparison.verdict("std_stretch").interval is None
    report = format_report(comparison)
    assert "Mean Stretch" in report and "P99 Stretch" in report
    assert "Longest step" not in report  # it did not ask to be shown
    chosen = format_report(comparison, metrics=choose_metrics("longest_step", comparison.metrics.metrics))
    assert "Longest step (ms)" in chosen and "Mean TTFT" not in chosen


def test_they_are_computed_of_saved_runs(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'batchwright[parquet]'")
    from batchwright.lab.files import Folder

    record = run_arm(EngineConfig(policy="vllm_v1", max_num_seqs=4), WORKLOAD)
    Folder(tmp_path).write_run("a", record)
    metrics = plugins(acme=METRICS).metric_set
    saved = [Folder(tmp_path).read_run("a"), RunRecord.from_json(json.loads(record.dumps()))]
    for again in saved:
        assert compare([again], metrics=metrics).summaries == compare([record], metrics=metrics).summaries


# What is wrong with one --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (3, "metric 'x' must be a batchwright.lab.RunMetric, a RequestMetric or a function of a run's record, not 3"),
        (RunMetric, "not <class 'batchwright.lab.plugin_metrics.RunMetric'>"),
        (RunMetric(3), "function must be callable, not 3"),  # type: ignore[arg-type]
        (RequestMetric(stretch, better="more"), "better must be 'lower', 'higher' or None"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_metric_is_fatal_at_load(value: Any, says: str) -> None:
    with pytest.raises(PluginError, match=r"plugin 'acme' of acme-dist 1\.0: .*--no-plugin acme") as error:
        plugins(acme={"x": value})
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("brought", "says"),
    [
        ({"a": {"completed": len}}, "registers metric 'completed', which Batchwright has itself"),
        ({"a": {"ttft_ms": RequestMetric(stretch)}}, "registers metric 'mean_ttft_ms', which Batchwright has itself"),
        (
            {"a": {"x": len}, "b": {"x": len}},
            "plugin 'b' of b-dist 1.0 registers metrics 'x', and so does plugin 'a' of a-dist",
        ),
        (
            {"a": {"mean_x": len}, "b": {"x": RequestMetric(stretch)}},
            "plugin 'b' of b-dist 1.0 registers metric 'mean_x', and so does plugin 'a' of a-dist 1.0",
        ),
    ],
)
def test_a_name_that_is_taken_is_fatal_at_load(brought: dict[str, Any], says: str) -> None:
    with pytest.raises(PluginError) as error:
        plugins(**brought)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        (lambda run: "many", "metric 'x' of plugin 'acme' gave 'many' for the run; it gives a finite number, or None"),
        (lambda run: float("nan"), "gave nan for the run"),
        (lambda run: True, "gave True for the run"),
        (lambda run: run.nonsense, "raised AttributeError: .*nonsense.* for the run; mend the plugin"),
        (RequestMetric(lambda record: [1]), r"gave \[1\] for r000000"),  # type: ignore[arg-type,return-value]
    ],
)
def test_a_metric_that_fails_is_named(metric: Any, says: str) -> None:
    with pytest.raises(PluginError, match=says):
        summarize(run([request(0, times_ms=[1, 2])]), plugins(acme={"x": metric}).metric_set)


def test_numbers_of_numpy_are_numbers() -> None:
    metrics = plugins(acme={"x": lambda run: np.int64(3), "y": lambda run: np.float32(0.5)}).metric_set
    found = summarize(run([]), metrics)
    assert json.dumps([found["x"], found["y"]]) == "[3, 0.5]"


# A stranger's distribution -----------------------------------------------------------------------------------------

ACME = """
from batchwright import hookimpl
from batchwright.lab import RequestMetric, RunMetric

@hookimpl
def register_metrics():
    return {
        "first_gap_ms": RequestMetric(first_gap, "first gap (ms)", "lower", shown=True),
        "idle_share": RunMetric(idle, "Idle (%)", scale=100, shown=True),
    }

def first_gap(record):
    times = record.token_times_ns
    return (times[1] - times[0]) / 1e6 if len(times) > 1 else None

def idle(run):
    return 1 - sum(s.end_ns - s.start_ns for s in run.steps) / run.duration_ns if run.duration_ns else None
"""


def test_an_installed_distribution_adds_to_table_and_files(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    from batchwright.cli import main

    install(tmp_path, "acme-metrics", {"acme": "acme_metrics"}, {"acme_metrics.py": ACME})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    command = ["ab", "vllm_v1", "stall_free", "--workload", "synthetic:rate=20,n=30,prompt=200,output=uniform(2,9)"]
    assert _exit_code(main, monkeypatch, [*command, "--json", "out.json"]) == 0
    out = capsys.readouterr().out
    assert "Mean first gap (ms)" in out and "Idle (%)" in out
    result = json.loads((tmp_path / "out.json").read_text())
    assert 0 < result["summary"]["stall_free"]["idle_share"] < 1
    assert {v["metric"] for v in result["verdicts"]} >= {"mean_first_gap_ms", "p99_first_gap_ms", "idle_share"}
    assert _exit_code(main, monkeypatch, [*command, "--no-plugin", "acme", "--json", "out.json"]) == 0
    assert "idle_share" not in json.loads((tmp_path / "out.json").read_text())["summary"]["stall_free"]


def _exit_code(main: Any, monkeypatch: Any, arguments: list[str]) -> int:
    monkeypatch.setattr("sys.argv", ["batchwright", *arguments])
    try:
        code = main()
    except SystemExit as error:
        code = error.code
    return int(code or 0)


# Choosing ----------------------------------------------------------------------------------------------------------


def test_metrics_of_a_table_are_chosen_by_name() -> None:
    assert [m.name for m in choose_metrics("kv_use_mean, p99_itl_ms")] == ["kv_use_mean", "p99_itl_ms"]
    ttft = [m.name for m in choose_metrics("ttft")]
    assert ttft == ["mean_ttft_ms", "median_ttft_ms", "p90_ttft_ms", "p95_ttft_ms", "p99_ttft_ms"]
    assert len(choose_metrics("all")) > 60
    with pytest.raises(ConfigError, match="there is no metric 'goodput'; did you mean 'request_goodput'"):
        choose_metrics("goodput")
    with pytest.raises(ConfigError, match="--metrics is empty"):
        choose_metrics(" ,")
