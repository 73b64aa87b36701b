"""What routers see of replicas: figures, cached prefixes, and nothing that could be written."""

from __future__ import annotations

import random
from typing import Any

import pytest

from batchwright import (
    Engine,
    EngineConfig,
    Fleet,
    Request,
)
from fleet_toolbox import INSTALLED, MS, To, drive, make_fleet, run_to
from toolbox import make_request


def test_a_step_under_way_is_seen_without_its_end() -> None:
    """At 0.5 ms the request that ends at 1 ms is still there, and its prompt still pending."""
    seen: list[tuple[int, int, int, int]] = []

    def look(fleet: Any, request: Request) -> int:
        replica = fleet[0]
        seen.append((replica.num_waiting, replica.num_running, replica.outstanding_tokens, replica.free_blocks))
        return 1

    with make_fleet(2, To({"late": look, "later": look})) as fleet:
        requests = [
            make_request("0:a", 10, 1),
            make_request("late", 4, 1, arrival_ns=MS // 2),
            make_request("later", 4, 1, arrival_ns=3 * MS // 2),
        ]
        drive(fleet, requests)
    assert seen == [(0, 1, 10, 61), (0, 0, 0, 64)]


def test_figures_of_a_view_are_those_of_the_replica() -> None:
    """Waiting, running and outstanding tokens, through admissions, chunks, evictions and ends, against a count."""
    rng = random.Random(5)

    def count(fleet: Any, request: Request) -> int:
        for replica in fleet:
            scheduler = own.replicas[replica.index].scheduler
            inbox = [r for r, _ in own.replicas[replica.index].inbox.values()]
            everybody = [*scheduler.waiting, *scheduler.running, *inbox]
            assert replica.num_requests == len(everybody) == replica.num_waiting + replica.num_running
            assert replica.num_waiting == len(scheduler.waiting) + len(inbox)
            assert replica.outstanding_tokens == sum(r.num_pending for r in everybody)
            assert replica.kv_usage == 1 - scheduler.blocks.num_free / 24
            assert (replica.num_blocks, replica.block_size) == (24, 4)
            most.append(replica.outstanding_tokens)
        return rng.randrange(len(fleet))

    most: list[int] = []
    requests = [
        make_request(f"r{i}", rng.randint(1, 40), rng.randint(1, 20), arrival_ns=i * MS // 3) for i in range(60)
    ]
    router = To({r.request_id: count for r in requests})
    with make_fleet(2, router, blocks=24, max_num_batched_tokens=16) as own:
        for request in requests[:40]:
            run_to(own, request.arrival_ns)
            own.add_request(request)
        for request in requests[:40:3]:  # some wait, some run, some are not taken yet
            if any(replica.holds(request.request_id) for replica in own.replicas):
                own.abort(request.request_id)
        drive(own, requests[40:])
        preempted = sum(r.num_preemptions for r in requests)
    assert preempted > 0 and max(most) > 100 and 0 in most


def test_a_view_shows_nothing_that_could_be_written() -> None:
    caught: list[str] = []

    def write(fleet: Any, request: Request) -> int:
        for thing, name in ((fleet, "now"), (fleet, "rng"), (fleet[0], "num_waiting"), (fleet[0], "index")):
            with pytest.raises(AttributeError):
                setattr(thing, name, 7)
            caught.append(name)
        with pytest.raises(TypeError):
            fleet[0] = fleet[1]
        return 0

    with make_fleet(2, To({"a": write})) as fleet:
        drive(fleet, [make_request("a", 4, 1)])
        assert "2 at 0.000 s" in repr(fleet._view) and "0 waiting" in repr(fleet._view[1])
    assert len(caught) == 4


def test_a_cached_prefix_is_that_of_each_replica_and_changes_nothing() -> None:
    prompt = list(range(20))
    asked: list[list[int]] = []

    def look(fleet: Any, request: Request) -> int:
        asked.append([replica.num_cached(request) for replica in fleet])
        asked.append([replica.num_cached(request) for replica in reversed(list(fleet))])
        return 2

    with make_fleet(3, To({"b": look, "c": look})) as fleet:
        requests = [
            make_request("0:long", [*prompt, 7, 8, 9], 1),
            make_request("1:short", [*prompt[:8], 1, 1, 1], 1),
            make_request("b", [*prompt, 5], 2, arrival_ns=5 * MS),
            make_request("c", prompt, 2, arrival_ns=9 * MS),
        ]
        drive(fleet, requests)
        # Of 20 tokens one is always computed: at most four blocks are taken from a cache.
        assert asked == [[20, 8, 0], [0, 8, 20], [16, 8, 16], [16, 8, 16]]
        assert [r.num_cached for r in requests] == [0, 0, 0, 16]


def test_asking_about_a_request_that_waits_elsewhere_leaves_it_as_it_is() -> None:
    """What it found in the cache of its own replica is true of that one only."""
    with make_fleet(2, To()) as fleet:
        first, second = make_request("0:a", [1] * 20, 1), make_request("0:b", [1] * 20, 1, arrival_ns=5 * MS)
        drive(fleet, [first])
        fleet.replicas[0].scheduler.add(second)
        hits = fleet.replicas[0].scheduler.blocks.lookup(second)
        assert len(hits) == 4
        assert [replica.num_cached(second) for replica in fleet._view] == [16, 0]
        assert fleet.replicas[0].scheduler.blocks.lookup(second) is hits and len(hits) == 4


def test_a_cache_that_is_off_holds_nothing() -> None:
    found: list[int] = []

    def look(fleet: Any, request: Request) -> int:
        found.append(fleet[0].num_cached(request))
        return 0

    router = To({"b": look})
    with make_fleet(1, router, prefix_cache={"enabled": False}) as fleet:
        drive(fleet, [make_request("0:a", [1] * 9, 1), make_request("b", [1] * 9, 1, arrival_ns=5 * MS)])
    assert found == [0]


def test_a_leap_ends_before_a_look_and_not_after_it() -> None:
    """A block that a step fills can be hit when it has ended, whether steps before it were taken at once or not."""
    values = {"policy": "vllm_v1", "prefix_cache": {"visible": "computed"}, "max_num_batched_tokens": 64}
    config = EngineConfig.parse({"replicas": 1, "router": "round_robin", **values})
    first = make_request("a", 8, 60)
    with Engine(EngineConfig.parse(values)) as engine:
        engine.add_request(first)
        while engine.has_unfinished():
            engine.step()
    asked = Request("b", [*first.prompt_token_ids, *first.output_token_ids])
    found: dict[bool, list[int]] = {True: [], False: []}
    for leap, seen in found.items():
        for offset in range(0, 17, 2):
            with Fleet(config, installed=INSTALLED) as fleet:
                fleet.add_request(make_request("a", 8, 60))
                for look in range(25):
                    run_to(fleet, (offset + 17 * look) * MS, leap=leap)
                    seen.append(fleet._view[0].num_cached(asked))
                assert (fleet.replicas[0].scheduler.num_leapt > 10) == leap
    assert found[True] == found[False] and set(found[True]) == {0, 16, 32, 48, 64}
