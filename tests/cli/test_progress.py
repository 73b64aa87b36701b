"""Progress where nobody sees bars: lines, if they are asked for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from batchwright.cli import output
from batchwright.cli.output import show_progress

from .conftest import SMALL, Cli

ROOT = Path(__file__).parents[2]


def test_lines_are_some_time_apart_and_tell_each_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    monkeypatch.setenv("BATCHWRIGHT_PROGRESS", "lines")
    with show_progress(False, "starting sim") as progress:
        assert progress is not None
        for done in range(1, 7):
            now[0] += 0.7
            progress("arm", done, 6)
        progress("arm", 6, 6)
    assert capsys.readouterr().err.splitlines() == ["starting sim ...", "arm: 3 of 6", "arm: 6 of 6"]


@pytest.mark.parametrize(("value", "quiet"), [("", False), ("bars", False), ("lines", True)])
def test_without_being_asked_nothing_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, value: str, quiet: bool
) -> None:
    monkeypatch.setenv("BATCHWRIGHT_PROGRESS", value)
    with show_progress(quiet, "starting sim") as progress:
        assert progress is None
    assert capsys.readouterr().err == ""


def test_a_command_says_what_it_does(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHWRIGHT_PROGRESS", "lines")
    answer = cli("ab", "prefill_first", "vllm_v1", "--workload", SMALL)
    lines = answer.err.splitlines()
    assert lines[:2] == ["reading the workload ...", "starting sim:llama-3.1-8b@h100 ..."]
    assert any(line.startswith("prefill_first: ") for line in lines) and "comparing ..." in lines


def test_the_demo_says_what_it_begins_before_it_does(tmp_path: Path) -> None:
    """With a command that does nothing in the place of batchwright's."""
    asked = tmp_path / "batchwright"
    asked.write_text('#!/bin/sh\necho "ran $BATCHWRIGHT_PROGRESS $1"\n')
    asked.chmod(0o755)
    done = subprocess.run(
        ["sh", str(ROOT / "docs" / "demo.sh")],
        env={"PATH": "/usr/bin:/bin", "BATCHWRIGHT": str(asked)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    said = [line.partition(" ")[0] for line in done.stdout.splitlines() if line]
    assert said == ["==", "48", "ran", "==", "1,000", "ran"]
    assert done.stdout.count("ran lines ab") == 2


def test_make_says_what_it_sets_up() -> None:
    """Whatever takes long is announced, and pip is not silent."""
    dry = subprocess.run(
        ["make", "--dry-run", "--always-make", "demo"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for install in ("pip --disable-pip-version-check install", "torch.models smollm2", "native.build", "docs/demo.sh"):
        assert install in dry
    assert "--quiet install" not in dry
    for said in ("making .venv with", "setting up .venv: torch", "making the model", "compiling what"):
        assert f'echo "{said}' in dry
