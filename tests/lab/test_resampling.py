"""Workloads put together anew: resampled, merged, and those with prompts that are too long fitted."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchwright import EngineConfig
from batchwright.errors import WorkloadError
from batchwright.lab import Workload, WorkloadRow, load_workload, merge, prefix_reuse, resampled, run_arm
from batchwright.lab.fitting import fitted
from batchwright.lab.inspection import inspect
from batchwright.lab.sessions import sessions_of
from fake_backend import FakeBackend
from lab.shapes import programs, quick, sessions

# Resampling -------------------------------------------------------------------------------------------------------


@quick
@given(spec=st.one_of(sessions, programs), seed=st.integers(0, 99), block=st.sampled_from([None, 1, 2, 50]))
def test_resampling_keeps_whole_sessions(spec: str, seed: int, block: int | None) -> None:
    load = load_workload(spec)
    again = resampled(load, seed, block=block)
    assert again.rows == resampled(load, seed, block=block).rows

    def shapes(of: Workload) -> list[tuple[Any, ...]]:
        return [
            tuple((r.num_prompt_tokens, r.num_output_tokens, r.think_s, len(r.after), r.prefix_lengths) for r in one)
            for one in ([of.rows[place] for place in places] for places in sessions_of(of.rows))
        ]

    assert set(shapes(again)) <= set(shapes(load)) and len(shapes(again)) == len(shapes(load))
    # Copies share no more than the originals did: what one session shares with another is a prefix of all.
    own: dict[int, set[str]] = {}
    for row in again.rows:
        for prefix_id in row.prefix_ids[1 if "prefix=7" in spec else 0 :]:
            own.setdefault(prefix_id, set()).add(str(row.session_id or row.program_id))
    assert all(len(owners) == 1 for owners in own.values())
    begins = [r.arrival_ns for r in again.rows if not r.after]
    assert max(begins) == pytest.approx(max(r.arrival_ns for r in load.rows if not r.after), abs=2)


def test_resampling_draws_arrivals_too_and_seeds_differ() -> None:
    load = load_workload("synthetic:rate=5,n=400,burstiness=0.2,prompt=uniform(1,999)")
    drawn = [resampled(load, seed) for seed in range(3)]
    assert len({d.hash for d in (load, *drawn)}) == 4
    assert all(d.rate == pytest.approx(load.rate, rel=1e-6) for d in drawn)
    cvs = [inspect(d).gap_cv for d in (load, *drawn)]
    assert all(cv is not None and 1.4 < cv < 3.2 for cv in cvs)
    with pytest.raises(WorkloadError, match="block must be a whole number of at least 1"):
        resampled(load, 0, block=0)


def test_no_copy_of_a_block_finds_its_own_prompts_in_the_cache() -> None:
    """As in Mooncake's traces, whose rows know of no session: hash ids alone say that turns go on from each other."""
    ids = [tuple(range(10 * talk, 10 * talk + turn)) for talk in range(8) for turn in range(1, 5)]
    rows = tuple(
        WorkloadRow(place * 10**9, 16 * len(own), 1, prefix_ids=own, prefix_block_size=16)
        for place, own in enumerate(ids)
    )
    for seed in range(20):
        drawn = [row.prefix_ids for row in resampled(Workload("talks", rows, "talks"), seed, block=8).rows]
        firsts = [own for own in drawn if len(own) == 1]
        assert len(firsts) == len(set(firsts)), "two copies of a first turn are two prompts"
        for place in range(len(drawn) - 1):
            this, following = drawn[place], drawn[place + 1]
            if (place + 1) % 8 and len(following) == len(this) + 1:
                assert following[:-1] == this, "within a block turns still go on from each other"


def test_what_was_there_before_a_block_may_be_found_by_every_copy_of_it() -> None:
    rows = [WorkloadRow(i * 10**9, 32, 1, prefix_ids=(7, 100 + i), prefix_block_size=16) for i in range(40)]
    drawn = resampled(Workload("x", tuple(rows), "x"), 3, block=1).rows
    kept = [row for row in drawn if row.prefix_ids[0] == 7]
    assert len(kept) > 35, "only copies of the row that brought it have it anew"
    assert len({row.prefix_ids for row in drawn}) == 40


def test_a_longer_workload_goes_on_from_a_shorter_one() -> None:
    load = load_workload("synthetic:rate=5,n=40,prompt=uniform(1,999)")
    three, short = resampled(load, 1, num=120), resampled(load, 1, num=10)
    assert len(three) == 120 and len(short) == 10
    assert three.rate == pytest.approx(load.rate) == short.rate
    lengths = [[row.num_prompt_tokens for row in one.rows] for one in (three, short)]
    assert lengths[0][:10] == lengths[1]
    with pytest.raises(WorkloadError, match="num must be a whole number of at least 1, not 0"):
        resampled(load, 0, num=0)


# Merging ----------------------------------------------------------------------------------------------------------


