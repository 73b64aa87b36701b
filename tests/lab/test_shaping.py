"""What is made of a workload: sessions and programs, shapes of the rate, slices, rules, resampling, merging."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright import EngineConfig
from batchwright.errors import WorkloadError
from batchwright.lab import (
    ArrivalSpec,
    Workload,
    WorkloadRow,
    load_workload,
    merge,
    prefix_reuse,
    resampled,
    run_arm,
    with_arrivals,
    with_rules,
)
from batchwright.lab.arrival_times import STEADY, Shape, draw_times
from batchwright.lab.fitting import fitted
from batchwright.lab.inspection import inspect
from batchwright.lab.prompts import Prompts
from batchwright.lab.row_rules import read_rules
from batchwright.lab.sessions import sessions_of
from batchwright.request import SLO
from fake_backend import FakeBackend

S = 1_000_000_000
quick = settings(max_examples=25, deadline=None, derandomize=True, database=None)
sessions = st.builds(
    "synthetic:rate=3,n={},turns={},think={},prompt=uniform(1,40),output=uniform(1,40),prefix={},prefixes=2,seed={}".format,
    st.integers(1, 8),
    st.sampled_from(["2", "uniform(1,4)"]),
    st.sampled_from(["0", "exponential(2)", "uniform(1,3)", "lognormal(2,1,9)"]),
    st.sampled_from([0, 7]),
    st.integers(0, 99),
)
programs = st.builds(
    "synthetic:rate=3,n={},calls={},width={},tool=0.5,prompt=uniform(1,40),output=uniform(1,40),seed={}".format,
    st.integers(1, 5),
    st.sampled_from(["1", "2", "3", "uniform(1,4)"]).filter(lambda text: text != "1"),
    st.integers(1, 3),
    st.integers(0, 99),
)


def tokens(load: Workload) -> dict[str, list[int]]:
    maker = Prompts(load.rows, 32000)
    return {str(row.row_id): maker.token_ids(place, row).tolist() for place, row in enumerate(load.rows)}


# Sessions and programs -------------------------------------------------------------------------------------------


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


# Arrival times ---------------------------------------------------------------------------------------------------


@quick
@given(
    num=st.integers(1, 300),
    rate=st.floats(0.01, 1e4),
    burstiness=st.floats(0.05, 50),
    seed=st.integers(0, 999),
    shape=st.sampled_from([STEADY, Shape("constant"), Shape("ramp", (1, 3)), Shape("ramp", (2, 0))]),
)
def test_the_last_arrival_is_at_num_over_rate_whatever_the_gaps(
    num: int, rate: float, burstiness: float, seed: int, shape: Shape
) -> None:
    times = draw_times(num, rate, burstiness, shape, np.random.default_rng(seed))
    assert times[-1] == pytest.approx(num / rate * 1e9, rel=1e-6, abs=2)
    assert (np.diff(times) >= 0).all() and times[0] >= 0


def test_shapes() -> None:
    constant = np.diff([r.arrival_ns for r in load_workload("synthetic:rate=4,n=50,shape=constant").rows])
    assert set(constant) == {S // 4}
    times = np.array([r.arrival_ns / 1e9 for r in load_workload("synthetic:rate=10,n=3000,shape=onoff(2,3)").rows])
    assert (times % 5 <= 2 + 1e-9).all()
    assert len(times) / times.max() == pytest.approx(10, rel=0.02)
    assert np.histogram(times, bins=[0, 2])[0][0] == pytest.approx(50, rel=0.3)  # 25 a second while they come
    for ends, rates in (((1, 3), (5.25, 14.75)), ((2, 0), (19.5, 0.5)), ((4, 4), (10, 10))):
        times = Shape("ramp", ends).times_s(np.arange(1, 20001) / 20000, 2000)
        counts = np.histogram(times, bins=20, range=(0, 2000))[0]
        assert counts[[0, -1]] / 100 == pytest.approx(rates, abs=0.02)


def test_new_arrivals_leave_the_rest_as_it_is() -> None:
    load = load_workload("synthetic:rate=inf,n=8,turns=3,think=0.5")
    spec = ArrivalSpec.parse("rate=2,shape=constant")
    again = with_arrivals(load, spec)
    starts = [r for r in again.rows if not r.after]
    assert [r.arrival_ns for r in starts] == [S // 2 * i for i in range(1, 9)]
    assert [r.row_id for r in starts] == [r.row_id for r in load.rows if not r.after]
    assert {r.row_id: (r.after, r.num_prompt_tokens) for r in again.rows} == {
        r.row_id: (r.after, r.num_prompt_tokens) for r in load.rows
    }
    for text, words in (
        ("rate=0", "rate of arrivals is '0'"),
        ("n=3", "arrivals has no 'n'"),
        ("rate", "not key=value"),
    ):
        with pytest.raises(WorkloadError, match=words):
            ArrivalSpec.parse(text)


def test_a_rate_and_what_has_none() -> None:
    load = load_workload("synthetic:rate=4,n=40,turns=2,think=1")
    assert load.rate == pytest.approx(4)
    assert load.at_rate(10).rate == pytest.approx(10, rel=1e-6)
    assert {r.think_s for r in load.at_rate(10).rows} == {0.0, 1.0}
    with pytest.raises(WorkloadError, match="no times to stretch"):
        load_workload("synthetic:rate=inf,n=4").at_rate(3)
    for rate in (0, -1, math.nan, math.inf):
        with pytest.raises(WorkloadError, match="rate must be a finite number above 0"):
            load.at_rate(rate)


# Slices ----------------------------------------------------------------------------------------------------------


def test_slices_by_time_and_by_count() -> None:
    load = load_workload("synthetic:rate=1,n=20,shape=constant")
    assert [r.arrival_ns // S for r in load.window(5, 8).rows] == [0, 1, 2]
    assert len(load.window(0, math.inf)) == 20
    assert [r.arrival_ns // S for r in load.from_row(17).rows] == [0, 1, 2]
    for call, words in (
        (lambda: load.window(8, 5), "a window is FROM:UNTIL in seconds"),
        (lambda: load.window(math.nan, 5), "a window is FROM:UNTIL"),
        (
            lambda: load.window(100, 200),
            "nobody of workload .* arrives from 100 to 200 s; its last request arrives at 20 s",
        ),
        (lambda: load.from_row(20), "has 20 requests: skip 20 leaves none"),
        (lambda: load.from_row(-1), "skip must be a whole number of at least 0"),
    ):
        with pytest.raises(WorkloadError, match=words):
            call()


@quick
@given(spec=st.one_of(sessions, programs), data=st.data())
def test_who_waits_for_a_row_that_was_cut_off_waits_no_longer(spec: str, data: Any) -> None:
    load = load_workload(spec)
    skip, limit = data.draw(st.integers(0, len(load) - 1)), data.draw(st.integers(1, len(load)))
    part = load.from_row(skip).first(limit)
    names = {r.row_id for r in part.rows}
    for row in part.rows:
        assert names.issuperset(row.after)
    assert part.rows[0].arrival_ns == 0 or not skip
    record = run_arm(EngineConfig(), part, backend=FakeBackend(max_model_len=4096), declared="exact")
    assert all(r.status == "finished" for r in record.requests)


# Rules -----------------------------------------------------------------------------------------------------------


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


# Resampling and merging ------------------------------------------------------------------------------------------


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


# Prompts that are too long ---------------------------------------------------------------------------------------


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
