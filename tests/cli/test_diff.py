"""``batchwright diff``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from batchwright.cli.lockstep import Decision, Row

from .conftest import SMALL, TIGHT, Cli

Write = Callable[[str, str], Path]

THREE = """
{"arrival_s": 0, "num_prompt_tokens": 25, "num_output_tokens": 4}
{"arrival_s": 0, "num_prompt_tokens": 8, "num_output_tokens": 4}
{"arrival_s": 0, "num_prompt_tokens": 6, "num_output_tokens": 4}
"""
"""The worked example: with a budget of 20, step 1 gives A 20 tokens; step 2 gives A 5, B 8, C 6."""


def result() -> dict:
    return json.loads(Path("diff.json").read_text())


def test_a_policy_never_parts_from_itself(cli: Cli) -> None:
    answer = cli("diff", "prefill_first", "prefill_first", "--workload", TIGHT, "--set", "num_blocks=40")
    assert answer.code == 0
    assert answer.out.startswith("no difference in ")
    cli("run", "prefill_first", "--workload", TIGHT, "--set", "num_blocks=40", "--json", "out.json")
    steps = len(json.loads(Path("out.json").read_text())["runs"][0]["steps"])
    assert f"no difference in {steps} steps" in answer.out


def test_the_worked_example(cli: Cli, write: Write) -> None:
    write("three.jsonl", THREE.strip())
    args = ["--workload", "three.jsonl", "--set", "max_num_batched_tokens=20", "--json", "diff.json"]
    answer = cli("diff", "prefill_first", "stall_free:chunk_size=15", *args)
    assert answer.code == 1
    assert "step 0 differs" in answer.out
    first, second = result()["arms"]
    assert first["scheduled"] == [["r000000", 20, 0]]
    assert second["scheduled"] == [["r000000", 15, 0]]
    for policy in ("vllm_v1", "stall_free:chunk_size=20"):  # the two steps of the example, and three of decodes
        assert "no difference in 5 steps" in cli("diff", "prefill_first", policy, *args).out
    assert result() == {
        "differs": False,
        "complete": True,
        "num_equal_steps": 5,
        "step": None,
        "time_s": result()["time_s"],
        "arms": [],
    }


def test_batches_stand_side_by_side(cli: Cli) -> None:
    args = ["--workload", TIGHT, "--set", "num_blocks=40", "--set", "max_num_batched_tokens=256"]
    answer = cli("diff", "prefill_first", "vllm_v1", *args, "--json", "diff.json")
    assert answer.code == 1
    found = result()
    assert f"step {found['step']} differs" in answer.out
    lines = answer.out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    first, second = found["arms"]
    assert first["scheduled"] != second["scheduled"]
    assert first["num_waiting"] == second["num_waiting"] > 0
    rows = {words[-5]: words for words in map(str.split, answer.out.replace(" [", "[").splitlines()) if len(words) > 4}
    for column, arm in ((-2, first), (-1, second)):
        shown = {name: words[column] for name, words in rows.items() if words[column] != "-" and name.startswith("r0")}
        assert shown == {name: f"{count}[{place}]" for place, (name, count, _) in enumerate(arm["scheduled"])}


def test_the_first_step_that_differs_is_the_first_in_the_records_too(cli: Cli) -> None:
    args = ["--workload", TIGHT, "--set", "num_blocks=40", "--set", "max_num_batched_tokens=256"]
    cli("ab", "prefill_first", "vllm_v1", *args, "--json", "ab.json")
    cli("diff", "prefill_first", "vllm_v1", *args, "--json", "diff.json")
    one, two = (run["batches"] for run in json.loads(Path("ab.json").read_text())["runs"])
    assert result()["step"] == next(i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b)


def test_victims_differ(cli: Cli, write: Write) -> None:
    write(
        "oldest.py",
        """
        from batchwright import HOLD, hookimpl
        from batchwright_policies.prefill_first import PrefillFirst

        class Oldest(PrefillFirst):
            @hookimpl
            def preemption(self, step, request):
                if request.is_waiting:
                    return HOLD
                return step.evictable[0] if step.evictable else request
        """,
    )
    args = ["--workload", TIGHT, "--set", "num_blocks=40", "--json", "diff.json"]
    answer = cli("diff", "prefill_first", "oldest.py:Oldest", *args)
    assert answer.code == 1
    first, second = result()["arms"]
    assert first["preempted"] and second["preempted"] and first["preempted"] != second["preempted"]
    assert result()["num_equal_steps"] > 0
    evicted = next(line for line in answer.out.splitlines() if line.startswith("evicted"))
    assert first["preempted"][0] in evicted and second["preempted"][0] in evicted


MINE = """
from batchwright import HOLD, hookimpl
from batchwright_policies.prefill_first import PrefillFirst

