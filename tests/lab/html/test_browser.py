"""report.html in a browser, opened from disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from batchwright.lab.html.page import write_page
from lab.figures.comparisons import crowd, simulated

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: it drives the browser")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTHS = (1280, 390)
SHRUNK = """
() => [...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width)
    .flatMap(s => [...s.querySelectorAll('text')].map(t => [s.getBoundingClientRect(), t.getBoundingClientRect(), t]))
    .filter(([s, t]) => t.left < s.left - 1 || t.right > s.right + 1 || t.top < s.top - 1 || t.bottom > s.bottom + 1)
    .map(([s, t, text]) => text.textContent)
"""
CONTRAST = """
() => {
    const light = colour => {
        const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255)
            .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const paper = light(getComputedStyle(document.body).backgroundColor);
    return [...document.querySelectorAll('p, li, td, th, h1, h2, h3, h4, figcaption, a, footer, caption')]
        .map(node => [node.tagName, light(getComputedStyle(node).color)])
        .map(([name, ink]) => [name, (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)])
        .filter(([name, ratio]) => ratio < 4.5);
}
"""


@dataclass
class Opened:
    """A page in a browser, and what it asked for and complained of."""

    page: Any
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser here: none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=found)
        yield running
        running.close()


@pytest.fixture(scope="module", params=["simulated", "crowd"])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    write_page(path, {"simulated": simulated, "crowd": crowd}[request.param]())
    return path


def opened(browser: Any, path: Path, width: int, **context: Any) -> Opened:
    page = browser.new_page(viewport={"width": width, "height": 900}, **context)
    found = Opened(page)
    page.on("request", lambda request: found.requests.append(request.url))
    page.on("console", lambda message: found.complaints.append(message.text))
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    page.goto(path.as_uri(), wait_until="networkidle")
    return found


@pytest.mark.parametrize("width", WIDTHS)
def test_it_opens_without_a_complaint_and_asks_for_nothing(browser: Any, report: Path, width: int) -> None:
    found = opened(browser, report, width)
    try:
        assert found.requests == [report.as_uri()]
        assert found.complaints == []
        assert found.page.evaluate("document.documentElement.scrollWidth") <= width
        assert found.page.evaluate("document.querySelectorAll('svg').length") >= 7
        assert found.page.evaluate(SHRUNK) == []
    finally:
        found.page.close()


def test_what_is_drawn_twice_is_seen_once(browser: Any, report: Path) -> None:
    for width, hidden in ((1280, ".narrow"), (390, ".wide")):
        found = opened(browser, report, width)
        shown = "s => [...document.querySelectorAll(s)].filter(n => n.getBoundingClientRect().height > 0).length"
        try:
            assert found.page.evaluate(shown, hidden) == 0
            assert found.page.evaluate(shown, ".wide" if hidden == ".narrow" else ".narrow") >= 2
        finally:
            found.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_the_paper(browser: Any, report: Path, scheme: str) -> None:
    found = opened(browser, report, 1280, color_scheme=scheme)
    try:
        assert found.page.evaluate(CONTRAST) == []
    finally:
        found.page.close()


def test_it_prints(browser: Any, report: Path) -> None:
    found = opened(browser, report, 1280)
    try:
        pdf = found.page.pdf(format="A4")
        assert pdf.startswith(b"%PDF")
        assert found.complaints == []
        found.page.emulate_media(media="print")
        assert found.page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    finally:
        found.page.close()


def test_tables_that_scroll_can_be_reached_with_keys(browser: Any, report: Path) -> None:
    found = opened(browser, report, 390)
    try:
        page = found.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        regions = page.evaluate("document.querySelectorAll('[role=region]').length")
        reached: set[str] = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            label = page.evaluate("document.activeElement.getAttribute('aria-label')")
            reached |= {label} if label else set()
        assert regions >= 4
        assert "What became of the requests" in " ".join(reached)
    finally:
        found.page.close()
