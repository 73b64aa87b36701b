"""The tables of a page, as text in rows and columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from batchwright.lab.compare import Comparison
from batchwright.lab.figures.arms import Arm, arms_of
from batchwright.lab.figures.shown import verdicts_of
from batchwright.lab.metrics import METRICS
from batchwright.lab.report import LIMITS, OF_CLASSES, OF_REPLICAS
from batchwright.lab.settings import differences_in_words, flatten, value_in_words
from batchwright.lab.window import measured
from batchwright.lab.wording import NONE, number, size


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        caption: what it is.
        head: of the columns; the first column names the rows.
        rows: cells, as many as there are heads.
        numeric: whether cells are numbers, set to the right.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: bool = True


def metrics_table(comparison: Comparison) -> Table:
    """Every metric that some arm has, with differences and verdicts."""
    arms = arms_of(comparison)
    base = arms[0]
    head = ["Metric", *(f"{arm.look.letter} {arm.name}" for arm in arms)]
    head += [f"{arm.look.letter} against {base.look.letter}" for arm in arms[1:]]
    verdicts = verdicts_of(comparison)
    rows: list[list[str]] = []
    for name, metric in comparison.metrics.metrics.items():
        values = [comparison.summaries[arm.name].get(name) for arm in arms]
        if all(value is None for value in values):
            continue
        row = [comparison.label(metric), *(number(metric, value) for value in values)]
        for arm in arms[1:]:
            verdict = verdicts.get((arm.name, name))
            said = f"{size(metric, verdict)} {verdict.words}".strip() if verdict is not None else NONE
            row.append(said)
        rows.append(row)
    return Table("All metrics", head, rows)


def outcome_table(comparison: Comparison) -> Table:
    """What became of the requests of each arm: goodput and what it leaves out stand side by side."""
    arms = arms_of(comparison)
    names = ("completed", "num_refused", "num_failed", "num_aborted", "num_unfinished", "request_goodput")
    head = ["Arm", "Offered", *(METRICS[name].label for name in names)]
    rows: list[list[str]] = []
    for arm in arms:
        summary = comparison.summaries[arm.name]
        cells = [number(METRICS[name], summary.get(name)) for name in names]
        if summary.get("request_goodput") is None:
            cells[-1] = "no objectives"
        offered = fmean(len(measured(run).offered) for run in arm.runs)
        rows.append([f"{arm.look.letter} {arm.name}", f"{offered:,.{0 if offered.is_integer() else 1}f}", *cells])
    seeds = max(len(arm.runs) for arm in arms)
    window = arms[0].first.window
    about = [
        *([f"mean of {seeds} seeds"] if seeds > 1 else []),
        *([f"without {window}"] if window is not None else []),
    ]
    return Table("What became of the requests" + (f" ({', '.join(about)})" if about else ""), head, rows)


def differing_table(arms: Sequence[Arm]) -> Table | None:
    """Settings in which arms differ; None where they differ in none."""
    differing = differences_in_words([arm.first for arm in arms])
    if not differing:
        return None
    rows = [[name, *values] for name, values in differing.items()]
    head = ["Setting", *(f"{arm.look.letter} {arm.name}" for arm in arms)]
    return Table("Settings in which arms differ", head, rows, numeric=False)


def settings_table(arms: Sequence[Arm]) -> Table:
    """Every setting of every arm, and the limits that came of them."""
    flat = [
        {**flatten(arm.first.settings), **{f"limits: {name}": getattr(arm.first.limits, name) for name in LIMITS}}
        for arm in arms
    ]
    names = dict.fromkeys(name for settings in flat for name in settings)
    rows = [[name, *(value_in_words(settings.get(name)) for settings in flat)] for name in names]
    head = ["Setting", *(f"{arm.look.letter} {arm.name}" for arm in arms)]
    return Table("All settings", head, rows, numeric=False)


IN_STEPS = {
    "Mean batch size (requests)": METRICS["mean_batch_size"],
    "Mean tokens a step": METRICS["mean_step_tokens"],
    "KV use, mean (%)": METRICS["kv_use_mean"],
}
"""Columns of a table of replicas that a terminal has no room for."""


def classes_tables(comparison: Comparison) -> Iterator[Table]:
    """Of each arm whose requests are of several classes, a row for each."""
    for arm, classes in comparison.classes.items():
        rows = [
            [name, *(number(metric, summary[metric.name]) for metric in OF_CLASSES.values())]
            for name, summary in classes.items()
        ]
        yield Table(f"Classes of requests of {arm}", ["Class", *OF_CLASSES], rows)


def replicas_tables(comparison: Comparison) -> Iterator[Table]:
    """Of each arm with several replicas, a row for each."""
    columns = {**OF_REPLICAS, **IN_STEPS}
    for arm, summaries in comparison.replicas.items():
        rows = [
            [str(place), *(number(metric, summary[metric.name]) for metric in columns.values())]
            for place, summary in enumerate(summaries)
        ]
        yield Table(f"Replicas of {arm}", ["Replica", *columns], rows)


def events_table(arms: Sequence[Arm]) -> Table | None:
    """What detectors and the engine reported, counted; None where there was nothing."""
    rows: list[list[str]] = []
    for arm in arms:
        for run in arm.runs:
            for kind, count in Counter(str(event.get("kind", "?")) for event in run.events).items():
                first = next(event for event in run.events if str(event.get("kind", "?")) == kind)
                rest = {name: value for name, value in first.items() if name != "kind"}
                rows.append([f"{arm.look.letter} {arm.name}", str(run.seed), kind, f"{count:,}", value_in_words(rest)])
    if not rows:
        return None
    return Table("Events", ["Arm", "Seed", "Kind", "Times", "The first one"], rows, numeric=False)


def mapping_table(caption: str, values: Mapping[str, Any], names: tuple[str, str] = ("Name", "Value")) -> Table:
    """Nested values under dotted names."""
    return Table(
        caption, names, [[name, value_in_words(value)] for name, value in flatten(values).items()], numeric=False
    )


def metric_docs(comparison: Comparison) -> list[tuple[str, str]]:
    """What metrics mean, each meaning once: labels and words."""
    labels: dict[str, list[str]] = {}
    for metric in comparison.metrics.metrics.values():
        if metric.doc:
            labels.setdefault(metric.doc, []).append(metric.label)
    return [(", ".join(found), doc) for doc, found in labels.items()]
