"""Distributions that are not installed: entry points, modules, and a folder for ``sys.path``."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from batchwright.backend import Backend, BackendEntry, BackendSettings
from fake_backend import FakeBackend


class FakeDistribution(Distribution):
    """An installed distribution, as entry points know it."""

    def __init__(self, name: str, version: str = "1.0") -> None:
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(path)


class FakePoint(EntryPoint):
    """An entry point that gives an object, or raises."""

    def __new__(cls, *args: Any, **kwargs: Any) -> FakePoint:
        return super().__new__(cls)

    def __init__(self, name: str, value: object, distribution: str = "acme-policies", target: str = "acme") -> None:
        super().__init__(name, target, "batchwright")
        vars(self).update(dist=FakeDistribution(distribution), _given=value)

    def load(self) -> Any:
        given = vars(self)["_given"]
        if isinstance(given, BaseException):
            raise given
        return given


def module_of(**contents: Any) -> ModuleType:
    """A module with these names in it."""
    module = ModuleType("acme")
    vars(module).update(contents)
    return module


def install(folder: Path, distribution: str, entry_points: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Put a distribution where ``importlib.metadata`` finds it once ``folder`` is on ``sys.path``."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = "\n".join(f"{name} = {value}" for name, value in entry_points.items())
    (info / "entry_points.txt").write_text(f"[batchwright]\n{lines}\n")
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text))


def fake_entry(made: list[FakeBackend] | None = None, **settings: Any) -> BackendEntry:
    """A backend entry that makes fake backends as configured, and lists what it made."""

    def create(asked: BackendSettings) -> Backend:
        backend = FakeBackend(
            num_blocks=asked.num_blocks or 256,
            block_size=asked.block_size or 4,
            max_model_len=asked.max_model_len or 4096,
            **settings,
        )
        vars(backend)["settings"] = asked
        if made is not None:
            made.append(backend)
        return backend

    return BackendEntry(create=create, summary="tokens out of digests", syntax="fake:NAME")
