"""Where an experiment ran: releases, machine, and commits of the code."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import batchwright
from batchwright.version import HOOKSPEC_VERSION, RECORD_VERSION, __version__

ALWAYS = ("numpy", "pluggy", "pydantic", "xxhash")
IF_LOADED = ("torch", "transformers", "triton", "flash_attn", "vllm", "ray", "pyarrow")
"""Told of only where the experiment has imported them: looking for them would load gigabytes."""
GIT_TIMEOUT_S = 5.0


def environment(distributions: Iterable[str] = ()) -> dict[str, Any]:
    """Releases, machine and commits, as a JSON object; nothing in it changes from run to run on one machine.

    Args:
        distributions: name and version of each that brings plugins.
    """
    return {
        "batchwright": __version__,
        "record_version": RECORD_VERSION,
        "hookspec_version": HOOKSPEC_VERSION,
        "python": platform.python_version(),
        "packages": _packages(),
        "plugins": sorted(set(distributions)),
        "machine": {
            "system": platform.platform(),
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "gpus": _gpus(),
        },
        "commit": commit(Path.cwd()),
        "batchwright_commit": commit(Path(batchwright.__file__).parent),
    }


def commit(folder: Path, *, written: Iterable[str] = ()) -> str | None:
    """Hash of the commit that is checked out in a folder, with ``-dirty`` behind it where tracked files differ from it.

    None where there is no repository, no git, or no answer in time.

    Args:
        folder: anywhere in the repository.
        written: paths from the repository's root that the runs themselves write: these may differ.
    """
    found = _git(folder, "rev-parse", "HEAD")
    if not found:
        return None
    differ = _git(
        folder,
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ":/",
        *(f":(top,exclude){path}" for path in written),
    )
    return None if differ is None else f"{found}-dirty" if differ else found


def _git(folder: Path, *command: str) -> str | None:
    """What git prints; None where it fails, is not there, or takes too long."""
    try:
        done = subprocess.run(
            ["git", *command], cwd=folder, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in (*ALWAYS, *(name for name in IF_LOADED if name in sys.modules)):
        try:
            found[name] = version(name.replace("_", "-"))
        except PackageNotFoundError:
            found[name] = str(getattr(sys.modules.get(name), "__version__", "unknown"))
    return found


def cpu_name() -> str:
    """What the processor is called; platform.processor() is empty on Linux."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _gpus() -> list[str]:
    """Names of the GPUs, where torch is loaded and sees some."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
