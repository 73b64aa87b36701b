"""What tuning found, as text: the best values, what became of them on fresh seeds, and the config to use."""

from __future__ import annotations

from typing import Any

import yaml
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from batchwright.lab.designs.axis import shown
from batchwright.lab.designs.gain import gain_of
from batchwright.lab.designs.tune_closing import closing_lines, goal_number
from batchwright.lab.designs.tune_plan import DEFAULT, TUNED
from batchwright.lab.designs.tuning import Trial, Tuning
from batchwright.lab.printing import as_text, bare_table, bullets, facts
from batchwright.lab.verdict import BETTER, WORSE
from batchwright.lab.wording import NONE

BEST = 5
"""Trials of the table."""


def format_tuning(tuning: Tuning, width: int = 80) -> str:
    """The report as plain text.

    Args:
        tuning: what to print.
        width: columns to fit into.
    """
    return as_text(lambda console: print_tuning(tuning, console), width)


def print_tuning(tuning: Tuning, console: Console | None = None) -> None:
    """Print the report: with colour on a terminal, as plain text elsewhere.

    Args:
        tuning: what to print.
        console: where to; standard output by default.
    """
    console = console if console is not None else Console(highlight=False)
    parts: list[RenderableType] = [_header(tuning), Padding(_trials(tuning), (1, 0, 1, 0))]
    if tuning.validation is not None:
        parts.append(Padding(_validation(tuning), (0, 0, 1, 0)))
    if tuning.config is not None:
        text = yaml.safe_dump(config_to_use(tuning), sort_keys=False, default_flow_style=False, allow_unicode=True)
        parts.append(Padding(Group(Text("the config to use", style="bold"), Text(text.rstrip())), (0, 0, 1, 0)))
    console.print(Group(*parts, bullets(closing_lines(tuning))))


def config_to_use(tuning: Tuning) -> dict[str, Any]:
    """The arm's settings with the best values, as a config file has them; what was unset stays so."""
    return {} if tuning.config is None else tuning.config.model_dump(mode="json", exclude_unset=True)


def _header(tuning: Tuning) -> RenderableType:
    plan = tuning.plan
    return facts(
        [
            ("arm", tuning.arm),
            ("over", "; ".join(map(str, plan.spaces))),
            ("goal", f"{plan.goal.name}, {plan.goal.better} is better"),
            *([("objectives", ", ".join(bound.text for bound in plan.bounds))] if plan.bounds else []),
            ("trials", f"{len(tuning.trials)}, each with {len(plan.seeds)} seed{'s' if len(plan.seeds) > 1 else ''}"),
        ]
    )


def _trials(tuning: Tuning) -> Table:
    """The best trials, and the one with the values as they were given."""
    goal = tuning.plan.goal
    sign = -1 if goal.better == "higher" else 1
    ranked = sorted(
        (trial for trial in tuning.trials if trial.goal is not None),
        key=lambda trial: (not trial.met, sign * (trial.goal or 0.0), trial.number),
    )
    listed = ranked[:BEST]
    if tuning.default is not None and tuning.default not in listed:
        listed.append(tuning.default)
    table = bare_table()
    table.add_column("trial", justify="right")
    for space in tuning.plan.spaces:
        table.add_column(Text(space.name), justify="right", overflow="fold")
    table.add_column(Text(goal.name), justify="right", overflow="fold")
    for bound in tuning.plan.bounds:
        table.add_column(Text(bound.text), justify="right", overflow="fold")
    table.add_column("")
    for trial in listed:
        table.add_row(
            str(trial.number),
            *(Text(shown(trial.values[space.name])) for space in tuning.plan.spaces),
            goal_number(trial.goal),
            *(Text(goal_number(trial.edges[bound.text])) for bound in tuning.plan.bounds),
            Text(_remark(tuning, trial), style="" if trial.met else "dim"),
        )
    return table


def _remark(tuning: Tuning, trial: Trial) -> str:
    said = ["best"] if tuning.best is not None and trial.number == tuning.best.number else []
    said += ["as given"] if trial.values == tuning.given else []
    said += [] if trial.met else ["misses an objective"]
    return ", ".join(said)


def _validation(tuning: Tuning) -> Table:
    plan = tuning.plan
    num = len(plan.held_out)
    title = f"on {num} fresh seed{'s' if num > 1 else ''}"
    table = bare_table(title)
    table.add_column("")
    for heading in (DEFAULT, TUNED):
        table.add_column(heading, justify="right")
    table.add_column(Text("difference [interval]"))
    found = {arm: tuning.on_fresh_seeds(arm) for arm in (DEFAULT, TUNED)}
    goals = [goal_number(found[arm][0]) for arm in (DEFAULT, TUNED)]
    table.add_row(Text(plan.goal.name), *goals, _difference(tuning))
    for bound in plan.bounds:
        edges = [found[arm][1].get(bound.text) for arm in (DEFAULT, TUNED)]
        cells = [f"{goal_number(edge)}{'' if bound.met(edge) else ' (missed)'}" for edge in edges]
        table.add_row(Text(bound.text), *cells, "")
    return table


def _difference(tuning: Tuning) -> Text:
    gain = gain_of(tuning)
    if gain is None:
        return Text(NONE)
    style = {BETTER: "green", WORSE: "red"}.get(gain.words, "")
    return Text(gain.size).append(" " if gain.size else "").append(gain.words, style=style)
