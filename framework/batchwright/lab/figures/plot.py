"""A figure: what it shows in words, its data, and how it is drawn; and what files are made of it."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import IO, Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from batchwright.lab.figures.style import COLUMN_IN, RC

_ID = re.compile(r'\bid="([^"]+)"')
_REFERENCE = re.compile(r'(url\(#|href="#)')
_SIZE = re.compile(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>')
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_STYLE = re.compile(r"<defs>\s*<style.*?</style>\s*</defs>\s*", re.DOTALL)
_PATH = re.compile(r' d="([^"]*)"')
_LONG = re.compile(r"(-?\d+\.\d\d)\d+")
_CUT = r"\1"


@dataclass(frozen=True)
class Plot:
    """One figure of a report.

    Attributes:
        name: of its files, and unique in a report.
        title: a few words.
        caption: how to read it, and what was left out or thinned.
        alt: what it shows, in words, for who cannot see it.
        columns: its data, by name of column; all of one length.
        draw: draws it on an empty figure of any width.
        height_in: inches high, one column wide.
        wide_in: inches high where it takes the width of a page; None: it gains nothing from that.
    """

    name: str
    title: str
    caption: str
    alt: str
    columns: Mapping[str, Sequence[Any]]
    draw: Callable[[Figure], None]
    height_in: float
    wide_in: float | None = None

    def svg(self, width_in: float = COLUMN_IN, height_in: float | None = None, prefix: str = "") -> str:
        """An ``<svg>`` to stand in a page; equal plots give equal text.

        Args:
            width_in, height_in: its size; by default one column, and as high as that needs.
            prefix: put before every id, so that several drawings can stand in one page.
        """
        file = io.StringIO()
        with _drawn(self, width_in, height_in if height_in is not None else self.height_in) as figure:
            figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
        return _inline(file.getvalue(), f"{prefix}{self.name}-", self.alt)

    def write_pdf(self, file: IO[bytes], width_in: float = COLUMN_IN) -> None:
        """Write a PDF with its fonts embedded; equal plots give equal bytes."""
        with _drawn(self, width_in, self.height_in) as figure:
            figure.savefig(file, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})

    def to_csv(self) -> str:
        """Its data as CSV, a row for each point."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(zip(*(map(_cell, values) for values in self.columns.values()), strict=True))
        return file.getvalue()


@contextmanager
def _drawn(plot: Plot, width_in: float, height_in: float) -> Iterator[Figure]:
    with rc_context(RC), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn by the reader's browser all the same.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = Figure(figsize=(width_in, height_in))
        plot.draw(figure)
        yield figure


def _inline(text: str, prefix: str, alt: str) -> str:
    """matplotlib's SVG file as an element of a page."""
    text = text[text.index("<svg ") :].strip()
    text = _STYLE.sub("", _METADATA.sub("", text))
    text = _ID.sub(lambda m: f'id="{prefix}{m[1]}"', text)
    text = _REFERENCE.sub(lambda m: f"{m[1]}{prefix}", text)
    text = _PATH.sub(_shortened, text)
    opening = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="%s" '
    return _SIZE.sub(lambda m: opening % m[1] + f'role="img" aria-label="{escape(alt)}">', text, count=1)


def _shortened(match: re.Match[str]) -> str:
    """A path with two decimals, in one line."""
    return f' d="{" ".join(_LONG.sub(_CUT, match[1]).split())}"'


def _cell(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.9g}"
    return "" if value is None else value
