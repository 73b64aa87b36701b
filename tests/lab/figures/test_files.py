"""Figures and table as files."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batchwright.lab.figures import figures_of, latex_table, write_figures
from batchwright.lab.figures.latex_table import _ESCAPES, _first, escape
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


latexwalker = pytest.importorskip("pylatexenc.latexwalker", reason="pylatexenc is not installed: it reads LaTeX")


LETTERS = st.characters(min_codepoint=32, max_codepoint=0x24F, exclude_categories=["Cc", "Cf", "Zs"])
OF_T1 = {"textbar": "|", "textless": "<", "textgreater": ">", "textquotedbl": '"', "textasciicircum": "^"}
"""Commands of the encoding T1 that the parser does not know, and what they print."""


@given(st.text(LETTERS, max_size=20))
@example("".join(map(chr, range(33, 127))))
@example('\\textbf{a} 50% of $x_1$ & \\\\[2pt] #1 ~^|"<>')
def test_what_is_escaped_reads_as_it_was(text: str) -> None:
    """By a parser of LaTeX, which knows nothing of the table of escapes."""
    from pylatexenc.latex2text import LatexNodes2Text, MacroTextSpec, get_default_latex_context_db

    known = get_default_latex_context_db()
    known.add_context_category("T1", prepend=True, macros=[MacroTextSpec(*one) for one in OF_T1.items()])
    nodes, _, _ = latexwalker.LatexWalker(escape(text), tolerant_parsing=False).get_latex_nodes()
    assert not any(node.isNodeType(latexwalker.LatexMathNode) for node in nodes)
    wanted = text
    for written in ("---", "--", "``", "''", "!`", "?`"):  # ligatures: another form of the same
        wanted = wanted.replace(written, LatexNodes2Text(known).latex_to_text(written))
    assert LatexNodes2Text(known).nodelist_to_text(nodes) == wanted


@pytest.mark.parametrize("make", [pair, crowd, single, simulated])
def test_a_strict_parser_takes_the_table(make) -> None:
    text = latex_table(make())
    nodes, _, _ = latexwalker.LatexWalker(text, tolerant_parsing=False).get_latex_nodes()
    (table,) = [node for node in nodes if node.isNodeType(latexwalker.LatexEnvironmentNode)]
    assert table.environmentname == "tabular"
    found: set[str] = set()

    def walk(inner) -> None:
        for node in inner or ():
            if node.isNodeType(latexwalker.LatexMacroNode):
                found.add(node.macroname)
            walk(getattr(node, "nodelist", None))

    walk(table.nodelist)
    of_text = {name.removeprefix("\\").removesuffix("{}") for name in _ESCAPES.values()}
    assert found <= {"toprule", "midrule", "bottomrule", "\\", *of_text}, "commands that no package brings"
    assert ("xelatex" in text) == (make is crowd), "pdflatex has no letters for some names"


def test_a_label_that_begins_like_an_argument_is_none() -> None:
    assert _first("[of] all") == "{}[of] all" and _first("*") == "{}*" and _first("a [b]*") == "a [b]*"


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
