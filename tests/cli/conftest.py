"""The command line, called in this process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner

from batchwright.cli.app import app

SMALL = "synthetic:rate=50,n=12,prompt=uniform(20,200),output=uniform(2,12),seed=3"
"""A workload that takes milliseconds on the simulator."""

TIGHT = "synthetic:rate=inf,n=12,prompt=uniform(60,200),output=uniform(20,60),seed=3"
"""All at once: with few blocks somebody waits, and somebody is evicted."""


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """Its one sentence of complaint."""
        lines = self.err.splitlines()
        assert len(lines) == 1, f"not one sentence: {self.err!r} (stdout: {self.out!r})"
        assert lines[0].startswith("error: ")
        assert not self.out
        return lines[0].removeprefix("error: ")


Cli = Callable[..., Answer]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, and nothing of the machine's environment that changes settings or output."""
    for name in [n for n in os.environ if n.startswith("BATCHWRIGHT_")]:
        monkeypatch.delenv(name)
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli() -> Cli:
    """Call ``batchwright`` with these arguments."""

    def call(*args: object) -> Answer:
        result = CliRunner().invoke(app, [str(a) for a in args], prog_name="batchwright")
        return Answer(result.exit_code, result.stdout, result.stderr)

    return call


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file in the present folder."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(dedent(text), encoding="utf-8")
        return path

    return write_file


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Install a plugin: a module with this source, under an entry point of this name."""
    points = list(entry_points(group="batchwright"))

    def install_plugin(name: str, source: str, module: str | None = None) -> None:
        module = module if module is not None else f"cli_plugin_{name}_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{module}.py").write_text(dedent(source), encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        points.append(EntryPoint(name, module, "batchwright"))
        monkeypatch.setattr("batchwright.plugins.entry_points", lambda group: points)

    return install_plugin
