"""``batchwright report``: saved runs as a table, a page, and figures for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batchwright.cli.options import Debug

if TYPE_CHECKING:
    from batchwright.lab.html.gathered import Gathered

_MARK = 'name="generator" content="Batchwright'
"""By this a page is known as one of ours, which may be written anew."""


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR", help="Folders that --out wrote.")],
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FILE",
            help="The page. Without it, report.html in the folder; of several folders, none is written.",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            "--figures",
            metavar="DIR",
            help="Also write each figure as a PDF of one column with its data as CSV, and the table as LaTeX.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No tables.")] = False,
    debug: Debug = False,
) -> None:
    """Report on saved runs, of one folder or of several side by side.

    DIR is what --out wrote. Its report.html is made anew; nothing runs again. Runs of several folders are compared
    when they were offered the same requests; the first arm of the first folder is what all others are compared with.
    An arm that several folders have with the same records counts once.

    \b
    Examples:
      batchwright ab prefill_first stall_free --out monday
      batchwright report monday
      batchwright report monday tuesday --to both.html
      batchwright report monday --figures paper/figures

    --figures writes vector PDFs 3.3 inches wide with their fonts in them, the data of each as CSV, and table.tex for
    the booktabs package.

    Exit code: 0; 1 when the runs must not be compared; 2 for a folder that cannot be read or a file that cannot be
    written.
    """
    from batchwright.cli.experiment import print_comparison
    from batchwright.lab.html import need_report
    from batchwright.lab.html.gathered import gather

    need_report("batchwright report")
    page = to if to is not None else folders[0] / "report.html" if len(folders) == 1 else None
    check_page(page, "--to")
    check_folder(figures, "--figures")
    found = gather(folders)
    if not quiet:
        print_comparison(found.comparison)
    _write(found, page, figures, quiet)


def check_page(path: Path | None, option: str) -> None:
    """Whether a page can be written, and nothing else is lost by it.

    Raises:
        ConfigError: it cannot, and why.
    """
    from batchwright.cli.output import check_writable
    from batchwright.errors import ConfigError

    check_writable(path, option)
    if path is not None and path.is_file() and _MARK not in path.read_text(encoding="utf-8", errors="replace")[:4096]:
        raise ConfigError(f"{option} {path}: this file is no report of Batchwright's; name another one")


def check_folder(path: Path | None, option: str) -> None:
    """Whether figures can be written to a folder.

    Raises:
        ConfigError: they cannot, and why.
    """
    import os

    from batchwright.errors import ConfigError

    if path is None:
        return
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{option} {path}: it is a file; name a folder")
    above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not os.access(above, os.W_OK):
        raise ConfigError(f"{option} {path}: it cannot be written; name another folder")


def _write(found: Gathered, page: Path | None, figures: Path | None, quiet: bool) -> None:
    from batchwright.cli.output import make_console, say
    from batchwright.lab.figures import figures_of, write_figures
    from batchwright.lab.html.page import write_page

    console = make_console(quiet)
    plots = figures_of(found.comparison) if page is not None or figures is not None else []
    for name in found.twice:
        say(console, f"{name} is in several folders with the same records, and counts once")
    if page is not None:
        write_page(page, found.comparison, found.experiments, plots)
        say(console, f"wrote {page}")
    if figures is not None:
        written = write_figures(figures, plots, found.comparison)
        say(console, f"wrote {len(written)} files to {figures}")