class Mine(PrefillFirst):
    @hookimpl
    def preemption(self, step, request):
        {comment}
        if request.is_waiting:
            return HOLD
        return step.evictable[{victim}] if step.evictable else request
"""


def test_an_edit_that_changes_nothing_is_said_to_change_nothing(cli: Cli, write: Write) -> None:
    """The same file before and after an edit, under one name in two folders."""
    Path("old").mkdir()
    Path("new").mkdir()
    write("old/mine.py", MINE.format(comment="# TODO: think", victim=-1))
    write("new/mine.py", MINE.format(comment="# whoever came last has the least to lose", victim=-1))
    args = ["--workload", TIGHT, "--set", "num_blocks=40"]
    answer = cli("diff", "old/mine.py:Mine", "new/mine.py:Mine", *args)
    assert answer.code == 0
    found = re.fullmatch(
        r"no difference in (\d+) steps between mine.py:Mine \(A\) and mine.py:Mine \(B\)\n", answer.out
    )
    assert found is not None and int(found[1]) > 100
    write("new/mine.py", MINE.format(comment="# whoever came first has had the most", victim=0))
    assert cli("diff", "old/mine.py:Mine", "new/mine.py:Mine", *args).code == 1


def test_what_counts_as_a_difference() -> None:
    row, longer = Row(4, 0, True), Row(5, 0, True)
    one = Decision(batch={"a": row, "b": row}, preempted=["c", "d"], refused={"e": "no"})
    assert one.same_as(Decision(batch={"a": row, "b": row}, preempted=["c", "d"], refused={"e": "never"}))
    for other in (
        replace(one, batch={"b": row, "a": row}),
        replace(one, batch={"a": row, "b": longer}),
        replace(one, batch={"a": row}),
        replace(one, preempted=["d", "c"]),
        replace(one, refused={}),
    ):
        assert not one.same_as(other)
        assert not other.same_as(one)


def test_a_refusal_is_a_difference(cli: Cli) -> None:
    args = ["--workload", SMALL, "--arm-set", "B.num_blocks=3", "--json", "diff.json"]
    answer = cli("diff", "prefill_first", "prefill_first", *args)
    assert answer.code == 1
    first, second = result()["arms"]
    assert not first["refused"] and second["refused"]
    assert f"B refuses {next(iter(second['refused']))}: " in answer.out


def test_arms_of_different_pools_are_stepped_too(cli: Cli) -> None:
    same = cli("diff", "prefill_first", "prefill_first", "--workload", SMALL, "--arm-set", "B.num_blocks=5000")
    assert same.code == 0
    args = ["--workload", TIGHT, "--arm-set", "B.num_blocks=40", "--json", "diff.json"]
    assert cli("diff", "prefill_first", "prefill_first", *args).code == 1
    first, second = result()["arms"]
    assert first["free_blocks"] > 40 >= second["free_blocks"]


def test_it_looks_at_the_first_steps_only_when_told(cli: Cli) -> None:
    answer = cli("diff", "prefill_first", "prefill_first", "--workload", SMALL, "--max-steps", 5)
    assert answer.code == 0
    assert "no difference in the first 5 steps" in answer.out
    assert cli("diff", "prefill_first", "prefill_first", "--workload", SMALL, "--max-steps", 0).code == 2


def test_long_batches_are_cut_to_what_differs(cli: Cli) -> None:
    workload = "synthetic:rate=inf,n=90,prompt=20,output=9"
    args = ["--workload", workload, "--json", "diff.json", "--arm-set", "B.max_num_batched_tokens=1790"]
    answer = cli("diff", "prefill_first", "vllm_v1", *args)
    assert answer.code == 1
    assert "more" in answer.out
    assert len(answer.out.splitlines()) < 60


def test_a_policy_that_breaks_a_rule(cli: Cli, write: Write) -> None:
    write(
        "bad.py",
        """
        from batchwright import Policy, hookimpl

        class Idle(Policy):
            @hookimpl
            def admission(self, step):
                return ()
        """,
    )
    answer = cli("diff", "prefill_first", "bad.py:Idle", "--workload", SMALL)
    assert answer.code == 1
    assert "'Idle'" in answer.error and "rule 'progress'" in answer.error


@pytest.mark.parametrize("args", [[], ["prefill_first"], ["prefill_first", "stall_free", "vllm_v1"]])
def test_it_takes_two_arms(cli: Cli, args: list[str]) -> None:
    answer = cli("diff", *args)
    assert answer.code == 2
    assert "batchwright diff --help" in answer.error
