"""Build the C++ functions for this machine, once, into the cache folder.

``python -m batchwright_backends.torch.native.build`` builds them ahead of their first use.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.cpp")
SOURCES = [SOURCE, *sorted(SOURCE.parent.glob("*.h"))]
FLAGS = [
    *("-std=c++17", "-O3", "-fopenmp", "-shared", "-fPIC", "-Wno-psabi"),
    # NaN and infinity are kept: a request whose logits are NaN must show it.
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
]
TIMEOUT_S = 120


class NotBuilt(Exception):
    """The functions cannot be built or loaded here; says why in one clause."""


def ensure() -> Path:
    """The shared library; compiles it where the cache folder has none for this source, compiler and processor.

    Raises:
        NotBuilt: there is no compiler that can, or it failed.
    """
    if platform.system() != "Linux":
        raise NotBuilt(f"it is built on Linux, not on {platform.system()}")
    compiler, version = find_compiler()
    flags = [*FLAGS, "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"]
    texts = [path.read_text() for path in SOURCES]
    key = hashlib.sha256("\n".join([*texts, version, *flags, _processor()]).encode()).hexdigest()[:16]
    folder = cache_folder()
    library = folder / f"kernels-{key}.so"
    if library.is_file():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Under a name of its own, then moved: several processes may build at once.
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / "kernels.so"
            command = [compiler, *flags, str(SOURCE), "-o", str(built)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            if done.returncode:
                lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
                error = next((line for line in lines if "error" in line), lines[0])
                raise NotBuilt(f"{compiler} failed: {error}")
            built.replace(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotBuilt(f"{compiler} could not be run into {folder}: {error}") from error
    return library


def find_compiler() -> tuple[str, str]:
    """A C++ compiler, and what it says of its version.

    GCC is taken, since torch's threads are those of its OpenMP: Clang would bring a second set of threads, and both
    would fight for the cores.

    Raises:
        NotBuilt: there is none.
    """
    named = os.environ.get("CXX")
    for name in [named] if named else ["g++", "c++"]:
        path = shutil.which(name)
        if path is None:
            continue
        try:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        version = (done.stdout.splitlines() or [""])[0]
        if done.returncode == 0 and version and "clang" not in done.stdout.lower():
            return path, version
    raise NotBuilt(f"no g++ is found{f' (CXX is {named})' if named else ''}; install it, or set CXX to it")


def cache_folder() -> Path:
    """Where libraries are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "batchwright" / "native"


def _processor() -> str:
    """What tells processors apart that share a cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())


if __name__ == "__main__":
    try:
        print(ensure())
    except NotBuilt as error:
        print(f"not built: {error}; torch's own operations are used in its place", file=sys.stderr)
