"""The routers that come with Batchwright: what each promises, its card and its section in the docs."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from batchwright import ConfigError, Router
from batchwright.card import card_of, cost_of, place_of
from batchwright.plugins import load_plugins
from batchwright.resolve import resolve_router
from batchwright.routers.plugin import register_routers
from fleet_toolbox import MS, drive, make_fleet, run_to
from toolbox import make_request

OWN = register_routers()
PAGE = Path(__file__).parents[2] / "docs" / "fleets.md"


def router(spec: str) -> Router:
    return resolve_router(spec)[1]


def test_they_arrive_by_the_entry_point_of_a_stranger() -> None:
    plugins = load_plugins()
    assert {n for n in plugins.routers if plugins.origin["routers", n] == "routers"} == set(OWN)
    assert set(OWN) == {"round_robin", "least_outstanding", "random", "prefix_aware"}
    with pytest.raises(ConfigError, match="unknown router 'round_robin'"):
        resolve_router("round_robin", load_plugins(["routers"]))


@pytest.mark.parametrize("name", sorted(OWN))
def test_each_has_a_card_and_a_section(name: str) -> None:
    found = card_of(OWN[name])
    assert found is not None and found[1] is OWN[name]
    for where in found[0].rules.values():
        place = place_of(OWN[name], where)
        assert place is not None and place.startswith(f"{name}.py:")
    assert found[0].evidence and "O(" in (cost_of(OWN[name]) or "")
    text = PAGE.read_text(encoding="utf-8")
    assert f"### {name}\n" in text and f"table: router {name} -->" in text and f"table: card of {name} -->" in text


def test_round_robin_gives_each_replica_one_of_any_n_in_a_row() -> None:
    with make_fleet(3, router("round_robin")) as fleet:
        places = drive(fleet, [make_request(f"r{i}", 4 + 10 * (i % 2), 2, arrival_ns=i * MS // 5) for i in range(14)])
    assert all(sorted(places[i : i + 3]) == [0, 1, 2] for i in range(12))


@pytest.mark.parametrize("by", ["requests", "tokens"])
def test_least_outstanding_takes_nobody_who_has_more_than_another(by: str) -> None:
    rng = random.Random(3)
    with make_fleet(3, router(f"least_outstanding:by={by}")) as fleet:
        now = 0
        for number in range(80):
            now += rng.choice([0, MS // 3, 2 * MS])
            run_to(fleet, now)
            before = [r.num_requests if by == "requests" else r.outstanding_tokens for r in fleet._view]
            place = fleet.add_request(make_request(f"r{number}", rng.randint(1, 60), rng.randint(1, 9), arrival_ns=now))
            assert before[place] == min(before)
        drive(fleet, [])


def test_least_outstanding_lets_equals_take_turns() -> None:
    """Idle replicas: all are equal each time, and none gets two before each got one."""
    with make_fleet(3, router("least_outstanding")) as fleet:
        places = drive(fleet, [make_request(f"r{i}", 4, 1, arrival_ns=i * 10 * MS) for i in range(9)])
    assert places == [0, 1, 2] * 3


def test_random_gives_each_its_share_and_follows_the_seed() -> None:
    def places(seed: int) -> list[int]:
        with make_fleet(4, router("random"), seed=seed) as fleet:
            return drive(fleet, [make_request(f"r{i}", 4, 1, arrival_ns=i * MS) for i in range(400)])

    first = places(1)
    assert first == places(1) != places(2)
    assert all(70 < count < 130 for count in Counter(first).values()) and len(Counter(first)) == 4


def test_two_choices_make_the_longest_queue_shorter() -> None:
    def longest(spec: str) -> int:
        most = 0
        with make_fleet(8, router(spec), blocks=1000, max_num_seqs=1) as fleet:
            for number in range(160):
                fleet.add_request(make_request(f"r{number}", 4, 1))
                most = max(most, *(replica.num_requests for replica in fleet._view))
            drive(fleet, [])
        return most

    one, two, all_of_them = (longest(f"random:choices={n}") for n in (1, 2, 100))
    assert one > two + 3 and two > all_of_them == 20


def conversations(turns: int, people: int, gap_ns: int) -> list[Any]:
    """Each prompt is what was said before, and eight new tokens."""
    said: dict[int, list[int]] = {person: [100 + person] * 16 for person in range(people)}
    requests = []
    for turn in range(turns):
        for person in range(people):
            said[person] = [*said[person], *[200 + turn] * 8]
            when = (turn * people + person) * gap_ns
            requests.append(make_request(f"{person}-{turn}", said[person], 2, arrival_ns=when))
    return requests


def test_prefix_aware_keeps_a_conversation_where_its_cache_is() -> None:
    people = 5
    with make_fleet(3, router("prefix_aware"), blocks=200) as fleet:
        requests = conversations(6, people, 4 * MS)
        places = drive(fleet, requests)
    homes = places[:people]
    assert set(homes) == {0, 1, 2}, "newcomers are spread"
    assert places == homes * 6
    # All blocks of the turn before are hits.
    assert [r.num_cached for r in requests[people:]] == [(r.num_prompt_tokens - 8) // 4 * 4 for r in requests[people:]]


def test_prefix_aware_leaves_a_replica_whose_queue_is_longer_than_what_its_cache_saves() -> None:
    prompt = [5] * 40

    def place(load_weight: float, queue: int) -> int:
        spec = f"prefix_aware:load_weight={load_weight}"
        with make_fleet(2, router(spec), blocks=200, max_num_batched_tokens=16) as fleet:
            first = make_request("first", prompt, 1)
            assert drive(fleet, [first]) == [0]
            fleet.replicas[0].route(make_request("ahead", queue, 1, arrival_ns=fleet.now_ns), None)
            return fleet.add_request(make_request("second", [*prompt, 6], 1, arrival_ns=fleet.now_ns))

    # The cache of replica 0 holds 40 tokens of it.
    assert [place(1, queue) for queue in (1, 39, 41)] == [0, 0, 1]
    assert [place(0.5, queue) for queue in (79, 81)] == [0, 1]
    assert place(0, 500) == 0


@pytest.mark.parametrize(("threshold", "used"), [(0.3, {0, 1, 2}), (0.0, {0}), (1.0, {0, 1, 2})])
def test_prefix_aware_spreads_newcomers_that_share_only_their_first_tokens(threshold: float, used: set[int]) -> None:
    """Nothing waits, and all begin alike: 8 of 32 tokens, which whoever came first has left in one cache."""
    spec = f"prefix_aware:cache_threshold={threshold}"
    with make_fleet(3, router(spec), blocks=200) as fleet:
        prompts = [[7] * 8 + [100 + i] * 24 for i in range(9)]
        places = drive(fleet, [make_request(f"r{i}", p, 1, arrival_ns=i * 10 * MS) for i, p in enumerate(prompts)])
        again = [*prompts[4], 5]  # 32 of 33 are cached where it was
        last = drive(fleet, [make_request("again", again, 1, arrival_ns=100 * MS)])
    assert set(places) == used
    if threshold < 1:
        assert last == [places[4]]


def test_prefix_aware_spreads_what_shares_nothing() -> None:
    with make_fleet(4, router("prefix_aware"), blocks=500) as fleet:
        places = drive(fleet, [make_request(f"r{i}", 30, 3, arrival_ns=i * MS // 4) for i in range(80)])
    assert all(count >= 15 for count in Counter(places).values()) and len(Counter(places)) == 4


def test_parameters_are_checked() -> None:
    for spec, words in (
        ("random:choices=0", "greater than or equal to 1"),
        ("least_outstanding:by=blocks", "'requests' or 'tokens'"),
        ("prefix_aware:load_weight=-1", "greater than or equal to 0"),
        ("prefix_aware:cache_threshold=1.5", "less than or equal to 1"),
        ("prefix_aware:weight=1", "unknown parameter 'weight'; did you mean 'load_weight'"),
        ("round_robin:x=1", "it takes no parameters"),
        ("prefix_awar", "did you mean 'prefix_aware'"),
    ):
        with pytest.raises(ConfigError, match=words):
            resolve_router(spec)
    with pytest.raises(ConfigError, match=r"router: use must name a router, not None; as in router: \{use"):
        resolve_router({"load_weight": 1})
