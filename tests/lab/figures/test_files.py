"""Figures and table as files."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from batchwright.lab.figures import figures_of, latex_table, write_figures
from batchwright.lab.figures.latex_table import escape
from lab.figures.comparisons import crowd, pair, simulated, single


def test_each_figure_is_a_pdf_and_its_data(tmp_path: Path) -> None:
    plots = [plot for plot in figures_of(pair()) if plot.name in ("ttft_cdf", "fairness")]
    written = write_figures(tmp_path / "paper" / "figures", plots, pair())
    assert {p.name for p in written} == {*(f"{p.name}.{kind}" for p in plots for kind in ("pdf", "csv")), "table.tex"}
    for path in written:
        assert path.stat().st_size > 100
    with (tmp_path / "paper" / "figures" / "ttft_cdf.csv").open(encoding="utf-8") as file:
        first, *rest = csv.reader(file)
    assert first == ["arm", "share", "ttft_ms", "lowest_ms", "highest_ms"]
    assert len(rest) == 160
    assert all(re.fullmatch(r"[\d.e+-]+", cell) for row in rest for cell in row[1:])


def test_files_are_written_anew(tmp_path: Path) -> None:
    (tmp_path / "table.tex").write_text("old")
    (tmp_path / "mine.txt").write_text("kept")
    write_figures(tmp_path, [], pair())
    assert "tabular" in (tmp_path / "table.tex").read_text()
    assert (tmp_path / "mine.txt").read_text() == "kept"


@pytest.mark.parametrize("make", [pair, crowd, single])
def test_the_table_has_as_many_cells_in_every_row(make) -> None:
    text = latex_table(make())
    num = len(make().arms)
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) >= 15
    for row in rows:
        assert len(re.findall(r"(?<!\\)&", row)) == 2 * num - 1, row
        assert not re.search(r"(?<!\\)[#%_]", row.replace("{}", "")), row
        assert row.count("{") == row.count("}")
    for rule in ("toprule", "midrule", "bottomrule"):
        assert text.count(f"\\{rule}") == 1
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1


def test_the_table_says_what_the_verdicts_say() -> None:
    text = latex_table(pair())
    (line,) = [line for line in text.splitlines() if line.startswith("Mean ITL")]
    verdict = pair().verdict("mean_itl_ms")
    assert f"{verdict.base:,.2f} & {verdict.value:,.2f} & +{100 * (verdict.relative or 0):.1f}\\%" in line
    assert line.endswith(r"$^{-}$ \\")  # worse


def test_what_latex_reads_as_commands_is_escaped() -> None:
    assert escape(r"a_b & 5% {x} $1 #2 ~ ^ \n") == (
        r"a\_b \& 5\% \{x\} \$1 \#2 \textasciitilde{} \textasciicircum{} \textbackslash{}n"
    )


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here: LaTeX is not installed")
def test_latex_takes_it(tmp_path: Path) -> None:
    document = (
        r"\documentclass{article}\usepackage[T1]{fontenc}\usepackage{booktabs}\begin{document}"
        + latex_table(simulated())
        + r"\end{document}"
    )
    (tmp_path / "t.tex").write_text(document, encoding="utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
