"""Rules that give fields to rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from batchwright import EngineConfig
from batchwright.errors import WorkloadError
from batchwright.lab import load_workload, run_arm, with_rules
from batchwright.lab.row_rules import read_rules
from batchwright.request import SLO
from fake_backend import FakeBackend


def test_rules_give_fields_to_rows_that_they_fit() -> None:
    load = load_workload("synthetic:n=60,prompt=uniform(1,100),clients=3,max_tokens=9")
    found = with_rules(
        load,
        [
            "*: priority=5, slo_class=rest, weight=2",
            "client_id=c[01], num_prompt_tokens>50: priority=-1, slo.ttft_s=0.5, slo.tpot_s=0.1, deadline_s=4",
            "client_id!=c?, arrival_s<0: priority=9",
            "num_prompt_tokens<=10: max_tokens=none, slo_class=none, client_id=small, abort_after_tokens=3",
        ],
    )
    for before, row in zip(load.rows, found.rows, strict=True):
        small = before.num_prompt_tokens is not None and before.num_prompt_tokens <= 10
        fits = before.client_id in ("c0", "c1") and (before.num_prompt_tokens or 0) > 50
        assert row.priority == (-1 if fits else 5) and row.weight == 2
        assert row.slo == (SLO(0.5, 0.1) if fits else None) and row.deadline_s == (4 if fits else None)
        assert (row.max_tokens, row.slo_class) == ((None, None) if small else (9, "rest"))
        assert row.client_id == ("small" if small else before.client_id)
        assert row.abort_after_tokens == (3 if small else None)
    assert with_rules(load, []) is load


def test_a_share_is_of_the_same_rows_each_time_and_turns_count_from_1() -> None:
    load = load_workload("synthetic:n=2000,prompt=5")
    chosen = [r.priority for r in with_rules(load, ["share=0.2: priority=1"]).rows]
    assert chosen == [r.priority for r in with_rules(load, ["share=0.2: priority=1"]).rows]
    assert 330 < sum(chosen) < 470
    other = [r.priority for r in with_rules(load, ["share=0.2: priority=1, weight=1"]).rows]
    assert 20 < sum(a and b for a, b in zip(chosen, other, strict=True)) < 160  # another rule, another draw
    talk = with_rules(load_workload("synthetic:n=3,turns=3"), ["turn>=2: priority=1", "turn=3: priority=2"])
    assert sorted(r.priority for r in talk.rows) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("priority=1", "is not CONDITIONS: FIELD=VALUE"),
        ("*:", "is not CONDITIONS: FIELD=VALUE"),
        (": priority=1", "is not CONDITIONS: FIELD=VALUE"),
        ("client=a: priority=1", "rows have no 'client' to look at; did you mean 'client_id'"),
        ("client_id>a: priority=1", "client_id is a name, and > compares numbers"),
        ("num_prompt_tokens>x: priority=1", "num_prompt_tokens>x; expected a number"),
        ("share=2: priority=1", "share=2; expected share=X with X from 0 to 1"),
        ("share>0.5: priority=1", "expected share=X"),
        ("what: priority=1", "'what' is no condition"),
        ("*: priorty=1", "'priorty' cannot be set; did you mean 'priority'"),
        ("*: priority=high", "priority is 'high'; expected a whole number; lower goes first, or none"),
        ("*: slo.ttft_s=0", "slo.ttft_s is '0'; expected a number above 0, or none"),
        ("*: weight=nan", "weight is 'nan'"),
        ("*: abort_after_tokens=0", "expected a whole number of at least 1"),
        ("*: priority=1, priority=2", "sets priority twice"),
        ("*: priority", "'priority' is not FIELD=VALUE"),
    ],
)
def test_a_wrong_rule_is_told_what_is_right(rule: str, words: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_rules([rule])
    assert words in str(caught.value)


def test_rules_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "r"
    file.write_text("# all\n*: priority=1\n\nclient_id=c0: weight=2 # one\n")
    assert [dict(rule.values) for rule in read_rules([f"@{file}", "*: weight=3"])] == [
        {"priority": 1},
        {"weight": 2.0},
        {"weight": 3.0},
    ]
    file.write_text("*: priority=1\n*: wait=2\n")
    with pytest.raises(WorkloadError, match=r"r, line 2: rule '\*: wait=2'"):
        read_rules([f"@{file}"])
    with pytest.raises(WorkloadError, match="cannot read the rules in nowhere"):
        read_rules(["@nowhere"])


def test_rules_reach_policies_and_records() -> None:
    load = with_rules(load_workload("synthetic:n=3,prompt=5,output=2"), ["*: slo_class=gold, weight=3, slo.ttft_s=1"])
    seen: list[Any] = []
    record = run_arm(
        EngineConfig(), load, backend=FakeBackend(), declared="exact", on_engine=lambda e: seen.append(e.scheduler)
    )
    assert [(r.slo_class, r.weight, r.slo) for r in record.requests] == [("gold", 3.0, SLO(1.0, None))] * 3
