"""What ``docs/see.md`` shows is what one sees, and its tables are whole."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchwright.cli.app import app
from batchwright.trace.reason import KINDS
from docs.blocks import DOCS, Block, blocks

PAGE = DOCS / "see.md"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """The page's blocks, in a folder with its files."""
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    found = blocks(PAGE)
    Path("small.jsonl").write_text(next(b.text for b in found if b.file == "small.jsonl"))
    Path("small.yaml").write_text(next(b.text for b in found if b.kind == "yaml"))
    return found


def call(line: str, lines: str = "") -> str:
    result = CliRunner().invoke(app, shlex.split(line)[1:], prog_name="batchwright", input=lines)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def behind(page: list[Block], part: str) -> tuple[list[str], str]:
    """The commands of a block, and the text block behind it."""
    (place,) = [i for i, b in enumerate(page) if b.kind == "sh" and part in b.text]
    return page[place].text.splitlines(), page[place + 1].text


def test_play_shows_what_the_page_shows(page: list[Block]) -> None:
    (command,), shown = behind(page, "batchwright play")
    assert call(command) == shown
    (swapped,) = [b.text for b in page if b.text.startswith("step 4 ")]
    (typed,) = re.findall(r"`printf '([^']+)' \|`", PAGE.read_text())
    assert call(command, typed.encode().decode("unicode_escape")).endswith("\n" + swapped)


def test_explain_shows_what_the_page_shows(page: list[Block]) -> None:
    (run, explain), shown = behind(page, "batchwright explain")
    call(run)
    assert call(explain) == shown


def test_every_kind_of_reason_is_told() -> None:
    assert re.findall(r"^\| `(\w+)` \| (?!the next|one step)", PAGE.read_text().split("## Reasons")[1], re.M) == list(
        KINDS
    )
