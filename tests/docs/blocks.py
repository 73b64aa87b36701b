"""Fenced blocks of Markdown pages, and how they are marked.

A comment on the line before a block says what is special about it; everything else is run:

- ``<!-- not run: WHY -->``: it is no program, or no config of an engine;
- ``<!-- needs the model -->``: it runs SmolLM2-135M;
- ``<!-- file: NAME -->``: it is also a file of that name, for the commands of the page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]

_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^\n]*?) -->\n)?^(?P<fence>```+)(?P<kind>\w*)\n(?P<text>.*?)^(?P=fence)$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    kind: str
    mark: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return not self.mark.startswith("not run:")

    @property
    def needs_model(self) -> bool:
        return self.mark == "needs the model" or "cpu:smollm2-135m" in self.text

    @property
    def file(self) -> str | None:
        return self.mark.removeprefix("file: ") if self.mark.startswith("file: ") else None


def blocks(page: Path, *kinds: str) -> list[Block]:
    """The blocks of a page, of these kinds or of any."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("fence")) + 1
        found.append(Block(page, line, match["kind"], match["mark"] or "", match["text"]))
    return [b for b in found if not kinds or b.kind in kinds]


def all_blocks(*kinds: str) -> list[Block]:
    """The blocks of all pages."""
    return [b for page in PAGES for b in blocks(page, *kinds)]
