"""A fleet: events in order, requests where they were routed, and replicas that share nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from batchwright import (
    ConfigError,
    Engine,
    EngineConfig,
    Fleet,
    InvalidRequestError,
    Policy,
    Request,
    UnknownRequestError,
    hookimpl,
)
from batchwright.backend import RealClock
from batchwright.fleet.fleet import BEGIN, FINISH
from batchwright.resolve import resolve_router
from fake_backend import FakeBackend
from fleet_toolbox import INSTALLED, MS, To, drive, make_fleet, run_to
from toolbox import check_whole, expected_of, make_request


class Notes:
    """What happened where, in the order in which it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, str, str]] = []

    @hookimpl
    def step_started(self, step: Any) -> None:
        self.told.append((step.now, "begins", ",".join(r.request_id for r in (*step.running, *step.waiting))))

    @hookimpl
    def step_finished(self, step: Any) -> None:
        self.told.append((step.end, "ends", ",".join(r.request_id for r in step.batch)))


def test_events_happen_in_the_order_of_virtual_time() -> None:
    """Steps of 1 ms: replica 1 begins half a step after replica 0, and both go on in turns."""
    notes = Notes()
    with make_fleet(2, To(), plugins=[notes]) as fleet:
        drive(fleet, [make_request("0:a", 4, 3), make_request("1:b", 4, 2, arrival_ns=MS // 2)])
    assert notes.told == [
        (0, "begins", "0:a"),
        (MS // 2, "begins", "1:b"),
        (MS, "ends", "0:a"),
        (MS, "begins", "0:a"),
        (3 * MS // 2, "ends", "1:b"),
        (3 * MS // 2, "begins", "1:b"),
        (2 * MS, "ends", "0:a"),
        (2 * MS, "begins", "0:a"),
        (5 * MS // 2, "ends", "1:b"),
        (3 * MS, "ends", "0:a"),
    ]


def test_of_one_moment_ends_come_first_then_arrivals_then_beginnings() -> None:
    """Two steps end when a request arrives: it is seen after them, and runs in the step that begins then."""
    seen: list[tuple[int, int]] = []

    def look(fleet: Any, request: Request) -> int:
        seen.append((fleet[0].num_running, fleet[1].num_running))
        return 1

    notes = Notes()
    with make_fleet(2, To({"c": look}), plugins=[notes]) as fleet:
        drive(fleet, [make_request("0:a", 4, 1), make_request("1:b", 4, 2), make_request("c", 4, 1, arrival_ns=MS)])
    assert seen == [(0, 1)]  # a ended at 1 ms
    at_1_ms = [(what, who) for when, what, who in notes.told if when == MS]
    assert at_1_ms == [("ends", "0:a"), ("ends", "1:b"), ("begins", "1:b,c")]


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


def test_what_is_routed_during_a_step_waits_until_its_end() -> None:
    notes = Notes()
    with make_fleet(1, To(), plugins=[notes]) as fleet:
        drive(fleet, [make_request("0:a", 4, 2), make_request("0:b", 4, 1, arrival_ns=1)])
        assert fleet.num_steps == 2
    assert [who for _, what, who in notes.told if what == "begins"] == ["0:a", "0:a,0:b"]


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


# Requests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "router", ["round_robin", "least_outstanding", "least_outstanding:by=tokens", "random", "prefix_aware"]
)
def test_every_request_is_routed_once_and_ends_once(router: str) -> None:
    """Random workloads with short memory; tokens are those that each request would get alone."""
    for seed in range(4):
        rng = random.Random(seed)
        ended: list[str] = []

        class Ends:
            @hookimpl
            def request_finished(self, request: Request, ended: list[str] = ended) -> None:
                ended.append(request.request_id)

        requests = []
        now = 0
        for number in range(50):
            now += rng.choice([0, 0, 1, MS // 2, 3 * MS])
            head = [rng.randrange(2)] * rng.randrange(0, 20)
            requests.append(
                make_request(f"r{number}", [*head, *range(rng.randint(1, 20))], rng.randint(1, 12), arrival_ns=now)
            )
        made = resolve_router(router)[1]
        with make_fleet(rng.randint(2, 4), made, blocks=24, max_num_batched_tokens=16, plugins=[Ends()]) as fleet:
            drive(fleet, requests)
        assert sorted(ended) == sorted(r.request_id for r in requests)
        for request in requests:
            assert request.finish_reason == "length"
            assert list(request.output_token_ids) == expected_of(request)


def test_an_abort_reaches_the_replica_that_has_it() -> None:
    """Running, waiting, routed and not taken yet, in a step that is under way, and gone."""
    with make_fleet(2, To(), max_num_seqs=1) as fleet:
        running, waiting = make_request("1:running", 8, 50), make_request("1:waiting", 8, 50)
        other = make_request("0:other", 8, 5)
        for request in (running, waiting, other):
            fleet.add_request(request)
        run_to(fleet, 5 * MS // 2)
        coming = make_request("1:coming", 8, 5, arrival_ns=5 * MS // 2)
        fleet.add_request(coming)
        assert "1:coming" in fleet.replicas[1].inbox
        assert fleet.replicas[1].scheduler.in_flight is not None
        for request in (running, waiting, coming):
            output = fleet.abort(request.request_id)
            assert (output.request_id, request.finish_reason) == (request.request_id, "abort")
            with pytest.raises(UnknownRequestError, match="in any of 2 replicas"):
                fleet.abort(request.request_id)
        assert not fleet.replicas[1].has_unfinished() and fleet.replicas[0].has_unfinished()
        assert fleet.replicas[1].scheduler.blocks.num_free == 64
        drive(fleet, [make_request("1:next", 8, 2, arrival_ns=9 * MS)])
        assert other.finish_reason == "length" and other.num_output_tokens == 5
        assert coming.num_output_tokens == 0


def test_an_id_is_used_once_in_a_fleet() -> None:
    with make_fleet(2) as fleet:
        fleet.add_request(make_request("a", 4, 2))
        with pytest.raises(InvalidRequestError, match="'a' is in use"):
            fleet.add_request(make_request("a", 4, 2))  # it would go to the other replica
        drive(fleet, [])
        drive(fleet, [make_request("a", 4, 2, arrival_ns=9 * MS)])


def test_what_a_replica_refuses_is_told_or_raised() -> None:
    refused: list[tuple[str, str]] = []
    with make_fleet(2, To()) as fleet:
        fleet.on_refused = lambda request, error: refused.append((request.request_id, str(error)))
        drive(fleet, [make_request("1:huge", 400, 2), make_request("1:small", 4, 2), make_request("0:b", 4, 2)])
        assert [name for name, _ in refused] == ["1:huge"] and "the pool has 64" in refused[0][1]
        fleet.on_refused = None
        fleet.add_request(make_request("0:huge", 400, 2, arrival_ns=9 * MS))
        with pytest.raises(ValueError, match="the pool has 64"):
            drive(fleet, [])
        drive(fleet, [make_request("0:small", 4, 2, arrival_ns=10 * MS)])


# Replicas ---------------------------------------------------------------------------------------------------------


def test_each_replica_has_an_engine_and_a_policy_of_its_own() -> None:
    with Fleet(EngineConfig(replicas=3, policy={"admission": "vtc", "preemption": "cheapest"})) as fleet:
        engines = [replica.engine for replica in fleet.replicas]
        for what in ("backend", "scheduler", "clock"):
            assert len({id(getattr(engine, what)) for engine in engines}) == 3
        policies = [part.policy for engine in engines for part in engine.scheduler.policy.parts.values()]
        assert len({id(policy) for policy in policies}) == len(policies) == 6


def test_what_replicas_would_share_is_refused() -> None:
    class Mine(Policy):
        pass

    one, backend = Mine(), FakeBackend()
    config = EngineConfig(replicas=2)
    with pytest.raises(ConfigError, match="share one policy object"):
        Fleet(config, backend=FakeBackend, policy=lambda: one)
    with pytest.raises(ConfigError, match="share one backend object"):
        Fleet(config, backend=lambda: backend)
    with Fleet(config, backend=FakeBackend, policy=Mine) as fleet:
        assert fleet.replicas[0].engine.policy_name == "mine"


def test_a_fleet_needs_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # it is refused before a model is loaded
        patch.setattr("batchwright.engine.make_backend", lambda *_: pytest.fail("a backend was made"))
        _refused_in_real_time()
    made: list[FakeBackend] = []

    def make() -> FakeBackend:
        made.append(FakeBackend())
        made[-1].clock = RealClock()  # type: ignore[assignment]
        return made[-1]

    with pytest.raises(ConfigError, match="fake runs in real time"):
        Fleet(EngineConfig(replicas=2), backend=make)
    assert [backend.num_closed for backend in made] == [1]


def _refused_in_real_time() -> None:
    with pytest.raises(ConfigError, match=r"replicas is 2, and cpu:smollm2-135m runs in real time.*use a simulator"):
        Fleet(EngineConfig(replicas=2, backend="cpu:smollm2-135m"))
    with pytest.raises(ConfigError, match="a router is set, and cpu:smollm2-135m runs in real time"):
        Fleet(EngineConfig(router="random", backend="cpu:smollm2-135m"))


def test_one_engine_is_no_fleet() -> None:
    with pytest.raises(ConfigError, match=r"replicas is 2, and an Engine is one: run them with .*batchwright\.Fleet"):
        Engine(EngineConfig(replicas=2))


def test_events_say_what_comes_next() -> None:
    with make_fleet(2, To()) as fleet:
        assert fleet.next_event() is None and not fleet.advance()
        fleet.add_request(make_request("1:a", 4, 1, arrival_ns=MS))
        assert fleet.next_event() == (MS, BEGIN) and fleet.now_ns == MS
        fleet.advance()
        assert fleet.next_event() == (2 * MS, FINISH)
        assert not fleet.replicas[0].has_unfinished() and fleet.has_unfinished()
        fleet.settle()
        assert fleet.next_event() == (2 * MS, BEGIN) and fleet.now_ns == 2 * MS
        assert not fleet.has_unfinished()
        assert fleet.advance() and fleet.next_event() is None


def test_a_backend_that_fails_in_one_replica_leaves_the_others_alone() -> None:
    count = iter(range(2))

    def make() -> FakeBackend:
        return FakeBackend(num_blocks=64, fail_at=[1] if next(count) == 0 else ())

    requests = [make_request("0:a", 4, 4), make_request("1:b", 4, 4), make_request("0:c", 4, 2, arrival_ns=4 * MS)]
    with Fleet(EngineConfig(replicas=2), backend=make, router=To()) as fleet:
        drive(fleet, requests)
        for replica in fleet.replicas:
            check_whole(replica.scheduler)
    assert [r.finish_reason for r in requests] == ["error", "length", "length"]
    assert "broke" in str(requests[0].error)
