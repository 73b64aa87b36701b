"""``batchwright report``: saved runs as a table, a page, and figures for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from batchwright.cli.option_groups import takes_groups
from batchwright.cli.options import Debug, NoPlugin, TableOptions


@takes_groups
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folders that --out wrote, or results of vllm bench."),
    ],
    table: TableOptions,
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
    no_plugin: NoPlugin = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No tables.")] = False,
    debug: Debug = False,
) -> None:
    """Report on saved runs, of one folder or of several side by side.

    DIR is what --out of run or ab wrote. Its report.html is made anew; nothing runs again. Runs of several folders are
    compared when they were offered the same requests; the first arm of the first folder is what all others are
    compared with. An arm that several folders have with the same records counts once. The folder of a sweep, of
    a capacity search or of a tuning is reported on by itself. A file that vllm bench serve wrote with --save-result
    --save-detailed is an arm too.

    \b
    Examples:
      batchwright report monday
      batchwright report monday tuesday --to both.html
      batchwright report monday --figures paper/figures
      batchwright report before.json after.json --metrics ttft,itl

    --figures writes vector PDFs 3.3 inches wide with their fonts in them, the data of each as CSV, and table.tex for
    the booktabs package.

    Exit code: 0; 1 when the runs must not be compared; 2 for a folder that cannot be read or a file that cannot be
    written.
    """
    from batchwright.cli.experiment import print_comparison
    from batchwright.cli.output import make_console, say
    from batchwright.cli.pages import check_figures, check_page, write_design, write_pages
    from batchwright.lab.files import Folder
    from batchwright.lab.html import need_report

    need_report("batchwright report")
    from batchwright.lab.html.design_page import DESIGNS
    from batchwright.lab.html.gathered import gather
    from batchwright.lab.shown import choose_metrics
    from batchwright.plugins import load_plugins

    metrics = load_plugins(no_plugin or ()).metric_set
    shown = None if table.metrics is None else choose_metrics(table.metrics, metrics.metrics)
    page = to if to is not None else folders[0] / "report.html" if len(folders) == 1 and folders[0].is_dir() else None
    check_page(page, "--to" if to is not None else "the report")
    check_figures(figures)
    if len(folders) == 1 and folders[0].is_dir() and Folder(folders[0]).experiment()["design"] in DESIGNS:
        write_design(Folder(folders[0]), page, figures, quiet=quiet)
        return
    found = gather(folders, metrics)
    if not quiet:
        print_comparison(found.comparison, shown)
    for name in found.twice:
        say(make_console(quiet), f"{name} is in several folders with the same records, and counts once")
    write_pages(found.comparison, page, figures, found.experiments, quiet=quiet)
