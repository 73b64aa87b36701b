"""The table of a comparison for a paper: LaTeX with booktabs."""

from __future__ import annotations

from batchwright.lab.compare import Comparison
from batchwright.lab.figures.arms import arms_of
from batchwright.lab.figures.shown import shown_metrics, verdicts_of
from batchwright.lab.metrics import Metric
from batchwright.lab.verdict import BETTER, NO_DIFFERENCE, NOT_TESTED, WORSE, Verdict
from batchwright.lab.wording import number, size

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
}
_MARKS = {BETTER: r"$^{+}$", WORSE: r"$^{-}$"}
_NOTE = r"% Needs \usepackage{booktabs} and \usepackage[T1]{fontenc}."
_BEYOND = "% Names in it have letters that pdflatex lacks: use xelatex or lualatex, with a font that has them."
_LATIN = "\u024f"
"""The last letter of those that pdflatex has with T1."""


def latex_table(comparison: Comparison) -> str:
    """A ``tabular`` with a row a metric, as the report on a terminal has it.

    Arms side by side; behind each but the first its difference to that, with the interval. A raised plus or minus says
    better or worse; where no difference is shown, the interval stands alone.
    """
    arms = arms_of(comparison)
    others = arms[1:]
    verdicts = verdicts_of(comparison)
    beyond = any(letter > _LATIN for arm in arms for letter in arm.name)
    lines = [
        _NOTE,
        *([_BEYOND] if beyond else []),
        r"\begin{tabular}{l" + "r" * len(arms) + "l" * len(others) + "}",
        r"\toprule",
        _row(["", *(escape(arm.name) for arm in arms), *(_against(arm.name, len(others)) for arm in others)]),
        r"\midrule",
    ]
    for metric in shown_metrics(comparison):
        values = [comparison.summaries[arm.name].get(metric.name) for arm in arms]
        said = [_said(metric, verdicts.get((arm.name, metric.name))) for arm in others]
        lines.append(_row([_first(metric.label), *(_minus(number(metric, value)) for value in values), *said]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def escape(text: str) -> str:
    """A text as LaTeX prints it."""
    return "".join(_ESCAPES.get(character, character) for character in text)


def _first(text: str) -> str:
    """A cell that begins a row: behind the end of the last one a star or a bracket would be that command's own."""
    return ("{}" if text.startswith(("*", "[")) else "") + escape(text)


def _against(name: str, num: int) -> str:
    return "Difference" if num == 1 else f"Difference of {escape(name)}"


def _said(metric: Metric, verdict: Verdict | None) -> str:
    if verdict is None:
        return "--"
    if verdict.words == NO_DIFFERENCE:
        return "same"
    text = _minus(escape(size(metric, verdict)))
    return text if verdict.words == NOT_TESTED else text + _MARKS.get(verdict.words, "")


def _minus(text: str) -> str:
    """Hyphens before numbers as minus signs; one alone as a dash."""
    return "--" if text == "-" else text.replace("-", "$-$")


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
