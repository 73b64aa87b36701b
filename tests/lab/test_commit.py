"""Which commit an experiment says that it ran."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from batchwright.lab.files.environment import commit

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *command: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, *command], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "code" / "policy.py").write_text("first\n")
    (tmp_path / "results" / "run.json").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_it_is_the_commit_that_is_checked_out(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    (repository / "untracked.txt").write_text("not of the code")
    assert commit(repository) == commit(repository / "code") == head


@pytest.mark.parametrize("staged", [False, True])
def test_code_that_differs_is_said(repository: Path, staged: bool) -> None:
    (repository / "code" / "policy.py").write_text("second\n")
    if staged:
        git(repository, "add", ".")
    head = git(repository, "rev-parse", "HEAD")
    assert commit(repository / "results") == f"{head}-dirty"  # wherever it is asked
    assert commit(repository / "code", written=["results"]) == f"{head}-dirty"


def test_results_of_the_runs_before_do_not_make_the_next_one_dirty(repository: Path) -> None:
    """Six scripts that each write a result, one after the other: all six ran the same code."""
    (repository / "results" / "run.json").write_text("2\n")
    head = git(repository, "rev-parse", "HEAD")
    assert commit(repository) == f"{head}-dirty"
    assert commit(repository / "code", written=["results"]) == commit(repository, written=["results/run.json"]) == head


def test_no_repository_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commit(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert commit(Path(__file__).parent) is None
