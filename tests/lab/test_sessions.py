"""Sessions and programs of a workload, and lengths that come in pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright.errors import WorkloadError
from batchwright.lab import load_workload
from batchwright.lab.sessions import sessions_of
from lab.shapes import programs, quick, sessions, tokens


@quick
@given(spec=st.one_of(sessions, programs))
def test_prompts_go_on_exactly_where_those_before_them_ended(spec: str) -> None:
    """And the same specification gives the same workload, byte by byte."""
    load = load_workload(spec)
    assert load.rows == load_workload(spec).rows and load.hash == load_workload(spec).hash
    by_id = {row.row_id: row for row in load.rows}
    made = tokens(load)
    for row in load.rows:
        prompt = made[str(row.row_id)]
        assert len(prompt) == row.num_prompt_tokens
        assert len(set(row.prefix_ids)) == len(row.prefix_ids)  # nothing is said twice
        for name in row.after:
            before = by_id[name]
            assert row.arrival_ns >= before.arrival_ns + row.think_ns
            shared = before.num_prompt_tokens or 0
            if len(row.after) == 1:
                assert prompt[:shared] == made[name]
                assert len(prompt) > shared + (before.num_output_tokens or 0)
    # What two sessions share is the prefix that both were given, and no more.
    for one in load.rows:
        for other in load.rows:
            if (one.session_id, one.program_id) != (other.session_id, other.program_id):
                a, b = made[str(one.row_id)], made[str(other.row_id)]
                same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                assert same in (0, 1, 7, 8) or same == min(len(a), len(b)) <= 9


@quick
@given(spec=programs, data=st.data())
def test_a_stage_of_a_program_waits_for_the_whole_stage_before(spec: str, data: Any) -> None:
    load = load_workload(spec)
    for places in sessions_of(load.rows):
        rows = [load.rows[place] for place in places]
        stages: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            stages.setdefault(row.after, []).append(str(row.row_id))
        names: tuple[str, ...] = ()
        for _ in range(len(stages)):
            names = tuple(stages[names])
        assert len({row.program_id for row in rows}) == 1 and len(names) == 1


def test_keys_that_do_not_go_together() -> None:
    for spec, words in (
        ("turns=2,calls=2", "has sessions (turns) or programs (calls), not both"),
        ("client=a,clients=2", "one client of a name (client) or several (clients)"),
        ("think=1", "think of a synthetic workload passes between turns; give it turns as well"),
        ("tool=1,turns=3", "tool of a synthetic workload passes between calls"),
        ("width=2", "give it calls as well"),
        ("client=", "client of a synthetic workload is empty"),
        ("think=-1,turns=2", "think of a synthetic workload is '-1'; expected S or fixed(S)"),
        ("shape=onoff(0,3)", "shape of a synthetic workload is 'onoff(0,3)'; expected steady, constant, onoff"),
        ("shape=ramp(1)", "shape of a synthetic workload is 'ramp(1)'"),
        ("lengths=nowhere.csv", "cannot read nowhere.csv"),
        ("prompt=zipf(0,9)", "prompt of a synthetic workload is 'zipf(0,9)'"),
    ):
        with pytest.raises(WorkloadError) as caught:
            load_workload(f"synthetic:{spec}")
        assert words in str(caught.value)


def test_lengths_come_in_pairs_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,10,1\n2024-05-10 00:00:01,900,7\n")
    rows = load_workload(f"synthetic:n=60,lengths={path},prefix=8").rows
    assert {(r.num_prompt_tokens, r.num_output_tokens) for r in rows} == {(18, 1), (908, 7)}


@pytest.mark.parametrize(
    ("text", "mean", "most"),
    [("exponential(200)", 200, None), ("exponential(200,300)", None, 300), ("zipf(1.5,50)", None, 50)],
)
def test_further_distributions(text: str, mean: float | None, most: int | None) -> None:
    found = np.array([r.num_prompt_tokens for r in load_workload(f"synthetic:n=20000,prompt={text}").rows])
    assert found.min() >= 1
    if mean is not None:
        assert found.mean() == pytest.approx(mean, rel=0.03)
    if most is not None:
        assert found.max() == most
    if "zipf" in text:
        assert (found == 1).mean() / (found == 2).mean() == pytest.approx(2**1.5, rel=0.1)