@quick
@given(specs=st.lists(st.one_of(sessions, programs), min_size=1, max_size=3))
def test_merging_keeps_order_rows_and_what_is_shared(specs: list[str]) -> None:
    loads = [load_workload(spec) for spec in specs]
    both = merge(loads)
    assert len(both) == sum(map(len, loads))
    assert all(a.arrival_ns <= b.arrival_ns for a, b in pairwise(both.rows))
    for number, load in enumerate(loads, start=1):
        label = f"{number}/" if number > 1 else ""
        mine = [r for r in both.rows if str(r.row_id).startswith(label) and (label or "/" not in str(r.row_id))]
        assert [(r.arrival_ns, r.num_prompt_tokens) for r in mine] == [
            (r.arrival_ns, r.num_prompt_tokens) for r in load.rows
        ]
        assert prefix_reuse(mine) == prefix_reuse(load.rows)
    hits = sum((prefix_reuse(w.rows) or 0) * sum(r.num_prompt_tokens or 0 for r in w.rows) for w in loads)
    assert (prefix_reuse(both.rows) or 0) * sum(r.num_prompt_tokens or 0 for r in both.rows) == pytest.approx(hits)


def test_merging_on_the_command_line_and_what_is_not_merged() -> None:
    load = load_workload("synthetic:n=3,client=a + synthetic:n=2,client=b,rate=9")
    assert [r.client_id for r in load.rows] == ["b", "b", "a", "a", "a"]
    assert load.name == load.source == "synthetic:n=3,client=a + synthetic:n=2,client=b,rate=9"
    assert load.notes[0].startswith("2 synthetic workloads have seed 0: what they draw alike")
    assert not load_workload("synthetic:n=3,seed=1 + synthetic:n=2,seed=2").notes
    one = load_workload("synthetic:n=3")
    with pytest.raises(WorkloadError, match="is a closed loop; merge first"):
        merge([one, one.closed(2)])
    with pytest.raises(WorkloadError, match="there is no workload to merge"):
        merge([])


# Prompts that are too long ----------------------------------------------------------------------------------------


def test_prompts_that_are_too_long_are_refused_cut_or_left_out() -> None:
    rows = tuple(
        WorkloadRow(0, n, 30, row_id=f"x{i}", after=(f"x{i - 1}",) if i else (), prefix_ids=(0,), prefix_block_size=64)
        for i, n in enumerate((50, 99, 100, 400, 80))
    )
    found: dict[str, Any] = {}
    for how in ("refuse", "clip", "drop"):
        load = Workload("w", rows, "w", too_long=how)
        found[how] = run_arm(EngineConfig(), load, backend=FakeBackend(max_model_len=100), declared="model")
    said = "2 of 5 prompts left no room for an output in 100 tokens and were"
    assert [r.status for r in found["refuse"].requests] == ["finished"] * 2 + ["refused"] * 2 + ["finished"]
    assert found["refuse"].notes == []
    assert [r.num_prompt_tokens for r in found["clip"].requests] == [50, 99, 70, 70, 80]
    assert {r.status for r in found["clip"].requests} == {"finished"}
    assert found["clip"].notes == [f"{said} cut (the longest has 400)"]
    assert [r.num_prompt_tokens for r in found["drop"].requests] == [50, 99, 80]
    assert found["drop"].notes == [f"{said} left out (the longest has 400)"]
    hits = [r.num_cached_tokens for r in found["clip"].requests]
    assert hits[2] == hits[3] == 64  # the beginning stays, and what it shares
    for values in ({"too_long": "cut"}, {"too_long": None}):
        with pytest.raises(WorkloadError, match=r"too_long is .*; expected one of refuse, clip, drop"):
            Workload("w", rows, "w", **values)
    with pytest.raises(WorkloadError, match="all 5 prompts of workload 'w' are too long for 10 tokens"):
        fitted(Workload("w", rows, "w", too_long="drop"), 10)


def test_given_and_lazy_prompts_are_cut_too() -> None:
    row = WorkloadRow(0, 60, 5, prompt=list(range(60)))
    cut, notes = fitted(Workload("w", (row,), "w", too_long="clip"), 40)
    assert cut.held()[0].prompt == list(range(35)) and len(notes) == 1
    spec = "synthetic:n=30,prompt=uniform(1,90),output=3"
    short = sum((r.num_prompt_tokens or 0) < 40 for r in load_workload(spec).rows)
    for how, num in (("clip", 30), ("drop", short)):
        both = (Workload("w", load_workload(spec, lazy=lazy).rows, "w", too_long=how) for lazy in (True, False))
        lazy, held = (fitted(load, 40)[0] for load in both)
        assert tuple(lazy.rows) == held.rows and len(lazy) == len(held) == num < 30 + (how == "clip")
        assert max(r.num_prompt_tokens or 0 for r in held.rows) < 40


def test_the_hash_tells_how_rows_are_offered() -> None:
    load = load_workload("synthetic:n=5")
    others = [load.closed(2), load.closed(3), Workload("w", load.rows, "w", too_long="clip"), load.closed(2, think_s=1)]
    assert len({w.hash for w in (load, *others)}) == 5
    assert {w.arrivals for w in others} == {"closed", "open"}
