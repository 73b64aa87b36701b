"""``report.html`` of a sweep, of a search of capacities or of parameters, from what its folder holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from batchwright.errors import WorkloadError
from batchwright.lab.figures.arms import Arm
from batchwright.lab.figures.designs import design_plots
from batchwright.lab.figures.plot import Plot
from batchwright.lab.figures.style import look
from batchwright.lab.files import Folder
from batchwright.lab.html.capacity_tables import capacity_tables
from batchwright.lab.html.page import commands_of, drawing, environments_of, make_template
from batchwright.lab.html.sweep_tables import sweep_tables
from batchwright.lab.html.tables import Table
from batchwright.lab.html.tune_tables import best_table, fresh_table, trials_table
from batchwright.version import __version__

_ONE_BY_ONE = {"sweep": "Point by point", "capacity": "Load by load", "tune": "Trial by trial"}

DESIGNS = tuple(_ONE_BY_ONE)
"""Designs that have a page of this kind."""

_OBJECTIVES = {"ttft_s": "p99_ttft_ms", "tpot_s": "p99_tpot_ms"}


def plots_of_folder(folder: Folder) -> list[Plot]:
    """The figures of the design in a folder.

    Raises:
        WorkloadError: it holds no results.
    """
    summary = _summary(folder)
    return design_plots(summary, _objectives(folder) if summary["design"] == "sweep" else None)


def write_design_page(path: Path, folder: Folder, plots: Sequence[Plot]) -> None:
    """Write the page of the design in a folder.

    Raises:
        WorkloadError: it holds no results.
        OSError: the page cannot be written.
    """
    summary, experiment = _summary(folder), {**folder.experiment(), "folder": str(folder.path)}
    design = summary["design"]
    names = list(summary["fresh"]) if design == "tune" else list(summary["arms"])
    first, rest = _tables(summary)
    text = make_template("design.html.jinja").render(
        title=_title(summary),
        workload=str(experiment.get("workload", {}).get("name", "?")),
        arms=[Arm(name, look(place), ()) for place, name in enumerate(names)],
        seeds=summary["seeds"],
        said=[*_said(summary), *summary["closing"]],
        first=first,
        one_by_one=_ONE_BY_ONE[design],
        rest=rest,
        config=_config(summary),
        figures=[drawing(plot) for plot in plots],
        commands=commands_of([experiment]),
        environments=environments_of([experiment]),
        version=__version__,
    )
    path.write_text(text, encoding="utf-8")


def _summary(folder: Folder) -> dict[str, Any]:
    if not folder.summary_path.is_file():
        raise WorkloadError(
            f"{folder.path} holds no summary.json: the experiment did not come to its end; go on with it by --resume"
        )
    summary = folder.summary()
    if not {"design", "closing"} <= summary.keys():
        raise WorkloadError(
            f"{folder.summary_path} is of an older release, or of another experiment; call its command again with "
            "--resume (runs that are there are taken), or with --overwrite where that says that it is another"
        )
    return summary


def _objectives(folder: Folder) -> dict[str, float]:
    """Objectives that all requests have alike, by the metric that they are drawn beside, in milliseconds."""
    labels = folder.labels()
    if not labels:
        return {}
    slos = {request.slo for request in folder.read_run(labels[0]).requests}
    slo = slos.pop() if len(slos) == 1 else None
    found = {metric: getattr(slo, name, None) for name, metric in _OBJECTIVES.items()}
    return {metric: 1000 * value for metric, value in found.items() if value is not None}


def _title(summary: Mapping[str, Any]) -> str:
    if summary["design"] == "tune":
        return f"Tuning of {summary['arm']}"
    return f"{summary['design'].capitalize()} of {', '.join(summary['arms'])}"


def _tables(summary: Mapping[str, Any]) -> tuple[list[Table], list[Table]]:
    """Those with what was found, and those with every point, load or trial."""
    if summary["design"] == "tune":
        return [one for one in (best_table(summary), fresh_table(summary)) if one is not None], [trials_table(summary)]
    if summary["design"] == "capacity":
        tables = list(capacity_tables(summary))
        num = len(tables) - len(summary["arms"])
        return tables[:num], tables[num:]
    tables = list(sweep_tables(summary))
    return tables[:1], tables[1:]


def _said(summary: Mapping[str, Any]) -> Iterator[str]:
    """What the terminal has in its table."""
    if summary["design"] == "capacity":
        for arm, found in summary["arms"].items():
            if found["load"] is not None:
                yield f"{arm} meets the objectives up to {found['load']:,.4g} {summary['unit']}"


def _config(summary: Mapping[str, Any]) -> str:
    """The settings to use, as a file has them; empty: there are none to name."""
    found = summary.get("config")
    return yaml.safe_dump(found, sort_keys=False, allow_unicode=True) if found else ""
