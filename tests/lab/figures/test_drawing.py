"""All figures of all comparisons: legible, whole, and the same each time."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from batchwright.lab import Comparison
from batchwright.lab.figures import Plot, figures_of, latency_cdfs
from batchwright.lab.figures.style import COLUMN_IN, PAGE_IN, RC
from lab.figures.comparisons import EVERY, crowd, long_tails, pair, simulated

SVG = "{http://www.w3.org/2000/svg}"


ALL = [pytest.param(make, id=make.__name__) for make in EVERY]


def drawn(plot: Plot, width_in: float = COLUMN_IN) -> Figure:
    figure = Figure(figsize=(width_in, plot.height_in if width_in == COLUMN_IN else plot.wide_in or plot.height_in))
    plot.draw(figure)
    FigureCanvasAgg(figure).draw()
    return figure


@pytest.mark.filterwarnings("ignore:Glyph .* missing from")
@pytest.mark.parametrize("make", [pair, long_tails, crowd, simulated])
def test_nothing_is_cut_off_and_no_numbers_overlap(make: Callable[[], Comparison]) -> None:
    with rc_context(RC):
        for plot in figures_of(make()):
            for width in (COLUMN_IN, PAGE_IN) if plot.wide_in is not None else (COLUMN_IN,):
                figure = drawn(plot, width)
                page = figure.bbox
                for text in visible(figure):
                    box = text.get_window_extent()
                    where = f"{plot.name}, {width} in: {text.get_text()!r} at {box.extents}"
                    assert box.x0 >= page.x0 - 0.5 and box.x1 <= page.x1 + 0.5, where
                    assert box.y0 >= page.y0 - 0.5 and box.y1 <= page.y1 + 0.5, where
                for axes in figure.axes:
                    assert not overlapping(axes), f"{plot.name}: {overlapping(axes)}"


def visible(figure: Figure) -> list[Text]:
    """Words that are drawn: numbers beyond the ends of an axis are there, but are not."""
    beyond = {
        id(label)
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        if not within(axis, tick.get_loc())
        for label in (tick.label1, tick.label2)
    }
    texts = [t for t in figure.findobj(Text) if isinstance(t, Text) and id(t) not in beyond]
    return [t for t in texts if t.get_visible() and t.get_text().strip()]


def within(axis: Axis, place: float) -> bool:
    low, high = sorted(axis.get_view_interval())
    return low <= place <= high


def overlapping(axes: Axes) -> list[tuple[str, str]]:
    """Labels beside each other on an axis that run into each other."""
    found: list[tuple[str, str]] = []
    for axis, low, high in ((axes.xaxis, "x0", "x1"), (axes.yaxis, "y0", "y1")):
        ticks = [t.label1 for t in axis.get_major_ticks() if within(axis, t.get_loc())]
        shown = [label for label in ticks if label.get_visible() and label.get_text()]
        placed = sorted(((float(getattr(t.get_window_extent(), low)), t) for t in shown), key=lambda pair: pair[0])
        found += [
            (a.get_text(), b.get_text())
            for (_, a), (start, b) in pairwise(placed)
            if float(getattr(a.get_window_extent(), high)) > start + 0.5
        ]
    return found


@pytest.mark.parametrize("make", ALL)
def test_data_are_whole_columns_and_alt_and_caption_are_sentences(make: Callable[[], Comparison]) -> None:
    plots = figures_of(make())
    assert len({plot.name for plot in plots}) == len(plots)
    for plot in plots:
        assert re.fullmatch(r"[a-z0-9_]+", plot.name)
        rows = list(csv.reader(io.StringIO(plot.to_csv())))
        assert rows[0] == list(plot.columns)
        assert len(rows) > 1
        assert {len(row) for row in rows} == {len(rows[0])}
        for text in (plot.caption, plot.alt):
            assert text.endswith(".") and "  " not in text and "nan" not in text


@pytest.mark.filterwarnings("ignore:Glyph .* missing from")
@pytest.mark.parametrize("make", [pair, crowd])
def test_each_arm_has_a_line_of_its_own_kind(make: Callable[[], Comparison]) -> None:
    """Of the lines of two arms no two have the same dashes: colour is never all that tells them apart."""
    comparison = make()
    with rc_context(RC):
        for plot in figures_of(comparison):
            if not plot.name.endswith("_cdf"):
                continue
            (axes,) = drawn(plot).axes
            drawn_lines = [line for line in axes.get_lines() if line.get_linestyle() not in ("None", "")]
            lines = [line for line in drawn_lines if len(np.asarray(line.get_xdata())) > 2]  # not those of objectives
            dashes = [line._dash_pattern for line in lines]  # type: ignore[attr-defined]
            assert len(lines) == len(comparison.arms)
            for place, one in enumerate(dashes[:6]):
                assert one not in dashes[:place]
            letters = [t.get_text() for t in axes.texts]
            for place in range(len(comparison.arms)):
                assert "ABCDEFG"[place] in letters


def test_svg_stands_in_a_page() -> None:
    ids: set[str] = set()
    for plot in figures_of(crowd()):
        text = plot.svg(prefix="n-")
        root = ET.fromstring(text)
        assert root.tag == f"{SVG}svg"
        assert root.get("role") == "img"
        assert root.get("aria-label") == plot.alt
        assert root.get("width") is None
        own = {node.get("id") for node in root.iter() if node.get("id")}
        assert all(name is not None and name.startswith(f"n-{plot.name}-") for name in own)
        assert not own & ids
        ids |= {name for name in own if name is not None}
        used = re.findall(r'(?:url\(#|href="#)([^")]+)', text)
        assert set(used) <= own
        assert "<script" not in text and "<style" not in text and "<metadata" not in text
        assert not re.findall(r"20\d\d-\d\d-\d\d", text)
        assert "http" not in re.sub(r'xmlns(:xlink)?="[^"]*"', "", text)


def test_svg_holds_its_words_as_text() -> None:
    plots = {plot.name: plot for plot in figures_of(pair())}
    words = "".join(ET.fromstring(plots["ttft_cdf"].svg()).itertext())
    assert "prefill_first" in words
    assert "Share of finished requests" in words


def pdf_of(plot: Plot) -> bytes:
    file = io.BytesIO()
    plot.write_pdf(file)
    return file.getvalue()


@pytest.mark.parametrize("name", ["ttft_cdf", "requests"])  # a second each: fonts are cut to what is used
def test_pdf_is_one_column_with_its_fonts_and_without_a_date(name: str) -> None:
    for plot in figures_of(pair()):
        if plot.name != name:
            continue
        data = pdf_of(plot)
        assert data.startswith(b"%PDF")
        box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", data)
        assert box is not None
        assert float(box[1]) == pytest.approx(COLUMN_IN * 72)
        assert float(box[2]) == pytest.approx(plot.height_in * 72, abs=0.1)
        assert b"/FontFile2" in data
        assert b"/Type3" not in data
        assert b"Date" not in data
        assert b"/Subtype /Image" not in data


_AGAIN = """
import sys
from batchwright.lab.figures import latency_cdfs
from lab.figures.comparisons import pair
plot = latency_cdfs(pair())[0]
sys.stdout.write(plot.svg())
sys.stdout.flush()
plot.write_pdf(sys.stdout.buffer)
"""


def test_the_same_runs_give_the_same_bytes_in_any_process() -> None:
    (plot, *_) = latency_cdfs(pair())
    environment = {**os.environ, "PYTHONHASHSEED": "17", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", _AGAIN], env=environment, capture_output=True, check=True)
    assert done.stdout == plot.svg().encode() + pdf_of(plot)
