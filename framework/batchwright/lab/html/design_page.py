"""``report.html`` of a sweep or a capacity search, from what its folder holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchwright.errors import WorkloadError
from batchwright.lab.figures.arms import Arm
from batchwright.lab.figures.designs import design_plots
from batchwright.lab.figures.plot import Plot
from batchwright.lab.figures.style import look
from batchwright.lab.files import Folder
from batchwright.lab.html.page import commands_of, drawing, environments_of, make_template
from batchwright.lab.html.tables import Table
from batchwright.lab.interval import Interval
from batchwright.lab.metrics import METRICS
from batchwright.lab.verdict import BETTER, NOT_SHOWN, WORSE, Verdict
from batchwright.lab.wording import NONE, number, size
from batchwright.version import __version__

DESIGNS = ("sweep", "capacity")
"""Designs that have a page of this kind."""

_OBJECTIVES = {"ttft_s": "p99_ttft_ms", "tpot_s": "p99_tpot_ms"}


def plots_of_folder(folder: Folder) -> list[Plot]:
    """The figures of the design in a folder.

    Raises:
        WorkloadError: it holds no results.
    """
    return design_plots(_summary(folder), _objectives(folder))


def write_design_page(path: Path, folder: Folder, plots: Sequence[Plot]) -> None:
    """Write the page of the design in a folder.

    Raises:
        WorkloadError: it holds no results.
        OSError: the page cannot be written.
    """
    summary, experiment = _summary(folder), {**folder.experiment(), "folder": str(folder.path)}
    arms = [Arm(name, look(place), ()) for place, name in enumerate(summary["arms"])]
    tables = list(_capacity_tables(summary) if summary["design"] == "capacity" else _sweep_tables(summary))
    text = make_template("design.html.jinja").render(
        title=f"{summary['design'].capitalize()} of {', '.join(arm.name for arm in arms)}",
        workload=str(experiment.get("workload", {}).get("name", "?")),
        arms=arms,
        seeds=summary["seeds"],
        said=list(_said(summary)),
        tables=tables,
        figures=[drawing(plot) for plot in plots],
        commands=commands_of([experiment]),
        environments=environments_of([experiment]),
        version=__version__,
    )
    path.write_text(text, encoding="utf-8")


def _summary(folder: Folder) -> dict[str, Any]:
    try:
        return folder.summary()
    except FileNotFoundError:
        raise WorkloadError(
            f"{folder.path} holds no summary.json: the experiment did not come to its end; go on with it by --resume"
        ) from None


def _objectives(folder: Folder) -> dict[str, float]:
    """Objectives that all requests have alike, by the metric that they are drawn beside, in milliseconds."""
    labels = folder.labels()
    if not labels:
        return {}
    slos = {request.slo for request in folder.read_run(labels[0]).requests}
    slo = slos.pop() if len(slos) == 1 else None
    found = {metric: getattr(slo, name, None) for name, metric in _OBJECTIVES.items()}
    return {metric: 1000 * value for metric, value in found.items() if value is not None}


def _said(summary: Mapping[str, Any]) -> Iterator[str]:
    if summary["design"] == "sweep":
        if summary["missing"]:
            yield f"{len(summary['missing'])} points are missing: it was interrupted; go on with it by --resume."
        failed = sum(len(point.get("failed", ())) for point in summary["points"])
        if failed:
            yield f"{failed} runs failed."
        return
    for arm, found in summary["arms"].items():
        if found["error"] is not None:
            yield f"{arm} failed: {found['error']}."
        elif found["rate"] is None:
            yield f"{arm} meets the objectives at none of the {len(found['points'])} loads that were tried."
        else:
            over = "; no higher load was found to fail" if found["high"] is None else ""
            yield f"{arm} meets the objectives up to {found['rate']:.4g} requests/s{over}."
    for ratio in summary["ratios"]:
        yield (
            f"{ratio['arm']} takes {ratio['ratio']:.3g} times [{ratio['low']:.3g}, {ratio['high']:.3g}] the load of "
            f"{ratio['base']}."
        )


def _capacity_tables(summary: Mapping[str, Any]) -> Iterator[Table]:
    head = ["Arm", "Capacity (requests/s)", "First load that fails", "Limited by", "Loads tried"]
    rows = []
    for arm, found in summary["arms"].items():
        high = found["high"]
        rows.append(
            [
                arm,
                NONE if found["rate"] is None else f"{found['rate']:.4g}",
                NONE if high is None else f"{high['rate']:.4g}",
                NONE if high is None else ", ".join(high["limited_by"]),
                str(len(found["points"])),
            ]
        )
    yield Table(f"Capacity at {', '.join(summary['slo'])}", head, rows)
    for arm, found in summary["arms"].items():
        tried = [
            [
                f"{point['rate']:.4g}",
                "yes" if point["met"] else "no",
                *(_mean(point["values"].get(text, ())) for text in summary["slo"]),
                f"{point['num_overloaded']} of {len(summary['seeds'])}",
            ]
            for point in found["points"]
        ]
        yield Table(f"Loads of {arm}", ["Requests/s", "Met", *summary["slo"], "Overloaded seeds"], tried)


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.4g}" if known and len(known) == len(values) else NONE


def _sweep_tables(summary: Mapping[str, Any]) -> Iterator[Table]:
    arms, points = summary["arms"], [point for point in summary["points"] if "summary" in point]
    if not points:
        return
    metrics = [METRICS[name] for name in points[0].get("primary", ()) if name in METRICS]
    counts = []
    for arm in arms[1:]:
        for metric in metrics:
            words = Counter(v["verdict"] for p in points for v in p["verdicts"] if _is(v, arm, metric.name))
            counts.append([f"{arm}: {metric.label}", *(str(words[word]) for word in (BETTER, WORSE, NOT_SHOWN))])
    if counts:
        head = ["Metric", "Better", "Worse", "Not shown"]
        yield Table(f"Verdicts at {len(points)} points, against {arms[0]}", head, counts)
    for metric in metrics:
        rows = []
        for point in points:
            row = [", ".join(f"{name}={value}" for name, value in point["values"].items())]
            row += [number(metric, point["summary"].get(arm, {}).get(metric.name)) for arm in arms]
            for arm in arms[1:]:
                verdict = next((_verdict(v) for v in point["verdicts"] if _is(v, arm, metric.name)), None)
                row.append(NONE if verdict is None else f"{size(metric, verdict)} {verdict.words}".strip())
            rows.append(row)
        yield Table(metric.label, ["Point", *arms, *(f"{arm} against {arms[0]}" for arm in arms[1:])], rows)


def _is(verdict: Mapping[str, Any], arm: str, metric: str) -> bool:
    return bool(verdict["arm"] == arm and verdict["metric"] == metric)


def _verdict(value: Mapping[str, Any]) -> Verdict:
    interval = None
    if value["low"] is not None:
        names = ("low", "high", "relative_low", "relative_high", "level")
        interval = Interval(*(value[name] for name in names))
    return Verdict(
        value["arm"],
        value["metric"],
        value["base"],
        value["value"],
        value["difference"],
        interval,
        value["verdict"],
        value["num_seeds"],
    )
