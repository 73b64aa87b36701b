"""A fleet: requests where they were routed, and replicas that share nothing."""

from __future__ import annotations

import random

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
from batchwright.resolve import resolve_router
from fake_backend import FakeBackend
from fleet_toolbox import MS, To, drive, make_fleet, run_to
from toolbox import check_whole, expected_of, make_request


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
