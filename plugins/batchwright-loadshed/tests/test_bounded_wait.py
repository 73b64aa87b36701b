"""``bounded_wait`` on the simulator that comes with Batchwright."""

from __future__ import annotations

import random
from typing import Any

import pytest

from batchwright import (
    SLO,
    ConfigError,
    Engine,
    EngineConfig,
    Policy,
    RefusedRequestError,
    Request,
    SamplingParams,
    hookimpl,
)
from batchwright_loadshed import BoundedWait, PromptRate


class Served:
    """Seconds to the first token of each request that was served."""

    name = "served"

    def __init__(self) -> None:
        self.ttft_s: dict[str, float] = {}

    @hookimpl
    def request_finished(self, request: Request, reason: str) -> None:
        if reason == "length" and request.first_token_ns is not None:
            self.ttft_s[request.request_id] = (request.first_token_ns - request.arrival_ns) / 1e9


def make(policy: Any, **config: Any) -> tuple[Engine, Served]:
    """An engine on a simulated H100."""
    served = Served()
    values = {"backend": "sim:llama-3.1-8b@h100", "max_num_batched_tokens": 2048, **config}
    given = policy if isinstance(policy, Policy) else None
    if given is None:
        values["policy"] = policy
    return Engine(EngineConfig.parse(values), policy=given, plugins=[served]), served


def offer(engine: Engine, rate_per_s: float, num_requests: int, seed: int = 0, **fields: Any) -> list[str]:
    """Poisson arrivals of 1000-token prompts, run to the end; who was refused."""
    rng = random.Random(seed)
    arrivals, now_s = [], 0.0
    for number in range(num_requests):
        now_s += rng.expovariate(rate_per_s)
        tokens = [rng.randrange(1000) for _ in range(1000)]
        params = SamplingParams(max_tokens=20, ignore_eos=True)
        arrivals.append(Request(str(number), tokens, params, arrival_ns=int(now_s * 1e9), **fields))
    refused = []
    while arrivals or engine.has_unfinished():
        while arrivals and arrivals[0].arrival_ns <= engine.clock.now_ns():
            try:
                engine.add_request(request := arrivals.pop(0))
            except RefusedRequestError:
                refused.append(request.request_id)
        if engine.has_unfinished():
            engine.step()
        elif arrivals:
            engine.clock.wait_until_ns(arrivals[0].arrival_ns)
    return refused


def test_under_light_load_nobody_is_refused() -> None:
    engine, served = make(BoundedWait(max_wait_s=0.5))
    assert offer(engine, rate_per_s=5, num_requests=60) == []
    assert len(served.ttft_s) == 60 and max(served.ttft_s.values()) < 0.5


def test_under_overload_the_served_are_served_in_time() -> None:
    calm, late = make("prefill_first")
    offer(calm, rate_per_s=120, num_requests=300)
    assert max(late.ttft_s.values()) > 2.0  # without shedding the queue grows without bound
    policy = BoundedWait(max_wait_s=0.5)
    engine, served = make(policy)
    refused = offer(engine, rate_per_s=120, num_requests=300)
    assert 60 < len(refused) < 240 and len(refused) == policy.num_refused
    assert len(refused) + len(served.ttft_s) == 300 and engine.policy_name == "bounded_wait"
    times = sorted(served.ttft_s.values())
    assert times[int(0.9 * len(times))] < 0.75  # an estimate, not a promise
    assert engine.scheduler.num_observer_faults == 0


def test_a_refusal_says_why() -> None:
    policy = BoundedWait(max_wait_s=0.2)
    engine, _ = make(policy)
    with pytest.raises(RefusedRequestError) as caught:
        for number in range(400):
            engine.add_request(_request(str(number)))
            if number == 10:
                engine.step()
    assert "its first token is expected in 0." in caught.value.reason
    assert "later than 0.2 s; try again later" in caught.value.reason


def _request(request_id: str, num_tokens: int = 1000, **fields: Any) -> Request:
    tokens = [int(request_id) * 7 % 997, *range(1, num_tokens)]
    return Request(request_id, tokens, SamplingParams(max_tokens=5), **fields)


def _crowded(policy: BoundedWait) -> Engine:
    """An engine with a queue of 30 that has been measured."""
    engine, _ = make(policy)
    for number in range(30):
        engine.add_request(_request(str(number)))
    for _ in range(3):
        engine.step()
    return engine


