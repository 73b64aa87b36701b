"""The kit inside pytest: a decorator for test files, and an option for policies that have none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

POLICY = """
from batchwright import Policy, hookimpl


class Greedy(Policy):
    @hookimpl
    def chunking(self, step, request):
        return request.num_pending
"""


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest on a folder, as its author would; exit code and output."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-ra", *arguments]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "300"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "greedy.py").write_text(POLICY)
    return tmp_path


def counts(output: str) -> dict[str, int]:
    last = output.strip().splitlines()[-1]
    return {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last.partition(" in ")[0])}


def test_the_plugin_is_registered() -> None:
    (point,) = entry_points(group="pytest11", name="batchwright")
    assert point.value == "batchwright.testing.pytest_plugin", "install the checkout again: its entry points changed"


def test_the_option_makes_a_test_of_each_check(folder: Path) -> None:
    code, output = run_pytest(folder, "--batchwright-policy", "greedy.py:Greedy", "--batchwright-seed", "3")
    assert code == 1
    assert counts(output) == {"failed": 1, "passed": 13, "skipped": 3}
    assert "FAILED greedy.py:Greedy[budgets]" in output.replace("::", "")
    assert "budgets: expected chunking of 0 to min(pending, step.budget) tokens" in output
    assert "Again: batchwright check greedy.py:Greedy --only budgets --seed 3" in output
    assert "Traceback" not in output and "conformance.py" not in output
    assert "SKIPPED" in output and "it does not declare stationary = True" in output


def test_tests_are_selected_among_as_any_others(folder: Path) -> None:
    code, output = run_pytest(folder, "--batchwright-policy", "greedy.py", "-k", "offers or progress")
    assert (code, counts(output)) == (0, {"passed": 2, "deselected": 15})


def test_it_joins_the_tests_of_a_folder(folder: Path) -> None:
    (folder / "test_other.py").write_text("def test_other():\n    pass\n")
    code, output = run_pytest(folder, "--batchwright-policy", "stall_free", "-k", "other or offers")
    assert (code, counts(output)["passed"]) == (0, 2)
    code, output = run_pytest(folder)
    assert (code, counts(output)) == (0, {"passed": 1})


def test_an_unknown_policy_is_a_usage_error(folder: Path) -> None:
    code, output = run_pytest(folder, "--batchwright-policy", "stall_fre")
    assert code == 4
    assert "--batchwright-policy: there is no policy and no module 'stall_fre'; policies: did you mean" in output


def test_the_decorator(folder: Path) -> None:
    (folder / "test_greedy.py").write_text(
        "from batchwright.testing import parametrize_checks\n"
        "from greedy import Greedy\n\n\n"
        "@parametrize_checks(Greedy, {'budgets': 'it is greedy', 'offers': 'it is not'})\n"
        "def test_conformance(check):\n    check()\n\n\n"
        "@parametrize_checks(Greedy, checks=['budgets', 'offers'], seed=2)\n"
        "def test_two(check):\n    check()\n"
    )
    code, output = run_pytest(folder)
    assert code == 1
    assert counts(output) == {"failed": 2, "passed": 13, "skipped": 3, "xfailed": 1}
    assert "XFAIL test_greedy.py::test_conformance[budgets] - it is greedy: expected chunking" in output
    assert "test_conformance[offers]" in output and "it passes, and expected_failures says it fails" in output
    assert "FAILED test_greedy.py::test_two[budgets]" in output


def test_without_the_option_nothing_is_imported(folder: Path) -> None:
    (folder / "test_light.py").write_text(
        "import sys\n\n\ndef test_light():\n"
        "    assert 'batchwright.testing.pytest_plugin' in sys.modules\n"
        "    assert not {'pydantic', 'numpy', 'batchwright.scheduler'} & set(sys.modules)\n"
    )
    code, output = run_pytest(folder, "-p", "no:hypothesispytest")
    assert code == 0, output
