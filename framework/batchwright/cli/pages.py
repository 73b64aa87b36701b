"""What ``run``, ``ab`` and ``report`` share: report.html, and figures for a paper."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchwright.cli.output import check_writable, make_console, say
from batchwright.errors import ConfigError
from batchwright.lab import Comparison

if TYPE_CHECKING:
    from batchwright.lab.files import Folder

_MARK = 'name="generator" content="Batchwright'
"""By this a page is known as one of ours, which may be written anew."""


def check_page(path: Path | None, option: str) -> None:
    """Before a long run: whether a page can be written, and nothing else is lost by it.

    Raises:
        ConfigError: it cannot, and why.
    """
    check_writable(path, option)
    if path is not None and path.is_file() and _MARK not in path.read_text(encoding="utf-8", errors="replace")[:4096]:
        raise ConfigError(f"{option} {path}: this file is no report of Batchwright's; name another one")


def check_figures(folder: Path | None, option: str = "--figures") -> None:
    """Before a long run: whether figures can be drawn, and written to a folder.

    Raises:
        ConfigError: they cannot, and why.
    """
    if folder is None:
        return
    from batchwright.lab.html import need_report

    need_report(f"{option} {folder}")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{option} {folder}: it is a file; name a folder")
    above = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not os.access(above, os.W_OK):
        raise ConfigError(f"{option} {folder}: it cannot be written; name another folder")


def write_design(folder: Folder, page: Path | None, figures: Path | None, *, quiet: bool = False) -> None:
    """:func:`write_pages` of a sweep, or of a search of capacities or parameters, from what its folder holds.

    Raises:
        WorkloadError: it holds no results.
        OSError: a file cannot be written.
    """
    from batchwright.lab.html import missing_for_reports

    console = make_console(quiet)
    missing = missing_for_reports()
    if missing is not None:
        say(console, f"{page} is not written: {missing}")
        return
    from batchwright.lab.figures import write_figures
    from batchwright.lab.html.design_page import plots_of_folder, write_design_page

    plots = plots_of_folder(folder)
    if page is not None:
        write_design_page(page, folder, plots)
        say(console, f"wrote {page}")
    if figures is not None:
        say(console, f"wrote {len(write_figures(figures, plots))} files to {figures}")


def write_pages(
    comparison: Comparison,
    page: Path | None,
    figures: Path | None,
    experiments: Sequence[Mapping[str, Any]] = (),
    *,
    quiet: bool = False,
) -> None:
    """Write the page and the figures that were asked for, and say so.

    Args:
        comparison: what they show.
        page: the file; None: none. Where what draws it is not installed, that is said instead.
        figures: the folder for files of figures; None: none.
        experiments: what ``experiment.json`` holds, of each folder that runs are from.
        quiet: say nothing.

    Raises:
        OSError: one cannot be written.
    """
    if page is None and figures is None:
        return
    from batchwright.lab.html import missing_for_reports

    console = make_console(quiet)
    missing = missing_for_reports()
    if missing is not None:
        say(console, f"{page} is not written: {missing}")
        return
    from batchwright.lab.figures import figures_of, write_figures
    from batchwright.lab.html.page import write_page

    plots = figures_of(comparison)
    if page is not None:
        write_page(page, comparison, experiments, plots)
        say(console, f"wrote {page}")
    if figures is not None:
        written = write_figures(figures, plots, comparison)
        say(console, f"wrote {len(written)} files to {figures}")
