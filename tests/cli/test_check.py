"""``check``: the conformance kit on the command line; and a single file wherever a policy is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from batchwright.testing import CHECKS

from .conftest import SMALL, Cli

FILE = """
    from batchwright import Params, Policy, hookimpl
    from pydantic import Field


    class MineParams(Params):
        most: int = Field(default=2, ge=1, description="Newcomers a step.")


    class Mine(Policy):
        Params = MineParams

        @hookimpl
        def admission(self, step):
            yield step.running
            for number, request in enumerate(step.waiting):
                if number < self.params.most:
                    yield request


    class Greedy(Mine):
        \"\"\"Takes more than there is.\"\"\"

        @hookimpl
        def chunking(self, step, request):
            return request.num_pending


    class _Hidden(Greedy):
        pass
"""

Write = Callable[[str, str], Path]


def test_a_policy_that_passes(cli: Cli) -> None:
    answer = cli("check", "stall_free")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert [line.split()[0] for line in lines if " passed " in f"{line} " and not line[0].isspace()][:3] == [
        "answers",
        "no_mutation",
        "budgets",
    ]
    assert any(line.startswith("stall_free, seed 0: ") and "checks passed" in line for line in lines)


def test_a_policy_that_fails(cli: Cli, write: Write) -> None:
    write("mine.py", FILE)
    answer = cli("check", "mine.py:Greedy", "--seed", 3)
    assert (answer.code, answer.err) == (1, "")
    assert "budgets        FAILED" in answer.out
    (said,) = [line for line in answer.out.splitlines() if line.startswith("budgets: ")]
    assert said.startswith("budgets: expected chunking of 0 to min(pending, step.budget) tokens")
    assert " tokens, allowed are 0 to " in said and ", step " in said
    assert said.endswith("Again: batchwright check mine.py:Greedy --only budgets --seed 3")


def test_checks_that_were_not_reached(cli: Cli, write: Write) -> None:
    write("mine.py", FILE.replace("yield step.running", "raise ValueError('oops')"))
    answer = cli("check", "mine.py:Mine", "--only", "answers", "--only", "offers", "--only", "params")
    assert answer.code == 1
    assert "answers  FAILED " in answer.out and "offers   not reached " in answer.out
    assert "0 of 3 checks passed, 1 failed, 2 not reached" in answer.out
    assert cli("check", "mine.py:Mine", "--only", "offers").code == 1


def test_the_command_that_a_failure_names_repeats_it(cli: Cli, write: Write) -> None:
    write("mine.py", FILE)
    first = cli("check", "mine.py:Greedy", "--seed", 3).out
    again = cli("check", "mine.py:Greedy", "--only", "budgets", "--seed", 3)
    assert again.code == 1
    said = [line for line in again.out.splitlines() if line.startswith("budgets: ")]
    assert said == [line for line in first.splitlines() if line.startswith("budgets: ")]


def test_a_file_stands_for_all_its_policies(cli: Cli, write: Write) -> None:
    write("mine.py", FILE)
    answer = cli("check", "mine.py", "--only", "budgets", "--only", "offers", "--json", "out.json")
    assert answer.code == 1
    mine, greedy = json.loads(Path("out.json").read_text())
    assert (mine["policy"], mine["ok"]) == ("mine.py:Mine", True)
    assert (greedy["policy"], greedy["ok"], greedy["seed"]) == ("mine.py:Greedy", False, 0)
    assert [(c["name"], c["status"]) for c in greedy["checks"]] == [("budgets", "failed"), ("offers", "passed")]
    assert greedy["checks"][0]["where"].startswith("scenario roomy-")


def test_a_module_stands_for_all_its_policies(cli: Cli) -> None:
    answer = cli("check", "batchwright_policies.prefill_first", "--only", "offers")
    assert answer.code == 0
    assert "batchwright_policies.prefill_first:PrefillFirst, seed 0: 1 of 1 checks passed" in answer.out
    answer = cli("check", "batchwright_policies.stall_free:StallFree:chunk_size=9", "--only", "params")
    assert (answer.code, answer.err) == (0, "")


def test_a_package_stands_for_the_policies_of_its_modules(
    cli: Cli, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packed_policies").mkdir()
    write("packed_policies/__init__.py", "")
    write("packed_policies/mine.py", FILE)
    monkeypatch.syspath_prepend(tmp_path)
    answer = cli("check", "packed_policies", "--only", "params")
    assert answer.code == 0
    assert [line.split(",")[0] for line in answer.out.splitlines() if ", seed 0: " in line] == [
        "packed_policies:Mine",
        "packed_policies:Greedy",
    ]


def test_expected_failures(cli: Cli, write: Write) -> None:
    write("mine.py", FILE)
    options = ("--only", "budgets", "--only", "offers")
    answer = cli("check", "mine.py:Greedy", *options, "--expect", "budgets=it is greedy")
    assert answer.code == 0
    assert "budgets: fails as expected (it is greedy): " in answer.out
    answer = cli("check", "mine.py:Mine", *options, "--expect", "budgets=it is greedy")
    assert answer.code == 1
    assert "budgets: it passes, and expected_failures says it fails (it is greedy)" in answer.out


def test_checks_are_listed(cli: Cli) -> None:
    answer = cli("check", "--list")
    assert answer.code == 0
    for name in CHECKS:
        assert f"\n{name} " in answer.out


def test_quiet_says_nothing(cli: Cli) -> None:
    answer = cli("check", "prefill_first", "--only", "offers", "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name the policy to check: NAME[:param=value,...], file.py[:Class"),
        (("stall_fre",), "there is no policy and no module 'stall_fre'; policies: did you mean 'stall_free'"),
        (("json.nothing",), "there is no policy and no module 'json.nothing'"),
        (("json",), "json has no policy: a class that subclasses batchwright.Policy"),
        (("batchwright_policies.stall_free:StalFree",), "has no policy class 'StalFree'; did you mean 'StallFree'"),
        (("none.py",), "there is no file none.py"),
        (("none.py:Mine",), "there is no file none.py"),
        (("broken.py",), "broken.py cannot be imported: ModuleNotFoundError: No module named 'numpie'"),
        (("broken",), "module broken cannot be imported: ModuleNotFoundError: No module named 'numpie'"),
        (("stall_free:chunk=3",), "unknown parameter 'chunk'; did you mean 'chunk_size'"),
        (("stall_free", "--only", "ofers"), "there is no check 'ofers'; did you mean 'offers'"),
        (("stall_free", "--expect", "offers"), "--expect offers: write it as CHECK=REASON"),
        (("stall_free", "--json", "no/where.json"), "--json no/where.json: there is no folder no; make it first"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input(
    cli: Cli, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    write("broken.py", "import numpie\n")
    monkeypatch.syspath_prepend(tmp_path)
    answer = cli("check", *arguments)
    assert answer.code == 2
    assert message in answer.error


# A single file --------------------------------------------------------------------------------------------------


def test_a_file_is_an_arm_wherever_a_policy_is_named(cli: Cli, write: Write) -> None:
    write("mine.py", FILE)
    mine = "./mine.py:Mine:most=1"
    load = ("--workload", SMALL)
    answer = cli("ab", "prefill_first", f"mine={mine}", *load)
    assert answer.code == 0 and " mine " in answer.out
    answer = cli("run", mine, *load, "--record", "decisions.jsonl")
    assert answer.code == 0
    assert cli("replay", "decisions.jsonl", "--policy", mine).code == 0
    assert cli("replay", "decisions.jsonl", "--policy", "./mine.py:Mine:most=9").code == 1
    assert cli("diff", mine, "./mine.py:Mine:most=1", *load).code == 0
    assert cli("diff", mine, "./mine.py:Mine:most=9", *load).code == 1
    assert cli("policies", "./mine.py:Mine").code == 0
    assert cli("check", mine, "--only", "progress").code == 0
    write("engine.yaml", "policy: {use: './mine.py:Mine', most: 1}\n")
    assert cli("diff", "engine.yaml", mine, *load).code == 0
    write("slots.yaml", "policy: {admission: './mine.py:Mine', chunking: stall_free}\n")
    assert cli("run", "slots.yaml", *load).code == 0
