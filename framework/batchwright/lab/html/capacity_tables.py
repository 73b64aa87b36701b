"""The tables of a capacity search's page, from its ``summary.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchwright.lab.designs.margin import mean_of
from batchwright.lab.html.tables import Table
from batchwright.lab.wording import NONE


def capacity_tables(summary: Mapping[str, Any]) -> Iterator[Table]:
    """The capacities, the ratios seed by seed, and of each arm the loads that were tried."""
    unit = summary["unit"]
    closed = unit == "users"
    head = ["Arm", f"Capacity ({unit})", *(["Finished (requests/s)"] if closed else []), "First load that fails"]
    head += ["Limited by", "Loads tried"]
    rows: list[list[str]] = []
    for arm, found in summary["arms"].items():
        high = found["high"]
        row = [arm, NONE if found["load"] is None else f"{found['load']:,.4g}"]
        if closed:
            row.append(NONE if found["rate"] is None else f"{found['rate']:,.4g}")
        row.append(NONE if high is None else f"{high['load']:,.4g}")
        rows.append([*row, NONE if high is None else ", ".join(high["limited_by"]), str(len(found["points"]))])
    yield Table(f"Capacity at {', '.join(summary['slo'])}", head, rows)
    yield from _ratios(summary, unit)
    for arm, found in summary["arms"].items():
        yield _loads(summary, arm, found, unit)


def _ratios(summary: Mapping[str, Any], unit: str) -> Iterator[Table]:
    if not summary["ratios"]:
        return
    base = summary["ratios"][0]["base"]
    head = [
        "Arm",
        f"Mean edge ({unit})",
        f"Mean edge of {base}",
        "Times",
        f"{summary['confidence']:.0%} interval",
        "Seeds",
    ]
    rows = [
        [
            ratio["arm"],
            f"{ratio['edge']:,.4g}",
            f"{ratio['base_edge']:,.4g}",
            f"{ratio['ratio']:.3g}",
            f"{ratio['low']:.3g} to {ratio['high']:.3g}",
            str(ratio["num_seeds"]),
        ]
        for ratio in summary["ratios"]
    ]
    yield Table(f"Seed by seed, against {base}", head, rows)


def _loads(summary: Mapping[str, Any], arm: str, found: Mapping[str, Any], unit: str) -> Table:
    closed = unit == "users"
    head = [unit.capitalize(), *(["Finished (requests/s)"] if closed else []), "Requests", "Met"]
    head += [*(_heading(bound) for bound in summary["bounds"]), "Overloaded seeds"]
    tried = [
        [
            f"{point['load']:,.4g}",
            *([f"{point['rate']:,.4g}"] if closed else []),
            f"{point['num_requests']:,.0f}",
            "yes" if point["met"] else "no",
            *(_mean(point["values"].get(text, ())) for text in summary["slo"]),
            f"{point['num_overloaded']} of {len(summary['seeds'])}",
        ]
        for point in found["points"]
    ]
    return Table(f"Loads of {arm}: means over the seeds", head, tried)


def _heading(bound: Mapping[str, Any]) -> str:
    return f"{bound['text']} ({bound['unit']})" if bound["unit"] in ("s", "ms") else bound["text"]


def _mean(values: Sequence[float | None]) -> str:
    mean = mean_of(values)
    return NONE if mean is None else f"{mean:.4g}"
