"""``batchwright policies``, ``backends`` and ``plugins``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Cli

Write = Callable[[str, str], Path]
Install = Callable[..., None]

PLUGIN = '''
from batchwright import Params, Policy, hookimpl
from pydantic import Field


class LoudParams(Params):
    volume: float = Field(default=1.5, gt=0, le=11, description="How loud.")
    names: list[str] = Field(default_factory=list, description="Of whom.")


class Loud(Policy):
    """Says what it does.

    In more words.
    """

    Params = LoudParams
    chunks = False
    uses_predict = True

    @hookimpl
    def step_started(self, step):
        pass


@hookimpl
def register_policies():
    return {"loud": Loud}


@hookimpl
def step_finished(step):
    pass
'''


def test_policies_are_listed(cli: Cli) -> None:
    answer = cli("policies")
    assert answer.code == 0
    lines = answer.out.splitlines()
    rows = {line.split()[0]: line for line in lines if line[:1].strip()}
    assert {"policy", "prefill_first", "stall_free", "vllm_v1"} <= set(rows)
    assert "FIFO; prompts" in rows["prefill_first"] and "decodes are free" in rows["prefill_first"]
    assert "stationary" in rows["vllm_v1"] and "decodes are free" not in rows["vllm_v1"]
    assert "batchwright 0" in rows["stall_free"]
    assert all(len(line) <= 80 for line in lines)


def test_one_policy_in_full(cli: Cli) -> None:
    out = cli("policies", "vllm_v1").out
    assert "vllm/v1/core/sched/scheduler.py" in out  # its docstring, with its source
    for words in ("max_num_residents=256", "prefix_cache.visible=scheduled", "admission", "declares: stationary"):
        assert words in out
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "fcfs or" in rows["scheduling_policy"]
    assert "integer >= 1 or" in rows["long_prefill_token_threshold"]


def test_policies_of_plugins_and_of_files(cli: Cli, install: Install, tmp_path: Path) -> None:
    install("loud", PLUGIN)
    row = next(line for line in cli("policies").out.splitlines() if line.startswith("loud"))
    assert "Says what it" in row and "never cuts" in row
    whole = cli("policies", "loud").out
    assert "In more words." in whole and "declares: never cuts, predicts" in whole
    assert "number > 0 <= 11" in whole and "1.5" in whole and "How loud." in whole
    (tmp_path / "mine.py").write_text(PLUGIN)
    answer = cli("policies", "mine.py:Loud")
    assert answer.code == 0
    assert "mine.py" in answer.out.splitlines()[0] and "hooks: step_started" in answer.out


def test_a_policy_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    answer = cli("policies", "vllm")
    assert answer.code == 2
    assert "unknown policy 'vllm'" in answer.error and "'vllm_v1'" in answer.error
    (tmp_path / "mine.py").write_text(PLUGIN)
    assert "did you mean 'Loud'?" in cli("policies", "mine.py:Lout").error
    assert "no file absent.py" in cli("policies", "absent.py:Loud").error


def test_backends_are_listed_with_the_reason_why_not(cli: Cli, install: Install) -> None:
    install(
        "moon",
        """
        from batchwright import BackendEntry, hookimpl

        @hookimpl
        def register_backends():
            why = lambda: "the moon is not up: wait"
            return {"moon": BackendEntry(create=print, summary="moonshine", syntax="moon:PHASE", available=why)}
        """,
    )
    answer = cli("backends")
    assert answer.code == 0
    rows = {line.split()[0]: line for line in answer.out.splitlines() if line[:1].strip()}
    assert {"backend", "sim", "cpu", "cuda", "moon"} <= set(rows)
    assert rows["sim"].rstrip().endswith("yes") and "sim:MODEL@GPU" in rows["sim"]
    assert "moonshine" in rows["moon"] and "the moon is not up" in " ".join(answer.out.split())
    assert all(len(line) <= 80 for line in answer.out.splitlines())


def test_plugins_are_listed_with_what_they_bring(cli: Cli, install: Install) -> None:
    install("loud", PLUGIN)
    answer = cli("plugins")
    rows = {line.split()[0]: line for line in answer.out.splitlines() if line[:1].strip()}
    assert "policies: cheapest, dlpm, edf," in " ".join(answer.out.split())
    assert "backends: sim" in rows["sim"]
    assert "policies: loud" in rows["loud"] and "runs: step_finished" in rows["loud"]
    assert "loud" not in cli("plugins", "--no-plugin", "loud").out


def test_a_plugin_left_out_brings_nothing(cli: Cli) -> None:
    assert "cuda" not in cli("backends", "--no-plugin", "torch").out
    answer = cli("run", "prefill_first", "--no-plugin", "sim")
    assert answer.code == 2
    assert "unknown backend 'sim'" in answer.error
    assert "did you mean 'torch'?" in cli("plugins", "--no-plugin", "torsh").error


@pytest.mark.parametrize("command", [["plugins"], ["policies"], ["backends"], ["run"], ["config", "show"]])
def test_a_broken_plugin_is_fatal_and_can_be_left_out(cli: Cli, install: Install, command: list[str]) -> None:
    install("broken", "import nothing_of_that_name\n")
    answer = cli(*command)
    assert answer.code == 2
    assert "plugin 'broken'" in answer.error
    assert "nothing_of_that_name" in answer.error and "--no-plugin broken" in answer.error
    if command != ["run"]:
        assert cli(*command, "--no-plugin", "broken").code == 0
