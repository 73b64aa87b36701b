"""``benchmarks/reproduce``: a small part of each result comes out, and what is committed is what the page says."""

from __future__ import annotations

import importlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastserve_tails
import hrrn_sessions
import sarathi_capacity
import sjf_budget
import vtc_clients
from batchwright.lab import load_workload
from batchwright.lab.designs.capacity import capacity
from lab.hand import request, run
from reproduction import RESULTS, Claim, Estimate, Reproduction, above, less, main, times

SCRIPTS: Mapping[str, Any] = importlib.import_module("all").SCRIPTS
ROOT = Path(__file__).parents[2]

ROBUST = {
    "sarathi_capacity": ["stall-free chunks gain", "the gain is larger under the strict bound"],
    "hrrn_sessions": ["heavy: mean TTFT of HRRN below FCFS's", "apps: mean TTFT of HRRN below FCFS's"],
    "vtc_clients": [
        "the difference of service at the end is less",
        "within the bound",
        "it grows with time under FCFS",
        "FCFS serves in proportion",
        "who sends less waits less",
    ],
    "sjf_budget": ["with 8 seats, shortest-first saves", "with 256 seats nobody waits", "the gain in TTFT shrinks"],
    "victim_tax": ["no tax at 2,800 blocks", "the tax rises"],
    "fastserve_tails": ["latency a token is less", "larger under the heaviest tail"],
}
"""Claims that hold in a small part already, by the beginning of their words or what they say."""


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_small_part_comes_out(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    reproduce, _ = SCRIPTS[name]
    assert main(reproduce, None, ["--quick", "--json", str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert found["name"] == name and found["seeds"] == 1
    for part in ROBUST[name]:
        (claim,) = [c for c in found["claims"] if part in c["words"]]
        assert claim["holds"], claim["words"]
        assert f"holds: {claim['words']}" in shown
    assert found["source"] in shown and f"comes out: {found['comes_out']} (one seed" in shown
    assert all(row["shown"] in shown and row["theirs"] in shown for row in found["rows"])


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_what_is_committed_is_whole(name: str) -> None:
    """More than one seed, figures that follow from their values, and the verdict that follows from the claims."""
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    assert found["name"] == name and found["seeds"] >= 3
    for row in found["rows"]:
        estimate = Estimate(tuple(row["ours"]["by_seed"]))
        assert len(estimate.values) == found["seeds"]
        assert row["ours"]["mean"] == pytest.approx(estimate.mean)
        assert (row["ours"]["low"], row["ours"]["high"]) == pytest.approx((estimate.low, estimate.high))
    again = Reproduction(name, "", "", found["kind"], (), (), (), found["seeds"])
    again.claims += [Claim(c["words"], c["holds"]) for c in found["claims"]]
    assert found["comes_out"] == again.comes_out
    text = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    assert f"<!-- table: reproduce {name} -->" in text and f"`{name}.py`" in text
    assert not re.search(r'"/|[ =(]/\w+/', json.dumps(found))  # no path of the machine that it ran on


def test_what_is_committed_is_of_one_run_of_committed_code() -> None:
    found = [json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")) for name in SCRIPTS]
    (one,) = {result["commit"] for result in found}
    assert re.fullmatch("[0-9a-f]{40}", one)  # with files that differ it would end in -dirty
    assert len({result["date"] for result in found}) <= 2  # a run may go past midnight
    text = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    assert text.count(f"at commit `{one[:12]}`") == len(SCRIPTS)


def test_nothing_is_written_by_a_quick_look(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    monkeypatch.setattr(Reproduction, "write", lambda self, path: written.append(path))

    def reproduce(seeds: int, quick: bool, jobs: int) -> Reproduction:
        found = Reproduction("nothing", "a title", "a source", "direction", (), (), (), seeds)
        found.claim("quick" if quick else "whole", holds=True)
        return found

    assert main(reproduce, None, ["--quick"]) == 0 and written == []
    assert "holds: quick" in capsys.readouterr().out
    assert main(reproduce, None, ["--quick", "--json", str(tmp_path / "x.json")]) == 0
    assert main(reproduce, None, [], seeds=7) == 0
    assert written == [tmp_path / "x.json", RESULTS / "nothing.json"]
    assert "holds: whole" in (shown := capsys.readouterr().out) and "(7 seeds" in shown
    with pytest.raises(SystemExit):
        main(reproduce, None, ["--seeds", "0"])
    assert "--seeds must be at least 1, not 0" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(reproduce, None, ["--jobs", "0"])
    assert "--jobs must be at least 1, not 0" in capsys.readouterr().err


# What is said of figures --------------------------------------------------------------------------------------------


def test_intervals_are_students() -> None:
    estimate = Estimate((1.0, 2.0, 3.0))
    assert estimate.mean == 2 and estimate.interval == pytest.approx(
        (2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3))
    )
    assert estimate.text(1, "x") == "2.0x (-0.5 to 4.5)"
    assert Estimate((5.0,)).interval is None and Estimate((5.0,)).text(0, "%") == "5%"
    assert Estimate((1.0, 1.0)).text(2, "") == "1.00"


def test_above_is_beyond_chance_and_seed_by_seed() -> None:
    assert above([10, 20, 30], [9, 19, 29])  # far apart between seeds, always one apart within them
    assert not above([10, 20, 30], [9, 25, 29])
    assert not above([1, 2, 3], [1, 2, 3])
    assert times([2, 4], [1, 2]).values == (2, 2) and less([4], [1]).values == (0.75,)


@pytest.mark.parametrize(
    ("held", "words"),
    [([True, True], "same order"), ([True, False], "partly: 1 of 2 claims hold"), ([False, False], "does not")],
)
def test_the_verdict_follows_from_the_claims(held: list[bool], words: str) -> None:
    found = Reproduction("x", "", "", "order", (), (), (), 1)
    for holds in held:
        found.claim("words", holds)
    assert found.comes_out == words and str(found).count("DOES NOT HOLD") == held.count(False)


# Parts of the scripts -----------------------------------------------------------------------------------------------


def test_a_capacity_is_each_seeds_largest_rate_that_keeps_the_bounds() -> None:
    config = sarathi_capacity.arms("mistral-7b-a100", "strict", sarathi_capacity.DATA["openchat_sharegpt4"])
    load = load_workload("synthetic:rate=2,n=20,prompt=500,output=5")
    found = capacity(config, load, "itl_p99<1,scheduling_delay_p50<=0.02", seeds=2, tolerance=0.5)
    for arm in config:
        rates = sarathi_capacity.edges(found, arm)
        assert [rate > 0 for rate in rates] == [True, True]
        assert rates == [2 * low for low, _ in found.of(arm).by_seed.values() if low]


def test_own_parts_are_alike_whatever_the_system_prompt_and_nobody_alone_matches() -> None:
    """Match and remainder do not depend on each other in the load of many applications."""
    load = hrrn_sessions.LOADS["apps"]
    rows = list(load.workload(400, 100).rows)
    alone = [row for row in rows if row.session_id is None]
    assert 0.05 < len(alone) / len(rows) < 0.15 and not any(row.prefix_ids for row in alone)
    own: dict[int, list[int]] = {tokens: [] for tokens in hrrn_sessions.SYSTEM_PROMPTS}
    said: dict[str, int] = {}
    first: dict[str, int] = {}
    for row in rows:
        if row.session_id is None:
            continue
        assert row.num_prompt_tokens is not None
        shared = first.setdefault(row.session_id, row.prefix_lengths[0])
        own[shared].append(row.num_prompt_tokens - said.get(row.session_id, shared))
        said[row.session_id] = row.num_prompt_tokens + 1  # and its answer
    medians = [np.median(parts) for parts in own.values()]
    assert all(len(parts) > 400 for parts in own.values()) and min(medians) > 450 and max(medians) < 800
    assert np.mean([row.num_prompt_tokens for row in rows]) == pytest.approx(16_500, rel=0.25)
    # Users meet the groups and the lonely ones side by side.
    assert {first[row.session_id] for row in rows[:60] if row.session_id} == set(own)
    assert any(row.session_id is None for row in rows[:60])


def test_service_counts_prompts_when_admitted_and_outputs_as_they_come() -> None:
    few = request(0, times_ms=[2000, 3000], client_id="c0", first_scheduled_ns=10**9)
    many = request(1, times_ms=[500], client_id="c1", first_scheduled_ns=0)
    both = run([few, many])
    at_s = np.array([0.5, 1.0, 2.5, 9.0])
    assert vtc_clients.service(both, "c0", at_s).tolist() == [0, 256, 258, 260]
    assert vtc_clients.service(both, "c1", at_s).tolist() == [258] * 4
    assert vtc_clients.first_token_s(both, "c0", 9) == 2


def test_the_two_clients_come_at_their_rates() -> None:
    rows = vtc_clients.two_clients(60, 3).rows
    count = {client: sum(row.client_id == client for row in rows) for client in ("c0", "c1")}
    assert count == {"c0": 90, "c1": 180}
    assert [row.arrival_ns for row in rows] == sorted(row.arrival_ns for row in rows)


def test_the_mix_is_half_short_and_comes_at_its_rate() -> None:
    rows = sjf_budget.mixed(2000, 280, 1).rows
    assert sum(row.num_prompt_tokens == 32 for row in rows) == 1000
    assert all(row.predicted_output_tokens == row.num_prompt_tokens for row in rows)
    assert max(row.arrival_ns for row in rows) / 1e9 == pytest.approx(2000 / 280, rel=0.1)
    at_once = sjf_budget.mixed(200, math.inf, 1).rows
    assert {row.arrival_ns for row in at_once} == {0}
    assert 30 < sum(row.num_prompt_tokens == 32 for row in list(at_once)[:100]) < 70  # shuffled


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.35])
def test_lengths_keep_their_mean_whatever_the_tail(sigma: float) -> None:
    rows = load_workload(f"synthetic:rate=1,n=20000,{fastserve_tails.lengths(sigma)}").rows
    assert np.mean([row.num_output_tokens for row in rows]) == pytest.approx(338, rel=0.03)
    assert np.mean([row.num_prompt_tokens for row in rows]) == pytest.approx(161, rel=0.03)


def test_the_rate_at_the_bound_lies_between_the_rates_that_were_run() -> None:
    assert fastserve_tails.rate_at([0.1, 0.2, 0.4], (1.0, 2.0, 3.0)) == pytest.approx(2.5)
    assert fastserve_tails.rate_at([0.1, 0.2], (1.0, 2.0)) == 2
    assert fastserve_tails.rate_at([0.5, 0.9], (1.0, 2.0)) == 1