def test_a_request_brings_its_own_bound() -> None:
    engine = _crowded(BoundedWait(max_wait_s=100.0))
    engine.add_request(_request("100"))
    with pytest.raises(RefusedRequestError, match=r"later than 0\.01 s"):
        engine.add_request(_request("101", slo=SLO(ttft_s=0.01)))
    engine.swap_policy(BoundedWait(max_wait_s=100.0, use_slo=False))
    for _ in range(2):
        engine.step()
    engine.add_request(_request("102", slo=SLO(ttft_s=0.01)))


def test_the_protected_are_never_refused() -> None:
    engine = _crowded(BoundedWait(max_wait_s=0.01, protected_priority=1))
    with pytest.raises(RefusedRequestError):
        engine.add_request(_request("100", priority=2))
    engine.add_request(_request("101", priority=1))
    engine.add_request(_request("102", priority=-5))


def test_a_bound_on_the_number_that_waits() -> None:
    engine, _ = make(BoundedWait(max_wait_s=100.0, max_waiting=4))
    for number in range(4):
        engine.add_request(_request(str(number)))
    with pytest.raises(RefusedRequestError, match=r"4 requests wait already \(max_waiting 4\)"):
        engine.add_request(_request("4"))
    engine.abort("0")
    engine.add_request(_request("5"))


def test_what_it_knows_of_the_queue_is_right() -> None:
    """Through evictions, aborts and swaps."""
    policy = BoundedWait(max_wait_s=1e9)
    engine, _ = make(policy, num_blocks=40, block_size=16, max_num_batched_tokens=256)
    rng = random.Random(1)

    def check() -> None:
        assert set(policy._waiting) == set(engine.scheduler.waiting)
        assert policy._num_waiting_tokens == sum(r.num_tokens for r in engine.scheduler.waiting)
        assert set(policy._prefilling) == {r for r in engine.scheduler.running if r.is_prefilling}

    evicted = 0
    for number in range(120):
        if number < 40:
            engine.add_request(Request(str(number), [number] * rng.randint(1, 200), SamplingParams(max_tokens=60)))
        there = [*engine.scheduler.running, *engine.scheduler.waiting]
        if there and rng.random() < 0.1:
            engine.abort(rng.choice(there).request_id)
            check()
        if rng.random() < 0.05:
            policy = BoundedWait(max_wait_s=1e9)
            engine.swap_policy(policy)
            check()
        engine.step()
        evicted += len(engine.scheduler.step.preempted)
        check()
    assert evicted > 0


def test_it_serves_arrivals_alone() -> None:
    """Another policy decides the rest; both by their names, as a config has them."""
    rest = "stall_free:chunk_size=1024"
    engine, served = make({"arrival": "bounded_wait:max_wait_s=0.5", "admission": rest, "chunking": rest})
    refused = offer(engine, rate_per_s=120, num_requests=200)
    assert refused and len(refused) + len(served.ttft_s) == 200


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_wait_s": 0}, "parameter 'max_wait_s' is 0"),
        ({"max_wait": 1}, "unknown parameter 'max_wait'; did you mean 'max_wait_s'"),
        ({"max_waiting": 0}, "parameter 'max_waiting' is 0"),
        ({"half_life_s": -1}, "parameter 'half_life_s' is -1"),
    ],
)
def test_parameters_out_of_their_range(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BoundedWait(**values)


def test_every_parameter_is_described() -> None:
    assert all(field.description for field in BoundedWait.Params.model_fields.values())


def test_the_rate_is_a_moving_average() -> None:
    rate = PromptRate(half_life_s=1.0)
    assert rate.tokens_per_s is None
    rate.add(0, 2.0)
    assert rate.tokens_per_s is None  # time passed, and nobody left the queue: no rate to divide by
    rate = PromptRate(half_life_s=1.0)
    rate.add(100, 1.0)
    assert rate.tokens_per_s == 100
    rate.add(400, 1.0)
    assert rate.tokens_per_s == pytest.approx((50 + 400) / (0.5 + 1))
    for _ in range(200):
        rate.add(10, 0.1)
    assert rate.tokens_per_s == pytest.approx(100, rel=1e-3)
