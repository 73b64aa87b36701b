"""Help that is worth reading, and fast."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import typer

from batchwright.cli.app import app

from .conftest import Cli

COMMANDS = (
    *(
        "ab",
        "sweep",
        "capacity",
        "tune",
        "run",
        "report",
        "diff",
        "play",
        "explain",
        "replay",
        "check",
        "calibrate",
        "new-policy",
        "policies",
        "backends",
        "plugins",
    ),
    *("config", "workload"),
)
ROOT = typer.main.get_command(app)


def commands() -> list[tuple[str, Any]]:
    found = [(name, command) for name, command in ROOT.commands.items()]  # type: ignore[attr-defined]
    groups = [(name, command) for name, command in found if hasattr(command, "commands")]
    return [*found, *((f"{name} {n}", c) for name, group in groups for n, c in group.commands.items())]


def test_commands_are_all_there(cli: Cli) -> None:
    answer = cli("--help")
    assert answer.code == 0
    assert [name for name, _ in commands() if " " not in name] == list(COMMANDS)
    for name in COMMANDS:
        assert f"\n  {name} " in answer.out


@pytest.mark.parametrize("group", [[], ["config"], ["workload"]])
def test_without_a_command_help_is_shown(cli: Cli, group: list[str]) -> None:
    answer = cli(*group)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == cli(*group, "--help").out


@pytest.mark.parametrize(("name", "command"), commands(), ids=[name for name, _ in commands()])
def test_help_tells_every_option_and_gives_examples(cli: Cli, name: str, command: Any) -> None:
    answer = cli(*name.split(), "--help")
    assert answer.code == 0
    assert not answer.err
    for param in command.params:
        assert param.help, f"{name}: {param.name} has no help"
        said = param.opts[0] if param.opts[0].startswith("-") else param.help
        assert said in answer.out
    if not hasattr(command, "commands"):
        examples = [line for line in answer.out.splitlines() if line.startswith("    batchwright ")]
        assert len(examples) >= 2
        assert all(f"batchwright {name}" in line or name in ("backends", "replay") for line in examples)


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_help_is_at_most_80_columns_wide(cli: Cli, name: str) -> None:
    for line in (*cli("--help").out.splitlines(), *cli(*name.split(), "--help").out.splitlines()):
        assert len(line) <= 80, line


def test_examples_in_help_name_options_that_exist(cli: Cli) -> None:
    options = {option for _, command in commands() for param in command.params for option in param.opts}
    for name, _ in commands():
        for line in cli(*name.split(), "--help").out.splitlines():
            if line.startswith("    batchwright "):
                assert {word for word in line.split() if word.startswith("--")} <= options, line


def test_version(cli: Cli) -> None:
    from batchwright import HOOKSPEC_VERSION, __version__

    assert cli("--version").out == f"batchwright {__version__} (hook specs {HOOKSPEC_VERSION})\n"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, batchwright.cli.app\n"
        "print(sorted({'torch', 'transformers', 'numpy', 'pydantic', 'matplotlib'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
