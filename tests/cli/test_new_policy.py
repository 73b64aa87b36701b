"""``new-policy`` writes a distribution that installs, passes its tests, and is there by its name at once."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from batchwright.cli.new_policy import FILES, names_of
from batchwright.errors import ConfigError
from batchwright.resolve import resolve_policy

from .conftest import SMALL, Cli

ROOT = Path(__file__).parents[2]


def run(command: list[str], cwd: Path, *paths: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    given = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, paths), *given])
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment, timeout=120, check=False)


@pytest.fixture
def made(cli: Cli, tmp_path: Path) -> Path:
    answer = cli("new-policy", "own-rubric")
    assert (answer.code, answer.err) == (0, "")
    return tmp_path / "batchwright-own-rubric"


def test_it_says_what_it_wrote_and_how_to_go_on(cli: Cli, tmp_path: Path) -> None:
    answer = cli("new-policy", "own-rubric")
    assert answer.out.splitlines() == [
        "batchwright-own-rubric has 9 files; the policy is in "
        "batchwright-own-rubric/src/batchwright_own_rubric/policy.py",
        "now:",
        "  pip install --editable './batchwright-own-rubric[test]'",
        "  pytest batchwright-own-rubric",
        "  batchwright check own_rubric",
        "  batchwright ab prefill_first own_rubric",
    ]


def test_it_writes_a_complete_distribution(made: Path) -> None:
    found = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    names = {"$package": "batchwright_own_rubric", "$policy": "own_rubric"}
    expected = set()
    for target in FILES:
        for key, value in names.items():
            target = target.replace(key, value)
        expected.add(target)
    assert found == expected
    for path in made.rglob("*"):
        if path.is_file() and path.name != "test.yml":
            assert "$" not in path.read_text(), f"{path} has a name that was not filled in"
    project = tomllib.loads((made / "pyproject.toml").read_text())["project"]
    assert project["name"] == "batchwright-own-rubric"
    assert project["entry-points"]["batchwright"] == {"own_rubric": "batchwright_own_rubric.plugin"}
    steps = yaml.safe_load((made / ".github" / "workflows" / "test.yml").read_text())["jobs"]["test"]["steps"]
    assert [s["run"] for s in steps if "run" in s] == [
        "pip install '.[test]'",
        "pytest",
        "batchwright check own_rubric",
    ]
    assert "${{ matrix.python }}" in (made / ".github" / "workflows" / "test.yml").read_text()


def test_its_readme_has_its_parameters(made: Path) -> None:
    file = made / "src" / "batchwright_own_rubric" / "policy.py"
    policy = resolve_policy(f"{file}:OwnRubric").slots["admission"]
    text = (made / "README.md").read_text()
    assert policy.Params.model_fields
    for name, field in policy.Params.model_fields.items():
        assert f"| `{name}` | {field.default:g} |" in text and field.description


def test_it_is_clean(made: Path) -> None:
    """By the rules of this project, and whatever sorts its imports."""
    if importlib.util.find_spec("ruff") is None:
        pytest.skip("ruff is not installed")
    ruff = [sys.executable, "-m", "ruff"]
    for command in ([*ruff, "check", "--select", "E,F,I,UP,B"], [*ruff, "format", "--check"]):
        done = run([*command, "--no-cache", "--config", "line-length = 120", "."], made)
        assert done.returncode == 0, done.stdout


def test_it_installs_passes_its_tests_and_is_listed(made: Path, tmp_path: Path) -> None:
    for needed in ("pip", "hatchling"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed, and installing a distribution without network needs it")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    done = run([*pip, "--disable-pip-version-check", "--target", str(site), str(made)], tmp_path)
    assert done.returncode == 0, done.stderr
    tests = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(made)], tmp_path, site)
    assert tests.returncode == 0 and "failed" not in tests.stdout, tests.stdout
    assert " passed" in tests.stdout
    listed = run([sys.executable, "-m", "batchwright", "policies"], tmp_path, site)
    (line,) = [line for line in listed.stdout.splitlines() if line.startswith("own_rubric ")]
    assert "stationary" in line
    ab = [sys.executable, "-m", "batchwright", "ab", "prefill_first", "own_rubric:patience_s=2", "--workload", SMALL]
    done = run(ab, tmp_path, site)
    assert done.returncode == 0 and "own_rubric" in done.stdout, done.stderr


def test_its_tests_fail_when_the_policy_is_wrong(made: Path) -> None:
    file = made / "src" / "batchwright_own_rubric" / "policy.py"
    file.write_text(file.read_text().replace("request.arrival_s + ", "-"))
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--deselect", "nothing", "."]
    done = run(tests, made, made / "src")
    assert "FAILED tests/test_own_rubric.py::test_a_lower_number_goes_first" in done.stdout


def test_nothing_is_overwritten(cli: Cli, made: Path) -> None:
    before = (made / "README.md").read_text()
    answer = cli("new-policy", "own_rubric")
    assert answer.code == 2
    assert answer.error == (
        "batchwright-own-rubric is there already, and nothing is overwritten: remove it, or give --directory"
    )
    assert (made / "README.md").read_text() == before


def test_a_folder_elsewhere(cli: Cli, tmp_path: Path) -> None:
    answer = cli("new-policy", "own_rubric", "--directory", tmp_path / "deep" / "er")
    assert answer.code == 0
    assert (tmp_path / "deep" / "er" / "batchwright-own-rubric" / "pyproject.toml").is_file()
    (tmp_path / "file").write_text("")
    answer = cli("new-policy", "own_rubric", "--directory", tmp_path / "file")
    assert answer.code == 2 and "Not a directory; give --directory another" in answer.error


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "a policy needs a name"),
        ("Fair Share", "' ' 'F' 'S' cannot be in it: lower-case letters, digits, '-' and '_' can; 'fair-share' would"),
        ("fair.share", "'.' cannot be in it: lower-case letters, digits, '-' and '_' can; 'fair-share' would do"),
        ("2fair", "it must begin with a letter; 'fair' would do"),
        ("fair--share", "a dash stands between two words; 'fair-share' would do"),
        ("fair-", "a dash stands between two words; 'fair' would do"),
        ("lambda", "it is a keyword of Python"),
        (
            "batchwright-fair",
            "the distribution gets the prefix batchwright- by itself; give the policy's own name; 'fa",
        ),
        ("batchwright", "the distribution gets the prefix batchwright- by itself"),
        ("a" * 51, "it has 51 characters, and 50 are the most"),
    ],
)
def test_names_that_cannot_be(cli: Cli, tmp_path: Path, name: str, message: str) -> None:
    answer = cli("new-policy", name)
    assert answer.code == 2
    assert answer.error.startswith(f"new-policy {name!r}: {message}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stall-free", "a policy 'stall_free' is installed already; choose another name"),
        ("sim", "a plugin 'sim' is installed already; choose another name"),
        ("backends", "a package 'batchwright_backends' is installed already; choose another name"),
    ],
)
def test_names_that_are_taken(cli: Cli, tmp_path: Path, name: str, message: str) -> None:
    answer = cli("new-policy", name)
    assert (answer.code, answer.error) == (2, message)
    assert list(tmp_path.iterdir()) == []


def test_what_a_policy_is_called_everywhere() -> None:
    assert names_of("least_slack-2") == {
        "distribution": "batchwright-least-slack-2",
        "package": "batchwright_least_slack_2",
        "policy": "least_slack_2",
        "class_name": "LeastSlack2",
    }
    with pytest.raises(ConfigError):
        names_of("É")
