"""The other distributions under ``plugins/``: each installs, passes its own tests, and is there by its name."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = Path(__file__).parents[2] / "plugins"
POLICIES = {"batchwright-adaptive-lifo": "adaptive_lifo", "batchwright-stall-guard": "stall_guard"}


def run(command: list[str], folder: Path, *paths: Path) -> str:
    given = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    path = os.pathsep.join([*map(str, paths), *given])
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, env=environment, timeout=180
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=list(POLICIES))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of them installed in it; named after the distribution."""
    for needed in ("pip", "hatchling"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed, and installing a distribution without network needs it")
    folder = tmp_path_factory.mktemp("site") / request.param
    pip = ["pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    run([*pip, "--disable-pip-version-check", "--target", str(folder), str(PLUGINS / request.param)], folder.parent)
    return folder


def test_every_distribution_is_tested() -> None:
    assert {p.parent.name for p in PLUGINS.glob("*/pyproject.toml")} == {*POLICIES, "batchwright-loadshed"}


def test_its_own_tests_pass_on_what_was_installed(site: Path, tmp_path: Path) -> None:
    source = PLUGINS / site.name
    told = run(["pytest", "--quiet", "--rootdir", str(source), str(source / "tests")], tmp_path, site)
    assert " passed" in told and "failed" not in told


def test_it_is_found_by_its_name(site: Path, tmp_path: Path) -> None:
    policy = POLICIES[site.name]
    (line,) = [s for s in run(["batchwright", "policies"], tmp_path, site).splitlines() if s.startswith(f"{policy} ")]
    assert line
    load = ["--workload", "synthetic:rate=50,n=10,prompt=100,output=5"]
    assert policy in run(["batchwright", "ab", "prefill_first", policy, *load], tmp_path, site)


def test_its_readme_is_true(site: Path, tmp_path: Path) -> None:
    """Its table of parameters, and the arm and the config that it shows."""
    policy = POLICIES[site.name]
    text = (PLUGINS / site.name / "README.md").read_text(encoding="utf-8")
    shown = run(["batchwright", "config", "schema", "--policy", policy], tmp_path, site)
    names = set(re.findall(r"^\| `(\w+)` \| \S+ \|", text, re.M))
    assert names and all(f'"{name}"' in shown for name in names)
    (arm,) = re.findall(rf"batchwright ab \w+ ({policy}:\S+)", text)
    run(["batchwright", "config", "show", arm], tmp_path, site)
    assert (site / site.name.replace("-", "_") / "py.typed").is_file()
