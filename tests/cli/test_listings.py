"""``batchwright policies``, ``backends`` and ``plugins``."""

from __future__ import annotations

import re
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


# Cards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vtc", "cheapest", "static_batch", "vllm_v1"])
def test_a_card_says_where_each_rule_is(cli: Cli, name: str) -> None:
    from batchwright_policies.plugin import register_policies

    policy = register_policies()[name]
    for answer in (cli("policies", "--card", name), cli("policies", name, "--card")):
        assert answer.code == 0
        out = " ".join(answer.out.split())
        card = policy.card  # type: ignore[attr-defined]
        for kind in card.evidence:
            assert kind in out
        for words in ("source", "declares", "cost", "parameter", *card.rules.values()):
            assert words in out
        place = r"\w+\.py:\d+"
        assert len(re.findall(place, out)) >= len(card.rules)
        assert all(len(line) <= 80 for line in answer.out.splitlines())
    assert "deviations" in answer.out


def test_a_card_fills_a_wide_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    lines = cli("policies", "--card", "vtc").out.splitlines()
    assert any(len(line) > 80 for line in lines) and all(len(line) <= 160 for line in lines)


def test_a_policy_without_a_card_is_told_what_one_is(cli: Cli, install: Install, tmp_path: Path) -> None:
    install("loud", PLUGIN)
    answer = cli("policies", "--card", "loud")
    assert answer.code == 1
    for words in ("It has no card.", "card = batchwright.Card(", "property tested", "Says what it does.", "volume"):
        assert words in answer.out
    (tmp_path / "mine.py").write_text(PLUGIN)
    answer = cli("policies", "--card", "mine.py:Loud")
    assert answer.code == 1 and "mine.py" in answer.out.splitlines()[0] and "It has no card." in answer.out


CARD = '''
from batchwright import Card, Policy, hookimpl
from batchwright_policies.orca import Orca


class Mine(Policy):
    """Mine alone. A step costs O(1)."""

    card = Card(source="me", rules={"mine first": "admission", "elsewhere": "nowhere"})

    @hookimpl
    def admission(self, step):
        yield step.running


class Derived(Orca):
    """As Orca, somehow."""


class Wrong(Policy):
    card = "a card"
'''


def test_the_card_of_a_policy_in_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CARD)
    answer = cli("policies", "--card", "mine.py:Mine")
    out = " ".join(answer.out.split())
    assert answer.code == 0
    assert "admission mine.py:11 mine first" in out
    assert "nowhere not there elsewhere" in out, "a rule that is not in the code is no secret"
    assert "evidence none is given" in out and "deviations none known" in out and "parameters none" in out
    assert "cost A step costs O(1)." in out


def test_an_inherited_card_is_called_so(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CARD)
    answer = cli("policies", "--card", "mine.py:Derived")
    assert answer.code == 0
    assert "no card of its own; this is the card of Orca" in answer.out
    assert "card must be a batchwright.Card, not 'a card'" in cli("policies", "--card", "mine.py:Wrong").error


def test_a_card_of_nothing(cli: Cli) -> None:
    assert "name the policy whose card is meant" in cli("policies", "--card").error
    assert "unknown policy 'vtk'" in cli("policies", "--card", "vtk").error
