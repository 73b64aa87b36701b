"""``report.html``: verdicts, figures and facts of a comparison in one page that needs nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from batchwright.lab.compare import Comparison
from batchwright.lab.figures import Plot, figures_of
from batchwright.lab.figures.arms import Arm, arms_of
from batchwright.lab.figures.differences import DIFFERENCES
from batchwright.lab.figures.style import PAGE_IN
from batchwright.lab.html.findings import findings_of
from batchwright.lab.html.load_facts import load_facts, objectives
from batchwright.lab.html.tables import (
    Table,
    classes_tables,
    differing_table,
    events_table,
    mapping_table,
    metric_docs,
    metrics_table,
    outcome_table,
    replicas_tables,
    settings_table,
)
from batchwright.lab.settings import backend_in_words
from batchwright.version import __version__


def render_report(
    comparison: Comparison,
    experiments: Sequence[Mapping[str, Any]] = (),
    figures: Sequence[Plot] | None = None,
) -> str:
    """The page; equal comparisons give equal text.

    Args:
        comparison: of one arm or more.
        experiments: what ``experiment.json`` holds of each folder that runs are from: commands and environments.
        figures: to show; by default all that the comparison has something to show in.
    """
    arms = arms_of(comparison)
    plots = figures_of(comparison) if figures is None else figures
    page = make_template("report.html.jinja")
    return page.render(
        title=_title(arms),
        arms=arms,
        seeds=[run.seed for run in arms[0].runs],
        backend=backend_in_words([arm.first for arm in arms]),
        objectives=objectives(arms[0].first),
        findings=findings_of(comparison),
        note=comparison.method if comparison.verdicts else "",
        closing=comparison.closing,
        outcome=outcome_table(comparison),
        verdicts_figure=next((drawing(plot) for plot in plots if plot.name == DIFFERENCES), None),
        figures=[drawing(plot) for plot in plots if plot.name != DIFFERENCES],
        metrics=metrics_table(comparison),
        docs=metric_docs(comparison),
        parts=[*classes_tables(comparison), *replicas_tables(comparison)],
        differing=differing_table(arms),
        settings=settings_table(arms),
        facts=dict(load_facts(arms[0].first)),
        events=events_table(arms),
        commands=commands_of(experiments),
        environments=environments_of(experiments),
        version=__version__,
    )


def write_page(
    path: Path,
    comparison: Comparison,
    experiments: Sequence[Mapping[str, Any]] = (),
    figures: Sequence[Plot] | None = None,
) -> None:
    """Write the page to a file; see :func:`render_report`.

    Raises:
        OSError: it cannot be written.
    """
    path.write_text(render_report(comparison, experiments, figures), encoding="utf-8")


def make_template(name: str) -> Template:
    """A page's template; whatever is put into it is escaped."""
    environment = Environment(
        loader=PackageLoader("batchwright.lab.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _title(arms: Sequence[Arm]) -> str:
    names = [arm.name for arm in arms]
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[1:-1] + names[-1:])} against {names[0]}"


def drawing(plot: Plot) -> dict[str, Any]:
    """Drawn for a phone or a column, and where that shows more, once more for the width of a page."""
    # The only markup that is not escaped by the template: matplotlib escapes the text in it.
    narrow = Markup(plot.svg(prefix="n-"))
    wide = None if plot.wide_in is None else Markup(plot.svg(PAGE_IN, plot.wide_in, prefix="w-"))
    return {"name": plot.name, "title": plot.title, "caption": plot.caption, "narrow": narrow, "wide": wide}


def commands_of(experiments: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """What was typed for each folder, and the commit it was typed at."""
    return [
        {
            "folder": str(experiment.get("folder", "")),
            "command": shlex.join(experiment["command"]) if experiment.get("command") else "",
            "commit": str(experiment.get("environment", {}).get("commit") or ""),
        }
        for experiment in experiments
    ]


def environments_of(experiments: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Where each experiment ran."""
    return [mapping_table("Environment", e["environment"]) for e in experiments if e.get("environment")]
