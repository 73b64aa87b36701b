"""``stall_guard``: what the conformance kit asks, alone and around other policies, and the bound that it keeps."""

from __future__ import annotations

import random
from typing import Any

import pytest

from batchwright import (
    ConfigError,
    Engine,
    EngineConfig,
    Limits,
    Request,
    SamplingParams,
    Scheduler,
    Step,
    hookimpl,
)
from batchwright.testing import parametrize_checks
from batchwright_stall_guard import StallGuard


@parametrize_checks(StallGuard)
def test_conformance(check: Any) -> None:
    check()


@parametrize_checks(StallGuard(max_stall_s=1e-6), checks=["offers", "progress", "exhaustion", "hot_swap"])
def test_conformance_while_it_acts_in_every_step(check: Any) -> None:
    check()


@parametrize_checks("vllm_v1", plugins=[StallGuard(max_stall_s=0.004)], checks=["offers", "progress", "exhaustion"])
def test_conformance_around_another_policy(check: Any) -> None:
    check()


class Gaps:
    """The longest time that decodes were without a step of theirs, and the longest step."""

    name = "gaps"

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.longest_step_s = 0.0
        self.num_steps = 0
        self._last: dict[Request, int] = {}

    @hookimpl
    def step_finished(self, step: Step) -> None:
        assert step.end is not None
        self.num_steps += 1
        self.longest_step_s = max(self.longest_step_s, (step.end - step.now) / 1e9)
        for request in step.sampled:
            before = self._last.get(request)
            if before is not None:
                self.longest_s = max(self.longest_s, (step.end - before) / 1e9)
            self._last[request] = step.end


def serve(policy: str, *plugins: Any) -> Gaps:
    """Prompts that keep coming, on a simulated H100."""
    gaps = Gaps()
    config = EngineConfig.parse(
        {"policy": policy, "backend": "sim:llama-3.1-8b@h100", "max_num_batched_tokens": 2048, "max_num_residents": 64}
    )
    rng, now_s, coming = random.Random(2), 0.0, []
    for number in range(120):
        now_s += rng.expovariate(25)
        tokens = [rng.randrange(1000) for _ in range(1500)]
        params = SamplingParams(max_tokens=40, ignore_eos=True)
        coming.append(Request(str(number), tokens, params, arrival_ns=int(now_s * 1e9)))
    with Engine(config, plugins=[gaps, *plugins]) as engine:
        while coming or engine.has_unfinished():
            while coming and coming[0].arrival_ns <= engine.clock.now_ns():
                engine.add_request(coming.pop(0))
            if engine.has_unfinished():
                engine.step()
            else:
                engine.clock.wait_until_ns(coming[0].arrival_ns)
        assert engine.scheduler.num_observer_faults == 0
    return gaps


@pytest.mark.parametrize("bound_s", [0.1, 0.2])
def test_gaps_stay_within_the_bound_and_a_step(bound_s: float) -> None:
    free = serve("prefill_first")
    assert free.longest_s > 2 * bound_s  # prompts stop all decodes
    guarded = serve(f"stall_guard:max_stall_s={bound_s}")
    assert guarded.longest_s <= bound_s + guarded.longest_step_s


def test_it_guards_any_policy() -> None:
    guard = StallGuard(max_stall_s=0.1)
    gaps = serve("prefill_first", guard)
    assert gaps.longest_s <= 0.1 + gaps.longest_step_s and guard.num_interventions > 0


def test_without_a_stall_it_changes_nothing() -> None:
    """Around a policy whose decodes never wait it has nothing to do."""
    guard = StallGuard(max_stall_s=10.0)
    alone, guarded = serve("stall_free"), serve("stall_free", guard)
    assert (guard.num_interventions, guarded.longest_s) == (0, alone.longest_s)
    assert guarded.num_steps == alone.num_steps


def test_decodes_come_first_and_once() -> None:
    """Then what is inside goes on, without those that ran already."""
    guard = StallGuard(max_stall_s=1.0)
    scheduler = Scheduler(guard, num_blocks=64, block_size=4, limits=Limits(max_num_batched_tokens=8))
    scheduler.add(Request("a", [1] * 4, SamplingParams(max_tokens=9, ignore_eos=True)))
    scheduler.update(scheduler.schedule(now=0), [7], now=10**8)
    for name in "bcd":
        scheduler.add(Request(name, [ord(name)] * 8, SamplingParams(max_tokens=9, ignore_eos=True)))
    batches = []
    for now in (2 * 10**8, 6 * 10**8, 12 * 10**8):
        batch = scheduler.schedule(now=now)
        batches.append(list(batch.request_ids))
        scheduler.update(batch, [7 for samples in batch.samples if samples], now=now + 10**8)
    assert batches == [["b"], ["c"], ["a", "b", "c", "d"]]
    assert guard.num_interventions == 1


def test_it_starts_anew_on_a_live_engine() -> None:
    guard = StallGuard(max_stall_s=1.0)
    scheduler = Scheduler("prefill_first", num_blocks=64, block_size=4)
    scheduler.add(Request("a", [1] * 4, SamplingParams(max_tokens=9, ignore_eos=True)))
    scheduler.update(scheduler.schedule(now=0), [7], now=50 * 10**9)
    scheduler.swap_policy(guard)
    scheduler.add(Request("b", [2] * 4, SamplingParams(max_tokens=9, ignore_eos=True)))
    assert list(scheduler.schedule(now=50 * 10**9).request_ids) == ["b"]  # the 50 s before are not its own


def test_parameters_out_of_their_range() -> None:
    with pytest.raises(ConfigError, match="parameter 'max_stall_s' is 0"):
        StallGuard(max_stall_s=0)
    assert all(field.description for field in StallGuard.Params.model_fields.values())
