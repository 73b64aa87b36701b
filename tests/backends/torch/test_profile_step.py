"""The profile of a decode step, on a tiny model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import profile_step
from phases import PHASES


def test_the_phases_are_all_of_a_step(folders: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", str(folders("llama")), "--batch", "3", "--prompt", "6", "--steps", "5"]
    assert profile_step.main([*arguments, "--temperature", "0.7", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {*PHASES, "step", "outside"}
    assert all(found[phase] > 0 for phase in PHASES) and 0 < found["outside"] < 1
    assert profile_step.main(arguments) == 0
    text = capsys.readouterr().out
    assert "3 decodes" in text and "outside the model's forward" in text
