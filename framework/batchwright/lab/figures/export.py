"""Figures and table of a comparison as files for a paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from batchwright.lab.compare import Comparison
from batchwright.lab.figures.latex_table import latex_table
from batchwright.lab.figures.plot import Plot

TABLE = "table.tex"


def write_figures(folder: Path, plots: Sequence[Plot], comparison: Comparison | None = None) -> list[Path]:
    """Write each figure as a PDF of one column and its data as CSV, and the table as LaTeX.

    Args:
        folder: made where it is not there; files of these names in it are replaced.
        plots: the figures.
        comparison: of which the table is; None: no table.

    Returns:
        The files, in order.

    Raises:
        OSError: one cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for plot in plots:
        pdf = folder / f"{plot.name}.pdf"
        with pdf.open("wb") as file:
            plot.write_pdf(file)
        data = pdf.with_suffix(".csv")
        data.write_text(plot.to_csv(), encoding="utf-8")
        written += [pdf, data]
    if comparison is not None:
        table = folder / TABLE
        table.write_text(latex_table(comparison), encoding="utf-8")
        written.append(table)
    return written
