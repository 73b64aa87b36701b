"""The exercises: checks that fail on the stubs and pass on the solutions, shown on the pages as they are tested."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchwright import Policy
from batchwright.errors import PolicyError
from batchwright.testing import run_checks
from docs.blocks import DOCS, ROOT

FOLDER = DOCS / "exercises"
LINES_OF_A_STUB = 20


def pages() -> Any:
    spec = importlib.util.spec_from_file_location("_pages_of_the_exercises", FOLDER / "pages.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # its dataclasses look for it
    spec.loader.exec_module(module)
    return module


PAGES = pages()
EXERCISES = PAGES.exercises()
every = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda e: e.folder.name)


def failures(tests: ModuleType) -> dict[str, Exception]:
    """Test to what it raised."""
    ran = {name: PAGES.run(tests, name).error for name in PAGES.names_of(tests)}
    return {name: error for name, error in ran.items() if error is not None}


def policies_of(module: ModuleType) -> list[type[Policy]]:
    return [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]


def test_there_are_eight_each_with_its_page_in_the_site() -> None:
    assert [e.folder.name[:2] for e in EXERCISES] == [f"{n:02}" for n in range(1, 9)]
    assert {page.stem for page in FOLDER.glob("*.md")} == {"index", *(e.folder.name for e in EXERCISES)}
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    for exercise in EXERCISES:
        title = exercise.page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert f"exercises/{exercise.page.name}" in navigation
        assert f"[{title}]({exercise.page.name})" in index


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda p: p.stem)
def test_a_page_shows_the_files_and_what_they_print(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert PAGES.filled(text) == text, f"{page.name} is stale: run python docs/exercises/pages.py"


@every
def test_a_page_has_its_source_graded_hints_and_all_files(exercise: Any) -> None:
    text = exercise.page.read_text(encoding="utf-8")
    met = text.partition("## Where it was met")[2].partition("## The exercise")[0]
    assert re.search(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", met)
    hints = re.findall(r"<summary>Hint (\d)</summary>", text)
    assert hints == [str(n) for n in range(1, len(hints) + 1)] and len(hints) >= 2
    assert text.index("<summary>Hint 1") < text.index("<summary>Solution")
    for file in (exercise.stub, exercise.check, exercise.solution):
        assert f"<!-- code: {file.relative_to(FOLDER)} -->" in text
    for file in (exercise.stub, exercise.check):
        assert f"[download]({file.relative_to(FOLDER)})" in text
    assert f"<!-- prints: {exercise.stub.relative_to(FOLDER)} " in text


@every
def test_a_stub_is_short_and_its_check_fails(exercise: Any) -> None:
    """By what the exercise is about: a promise that is not kept, or a step in which nothing happens."""
    code = [line for line in exercise.stub.read_text(encoding="utf-8").splitlines() if line.strip()]
    assert len(code) <= LINES_OF_A_STUB
    found = failures(exercise.tests(exercise.stub))
    assert found
    for error in found.values():
        assert type(error) is AssertionError or (isinstance(error, PolicyError) and error.rule == "progress")


@every
def test_a_check_passes_on_the_solution(exercise: Any) -> None:
    assert failures(exercise.tests(exercise.solution)) == {}


@every
def test_a_check_does_not_pass_on_a_policy_that_decides_nothing(exercise: Any) -> None:
    """Each asks for a decision; but of the reservation the core's own answer is a solution, as the page says."""
    (stub,) = policies_of(PAGES.load(exercise.stub, exercise.name))
    nothing = ModuleType(exercise.name)
    setattr(nothing, stub.__name__, type(stub.__name__, (Policy,), {}))
    assert bool(failures(exercise.tests(nothing))) == (exercise.name != "thrash")


@every
def test_a_solution_keeps_the_contract(exercise: Any) -> None:
    (solution,) = policies_of(PAGES.load(exercise.solution, exercise.name))
    report = run_checks(solution)
    assert report.ok, str(report)


HALFWAY = {
    "04-overtake": ("            if not request.num_scheduled:\n                break\n", ""),
    "06-stranded": ("            if not request.num_scheduled:\n                break\n", ""),
    "08-fair-share": (
        "    def request_admitted(self, request):\n        self.count[request.client_id] += 1\n",
        "    def step_finished(self, step):\n        for request in step.batch:\n"
        "            self.count[request.client_id] += request.num_scheduled\n",
    ),
}
"""What the hints say of a first attempt: it mends the first test and not the second."""


@pytest.mark.parametrize("folder", HALFWAY)
def test_a_first_attempt_comes_as_far_as_the_hints_say(folder: str, tmp_path: Path) -> None:
    (exercise,) = [e for e in EXERCISES if e.folder.name == folder]
    old, new = HALFWAY[folder]
    text = exercise.stub.read_text(encoding="utf-8")
    assert text.count(old) == 1
    attempt = tmp_path / exercise.stub.name
    attempt.write_text(text.replace(old, new), encoding="utf-8")
    tests = exercise.tests(attempt)
    first, second = PAGES.names_of(tests)
    assert list(failures(tests)) == [second]
    assert first in failures(exercise.tests(exercise.stub))


def pytest_says(folder: Path) -> dict[str, set[str]]:
    """Test file to the outcomes of its tests, as a reader runs them: all in one folder."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=no", "-q"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    outcomes: dict[str, set[str]] = {}
    for outcome, file in re.findall(r"^(PASSED|FAILED|ERROR) (\w+\.py)", done.stdout, re.M):
        outcomes.setdefault(file, set()).add(outcome)
    assert outcomes, done.stdout + done.stderr
    return outcomes


def test_a_reader_begins_with_failures_and_ends_without(tmp_path: Path) -> None:
    for exercise in EXERCISES:
        shutil.copy(exercise.stub, tmp_path)
        shutil.copy(exercise.check, tmp_path)
    before = pytest_says(tmp_path)
    assert set(before) == {e.check.name for e in EXERCISES}
    assert all("FAILED" in outcomes and "ERROR" not in outcomes for outcomes in before.values())
    for exercise in EXERCISES:
        shutil.copy(exercise.solution, tmp_path / exercise.stub.name)
    assert set().union(*pytest_says(tmp_path).values()) == {"PASSED"}
