"""How arms look: told apart by letter, line and marker, and only then by colour."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

Dashes = tuple[int, tuple[float, ...]]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's (Color Universal Design, 2008), the darkest first; their yellow is too pale for a line on white."""

DASHES: tuple[Dashes, ...] = (
    (0, ()),
    (0, (5, 1.6)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (9, 2.5)),
)
MARKERS = ("o", "s", "^", "D", "v", "P")

INK = "#1a1a1a"
FAINT = "#767676"
GRID = "#e3e3e3"

COLUMN_IN = 3.3
"""Width of a column of a paper, in inches."""

PAGE_IN = 7.0
"""Width of a drawing that takes the whole width of a page, in inches."""

RC: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.xmargin": 0.02,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so a drawing is the same everywhere
    "font.size": 8,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "legend.borderaxespad": 0.1,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "patch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and enlarged
    "svg.hashsalt": "batchwright",
    "text.color": INK,
    "text.parse_math": False,  # names of arms may hold a dollar sign
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 7,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 7,
}
"""Eight points in print, at the width of a column."""


@dataclass(frozen=True, slots=True)
class Look:
    """How one arm is drawn.

    Attributes:
        letter: A for the first arm; written on its lines.
        colour, dashes, marker: no two of the first 36 arms share colour and dashes, and neighbours share none of the
            three.
    """

    letter: str
    colour: str
    dashes: Dashes
    marker: str


def look(place: int) -> Look:
    """The look of the arm at this place, from 0."""
    letters = string.ascii_uppercase
    letter = letters[place] if place < len(letters) else f"{letters[place % len(letters)]}{place // len(letters)}"
    turn = place + place // len(COLOURS)
    return Look(letter, COLOURS[place % len(COLOURS)], DASHES[turn % len(DASHES)], MARKERS[turn % len(MARKERS)])


def shorten(text: str, length: int) -> str:
    """A text of at most so many characters; what is left out in its middle is marked."""
    if len(text) <= length:
        return text
    head = (length - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"
