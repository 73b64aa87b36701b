"""The tables of a sweep's page, from its ``summary.json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from batchwright.lab.designs.axis import in_words
from batchwright.lab.html.tables import Table
from batchwright.lab.interval import Interval
from batchwright.lab.metrics import METRICS
from batchwright.lab.verdict import BETTER, WORSE, Verdict
from batchwright.lab.wording import NONE, number, size


def sweep_tables(summary: Mapping[str, Any]) -> Iterator[Table]:
    """How often arms were better and worse, and a table for each primary metric with a row for each point."""
    arms, points = summary["arms"], [point for point in summary["points"] if "summary" in point]
    if not points:
        return
    metrics = [METRICS[name] for name in points[0].get("primary", ()) if name in METRICS]
    counts = []
    for arm in arms[1:]:
        for metric in metrics:
            words = Counter(v["verdict"] for p in points for v in p["verdicts"] if _is(v, arm, metric.name))
            neither = len(points) - words[BETTER] - words[WORSE]
            counts.append([f"{arm}: {metric.label}", *map(str, (words[BETTER], words[WORSE], neither))])
    if counts:
        head = ["Metric", "Better", "Worse", "Neither is shown"]
        yield Table(f"Verdicts at {len(points)} points, against {arms[0]}", head, counts)
    for metric in metrics:
        rows = []
        for point in points:
            row = [in_words(point["values"])]
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
