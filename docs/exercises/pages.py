"""The generated parts of these pages: ``python docs/exercises/pages.py`` writes them anew.

A part stands between ``<!-- code: FILE -->`` or ``<!-- prints: FILE TEST -->`` and ``<!-- end -->``. FILE is a path in
this folder; of ``prints``, a policy, and the part is what that test of its folder prints with it. A test fails while a
page differs from what this module makes of the files.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from batchwright.errors import BatchwrightError

FOLDER = Path(__file__).parent
_PART = re.compile(
    r"(?P<head><!-- (?P<kind>code|prints): (?P<file>[\w./-]+)(?: (?P<test>\w+))? -->\n).*?(?P<end><!-- end -->)",
    re.DOTALL,
)
_WIDTH = 110


@dataclass(frozen=True)
class Exercise:
    """One exercise: a folder, with a stub, a check and a solution.

    Attributes:
        folder: ``NN-name``.
    """

    folder: Path

    @property
    def name(self) -> str:
        """Of the stub's module."""
        return self.folder.name.partition("-")[2].replace("-", "_")

    @property
    def stub(self) -> Path:
        """Where a reader begins."""
        return self.folder / f"{self.name}.py"

    @property
    def check(self) -> Path:
        """The tests, which fail on the stub."""
        return self.folder / f"test_{self.name}.py"

    @property
    def solution(self) -> Path:
        """What passes them."""
        return self.folder / "solution.py"

    @property
    def page(self) -> Path:
        """Where it is told."""
        return self.folder.with_suffix(".md")

    def tests(self, policy: Path | ModuleType) -> ModuleType:
        """The module of the tests, on a policy: a file, or a module in its place."""
        module = policy if isinstance(policy, ModuleType) else load(policy, self.name)
        sys.modules[self.name] = module
        try:
            return load(self.check, f"test_{self.name}")
        finally:
            del sys.modules[self.name]


@dataclass(frozen=True)
class Ran:
    """What came of one test: what it printed, and what it raised."""

    printed: str
    error: Exception | None


def exercises() -> list[Exercise]:
    """All of them, in order."""
    return [
        Exercise(folder) for folder in sorted(FOLDER.iterdir()) if re.match(r"\d\d-", folder.name) and folder.is_dir()
    ]


def load(file: Path, name: str) -> ModuleType:
    """A file as a module of that name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names_of(tests: ModuleType) -> list[str]:
    """The tests of a module, in order."""
    return [name for name in vars(tests) if name.startswith("test_")]


def run(tests: ModuleType, name: str) -> Ran:
    """One test, as pytest would run it."""
    out = io.StringIO()
    error: Exception | None = None
    with contextlib.redirect_stdout(out):
        try:
            getattr(tests, name)()
        except (AssertionError, BatchwrightError) as raised:
            error = raised
    return Ran(out.getvalue(), error)


def printed(policy: Path, test: str) -> str:
    """What a reader sees of a test: what it prints, and what Batchwright says of a fault."""
    exercise = Exercise(policy.parent)
    ran = run(exercise.tests(policy), test)
    text = ran.printed
    if isinstance(ran.error, BatchwrightError):
        said = textwrap.fill(f"{type(ran.error).__name__}: {ran.error}", _WIDTH)
        text += "\n".join([said, *getattr(ran.error, "__notes__", ())]) + "\n"
    return text


def filled(text: str) -> str:
    """A page with its generated parts made anew."""

    def make(match: re.Match[str]) -> str:
        file = FOLDER / match["file"]
        if match["kind"] == "code":
            block = f"```py\n{file.read_text(encoding='utf-8')}```"
        else:
            block = f"```text\n{printed(file, match['test'])}```"
        return f"{match['head']}\n{block}\n\n{match['end']}"

    return _PART.sub(make, text)


def main() -> int:
    """Write all pages; returns 0."""
    for page in sorted(FOLDER.glob("*.md")):
        old = page.read_text(encoding="utf-8")
        new = filled(old)
        if new != old:
            page.write_text(new, encoding="utf-8")
            print(f"{page.name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
