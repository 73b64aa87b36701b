"""One changed number or id in a recorded step is found: at that step, and in that field."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchwright.plugins import load_plugins
from batchwright.replay import read_cases, replay
from batchwright.replay.case import Case
from batchwright.replay.replaying import replay_case
from batchwright.scheduler import Scheduler
from replay.test_formats import NANO, VLLM, with_prompts

OWN = Path(__file__).parents[1] / "cases"
SHARED = Path(__file__).parents[3] / "shared" / "cases"
PLUGINS = load_plugins()


def changes(value: Any) -> Iterator[Any]:
    """The value with one number, word or id in it changed, in every possible place, or one item dropped."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, str):
        yield value + "x"
    else:
        for place, item in enumerate(value):
            for changed in changes(item):
                yield [*value[:place], changed, *value[place + 1 :]]
            yield [*value[:place], *value[place + 1 :]]
        if value != value[::-1]:
            yield value[::-1]


def mutants(case: Case) -> Iterator[tuple[Case, int, str]]:
    for place, step in enumerate(case.steps):
        for field, value in step.items():
            for changed in changes(value):
                steps = list(case.steps)
                steps[place] = {**step, field: changed}
                yield replace(case, steps=steps), place, field


def check(case: Case, policy: str | None) -> int:
    assert replay_case(case, policy, Scheduler, PLUGINS, "file")[1] is None
    number = 0
    for mutant, place, field in mutants(case):
        _, difference = replay_case(mutant, policy, Scheduler, PLUGINS, "file")
        assert difference is not None, f"step {place}: nobody saw that {field} was changed"
        assert (difference.step, difference.fields) == (place, [field])
        assert f"step {place}: {field} differs" in str(difference)
        number += 1
    return number


def smallest(file: Path, number: int) -> list[Case]:
    """Those with the fewest steps among the cases that evict."""
    cases = [c for c in read_cases(file) if any(s.get("preempted") for s in c.steps)]
    return sorted(cases, key=lambda c: len(c.steps))[:number]


@pytest.mark.parametrize("policy", ["prefill_first", "vllm_v1", "stall_free"])
def test_every_field_of_every_step_of_our_own_format(policy):
    for case in smallest(OWN / f"{policy}.jsonl", 1):
        assert check(case, None) > 200


@pytest.mark.parametrize(("data", "policy"), [(NANO, "prefill_first"), (VLLM, "vllm_v1"), (with_prompts(), "vllm_v1")])
def test_every_field_of_every_step_of_the_other_formats(tmp_path, data, policy):
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps(data))
    for case in read_cases(file):
        assert check(case, policy) > 40


@pytest.mark.parametrize("file", ["prefill_first", "vllm_v1", "vllm_v1_prefix"])
def test_every_field_of_every_step_of_recorded_cases(file):
    path = SHARED / f"{file}.jsonl.gz"
    if not path.is_file():
        pytest.skip("the recorded cases lie outside the repository, in ../shared/cases, and are not there")
    policy = "prefill_first" if file == "prefill_first" else "vllm_v1"
    for case in smallest(path, 1):
        assert check(case, policy) > 100


def test_in_a_file_the_first_difference_is_shown_side_by_side(tmp_path):
    lines = [json.loads(line) for line in (OWN / "stall_free.jsonl").read_text().splitlines()]
    changed = copy.deepcopy(lines[7])
    place = next(k for k, step in enumerate(changed["steps"]) if len(step["scheduled"]) > 1)
    changed["steps"][place]["scheduled"][1][1] += 1
    changed["steps"][place + 1]["free_blocks"] += 1  # behind the first difference: not looked at
    lines[7] = changed
    file = tmp_path / "changed.jsonl.gz"
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    report = replay(file)
    assert not report.agrees
    [difference] = report.differences
    assert (difference.line, difference.case, difference.step) == (8, "stall_free-07", place)
    assert difference.fields == ["scheduled"]
    text = str(report)
    assert text.startswith(
        f"{file}: 1 of 20 cases differ; the first:\n{file}, line 8, case 'stall_free-07', step {place}"
    )
    assert "\n* scheduled" in text
    assert "\n  free_blocks" in text
