"""``adaptive_lifo``: what the conformance kit asks of every policy, and what it is for."""

from __future__ import annotations

import random
from typing import Any

import pytest

from batchwright import ConfigError, Engine, EngineConfig, Limits, Request, SamplingParams, Scheduler, hookimpl
from batchwright.testing import parametrize_checks
from batchwright_adaptive_lifo import AdaptiveLifo


@parametrize_checks(AdaptiveLifo)
def test_conformance(check: Any) -> None:
    check()


@parametrize_checks(AdaptiveLifo(queue_s=0.0), checks=["offers", "progress", "exhaustion", "complexity"])
def test_conformance_while_a_queue_stands(check: Any) -> None:
    check()


def scheduler_with(policy: AdaptiveLifo, **limits: Any) -> Scheduler:
    """Three that wait, a second apart, and one seat unless ``limits`` says otherwise."""
    limits.setdefault("max_num_residents", 1)
    scheduler = Scheduler(policy, num_blocks=64, block_size=4, limits=Limits(**limits))
    for number in range(3):
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        scheduler.add(Request("abc"[number], [number] * 6, params, arrival_ns=number * 1_000_000_000))
    return scheduler


@pytest.mark.parametrize(("now_s", "first"), [(2.0, "a"), (5.0, "a"), (5.1, "c"), (60.0, "c")])
def test_the_newest_goes_first_while_the_oldest_has_waited_too_long(now_s: float, first: str) -> None:
    scheduler = scheduler_with(AdaptiveLifo(queue_s=5.0))
    assert scheduler.schedule(now=int(now_s * 1e9)).request_ids == [first]


def test_residents_go_on_whoever_comes() -> None:
    scheduler = scheduler_with(AdaptiveLifo(queue_s=0.0), max_num_residents=2)
    batch = scheduler.schedule(now=10**10)
    assert batch.request_ids == ["c", "b"]
    scheduler.update(batch, [7, 7])
    scheduler.add(Request("new", [1, 2], SamplingParams(max_tokens=1), arrival_ns=10**10))
    assert scheduler.schedule(now=2 * 10**10).request_ids == ["c", "b"]


class Order:
    """Ids in the order of their admissions and evictions."""

    name = "order"

    def __init__(self) -> None:
        self.events: list[str] = []

    @hookimpl
    def request_admitted(self, request: Request) -> None:
        self.events.append(request.request_id)

    @hookimpl
    def request_preempted(self, victim: Request) -> None:
        self.events.append(f"-{victim.request_id}")


def test_who_was_evicted_comes_back_before_the_newest() -> None:
    order = Order()
    scheduler = Scheduler(AdaptiveLifo(queue_s=0.0), num_blocks=4, block_size=2, plugins=[order])
    for name in "ab":
        scheduler.add(Request(name, [ord(name)] * 3, SamplingParams(max_tokens=5, ignore_eos=True)))
    now = 0
    while scheduler.has_unfinished():
        now += 10**9
        batch = scheduler.schedule(now=now)
        scheduler.update(batch, [0 for samples in batch.samples if samples], now=now)
        if order.events == ["b", "a", "-a"] and scheduler.get("late") is None:
            scheduler.add(Request("late", [5] * 3, SamplingParams(max_tokens=1), arrival_ns=now))
    assert order.events == ["b", "a", "-a", "a", "late"]


class TimesToFirstToken:
    """Seconds from arrival to the first token, of everybody."""

    name = "times"

    def __init__(self) -> None:
        self.seconds: list[float] = []

    @hookimpl
    def request_finished(self, request: Request) -> None:
        if request.first_token_ns is not None:
            self.seconds.append((request.first_token_ns - request.arrival_ns) / 1e9)


def serve(policy: str, rate_per_s: float) -> list[float]:
    """Times to the first token of a rush of 1000-token prompts on a simulated H100."""
    times = TimesToFirstToken()
    config = EngineConfig.parse(
        {"policy": policy, "backend": "sim:llama-3.1-8b@h100", "max_num_batched_tokens": 2048, "max_num_residents": 32}
    )
    rng, now_s, coming = random.Random(5), 0.0, []
    for number in range(400):
        now_s += rng.expovariate(rate_per_s)
        tokens = [rng.randrange(1000) for _ in range(1000)]
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        coming.append(Request(str(number), tokens, params, arrival_ns=int(now_s * 1e9)))
    with Engine(config, plugins=[times]) as engine:
        while coming or engine.has_unfinished():
            while coming and coming[0].arrival_ns <= engine.clock.now_ns():
                engine.add_request(coming.pop(0))
            if engine.has_unfinished():
                engine.step()
            else:
                engine.clock.wait_until_ns(coming[0].arrival_ns)
    return times.seconds


def in_time(seconds: list[float]) -> float:
    return sum(s <= 1.0 for s in seconds) / len(seconds)


def test_under_overload_more_are_served_in_time_than_in_order_of_arrival() -> None:
    by_arrival, newest = (serve(p, rate_per_s=120) for p in ("stall_free:chunk_size=2048", "adaptive_lifo:queue_s=0.3"))
    assert len(by_arrival) == len(newest) == 400
    assert in_time(newest) > in_time(by_arrival) + 0.2
    assert max(newest) >= max(by_arrival)  # somebody pays for it


def test_under_light_load_it_is_the_order_of_arrival() -> None:
    assert serve("adaptive_lifo", rate_per_s=5) == serve("stall_free:chunk_size=2048", rate_per_s=5)


def test_parameters_out_of_their_range() -> None:
    with pytest.raises(ConfigError, match="parameter 'queue_s' is -1"):
        AdaptiveLifo(queue_s=-1)
    assert all(field.description for field in AdaptiveLifo.Params.model_fields.values())
