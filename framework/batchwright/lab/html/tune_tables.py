"""The tables of a tuning's page, from its ``summary.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from batchwright.lab.designs.axis import shown
from batchwright.lab.designs.space import Space
from batchwright.lab.designs.tune_closing import goal_number
from batchwright.lab.designs.tune_plan import DEFAULT, TUNED
from batchwright.lab.html.tables import Table
from batchwright.lab.wording import NONE


def best_table(summary: Mapping[str, Any]) -> Table:
    """Each parameter: where it was searched, what it was, and what is best."""
    best: Mapping[str, Any] = next((t["values"] for t in summary["trials"] if t["number"] == summary["best"]), {})
    rows = []
    for text in summary["over"]:
        space = Space.parse(text)
        name = space.name
        where = text.partition("=")[2]
        rows.append([name, where, shown(summary["given"][name]), shown(best[name]) if best else NONE])
    return Table("Best parameters", ["Parameter", "Searched in", "As given", "Best"], rows)


def fresh_table(summary: Mapping[str, Any]) -> Table | None:
    """The arm as it was given and as it was tuned, on seeds that no trial saw; None: they were not run."""
    fresh = summary["fresh"]
    if not fresh:
        return None
    gain = summary["gain"]
    goal = [goal_number(fresh[arm]["goal"]) for arm in (DEFAULT, TUNED)]
    rows = [[_goal(summary), *goal, f"{gain['size']} {gain['words']}".strip()]]
    missed = {arm: set(fresh[arm]["missed"]) for arm in (DEFAULT, TUNED)}
    for bound in summary["bounds"]:
        text = bound["text"]
        cells = [
            f"{goal_number(fresh[arm]['edges'][text])} {'missed' if text in missed[arm] else 'met'}"
            for arm in (DEFAULT, TUNED)
        ]
        rows.append([f"{text}, end of its interval", *cells, ""])
    num = len(summary["held_out"])
    caption = f"On {num} fresh seed{'s' if num > 1 else ''}, which no trial saw"
    return Table(caption, ["", "As given", "Tuned", "Difference [interval]"], rows)


def trials_table(summary: Mapping[str, Any]) -> Table:
    """Every trial, in their order."""
    names = [Space.parse(text).name for text in summary["over"]]
    head = ["Trial", *names, _goal(summary), *(f"{bound['text']}, end" for bound in summary["bounds"]), "Remark"]
    rows = [
        [
            str(trial["number"]),
            *(shown(trial["values"][name]) for name in names),
            goal_number(trial["goal"]),
            *(goal_number(trial["edges"].get(bound["text"])) for bound in summary["bounds"]),
            ", ".join(_remarks(summary, trial)),
        ]
        for trial in summary["trials"]
    ]
    return Table("All trials", head, rows)


def _remarks(summary: Mapping[str, Any], trial: Mapping[str, Any]) -> Iterator[str]:
    if trial["number"] == summary["best"]:
        yield "best"
    if trial["values"] == summary["given"]:
        yield "as given"
    if trial["error"] is not None:
        yield f"failed: {trial['error']}"
    elif not trial["met"]:
        yield "misses an objective"


def _goal(summary: Mapping[str, Any]) -> str:
    unit = f" ({summary['goal_unit']})" if summary["goal_unit"] in ("s", "ms") else ""
    return f"{summary['goal']}{unit}"
