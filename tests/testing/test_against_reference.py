"""The fast scheduler takes every decision that the reference takes, whatever the policy does."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from batchwright import state
from batchwright.hookspecs import hookimpl
from batchwright.limits import Limits
from batchwright.plugins import load_plugins
from batchwright.policy import Policy
from batchwright.prefix_cache import PrefixCache
from batchwright.sampling_params import SamplingParams
from testing.random_policy import RandomPolicy
from testing.small_ring import shrink_ring
from testing.twins import Twins

NUM_STEPS = int(os.environ.get("BATCHWRIGHT_PROPERTY_STEPS", "10000"))
"""Steps that the main test compares at least; ``make property`` sets 100000."""
STEPS_OF_AN_EXAMPLE = 50
"""What an example comes to on average, or a little less."""
SHARED = [1, 2, 1, 1, 2, 2, 1, 2, 1, 2, 1, 1, 2, 2, 1, 2]
FIRST_PARTY = {name: load_plugins().policy(name) for name in ("prefill_first", "vllm_v1", "stall_free")}


@dataclass(frozen=True)
class Rates:
    """How likely what happens from outside is, each a step."""

    arrival: float
    abort: float
    swap: float
    backend_failure: float
    row_failure: float


limits = st.builds(
    Limits,
    max_num_seqs=st.sampled_from([1, 3, 8]),
    max_num_batched_tokens=st.sampled_from([2, 4, 7, 16, 64, 64]),
    max_num_residents=st.sampled_from([None, None, 2, 4]),
    max_model_len=st.sampled_from([None, None, None, 20]),
)
caches = st.builds(
    PrefixCache,
    enabled=st.sampled_from([True, True, True, False]),
    visible=st.sampled_from(["computed", "scheduled", "scheduled"]),
    reuse=st.sampled_from(["oldest_freed", "uncached_first"]),
    duplicates=st.sampled_from(["newest", "oldest"]),
)
schedulers = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from([6, 10, 16, 24]),
        "block_size": st.sampled_from([1, 2, 4]),
        "limits": limits,
        "prefix_cache": caches,
        "eos_token_ids": st.just((0,)),
        "seed": st.integers(0, 9),
        "on_policy_error": st.sampled_from(["raise", "fallback"]),
        "fallback_policy": st.sampled_from([None, None, "vllm_v1", "vllm_v1:scheduling_policy=priority"]),
    }
)
rates = st.builds(
    Rates,
    arrival=st.sampled_from([0.3, 0.6]),
    abort=st.sampled_from([0.0, 0.05, 0.15]),
    swap=st.sampled_from([0.0, 0.05, 0.3]),
    backend_failure=st.sampled_from([0.0, 0.04]),
    row_failure=st.sampled_from([0.0, 0.04]),
)


def some_policy(rng: random.Random, fault_rate: float) -> Callable[[], Any]:
    """Makes equal policies."""
    kind = rng.random()
    if kind < 0.1:
        return lambda: FIRST_PARTY["prefill_first"](decode_interleave=3)
    if kind < 0.2:
        order = rng.choice(["fcfs", "priority"])
        return lambda: FIRST_PARTY["vllm_v1"](scheduling_policy=order, long_prefill_token_threshold=5)
    if kind < 0.3:
        return lambda: FIRST_PARTY["stall_free"](chunk_size=6)
    params = {
        "seed": rng.randrange(10**6),
        "counts_decodes": rng.random() < 0.7,
        "fault_rate": fault_rate,
        "refusal_rate": rng.choice([0, 0, 0.1]),
        "hold_rate": rng.choice([0.0, 0.5]),
        "cut_rate": rng.choice([0, 0.5, 1]),
        "reserves": rng.random() < 0.8,
        "steady_rate": rng.choice([0, 0, 0.9]),
    }
    return lambda: RandomPolicy(**params)


def add_some(twins: Twins, rng: random.Random, number: int) -> None:
    if rng.random() < 0.6:  # few different prompts, so that much is shared and much is there twice
        prompt = SHARED[: rng.choice([4, 8, 12])] + rng.choice([[1], [2], [1, 2]])
    else:
        prompt = SHARED[: rng.choice([0, 0, 4, 16])] + [rng.randrange(3) for _ in range(rng.randint(1, 8))]
    params = SamplingParams(
        max_tokens=rng.randint(1, 16),
        ignore_eos=rng.random() < 0.7,
        stop_token_ids=(2,) if rng.random() < 0.1 else (),
    )
    name = f"r{number if rng.random() < 0.95 else rng.randrange(number + 1)}"  # at times an id that is in use
    stops_after = rng.randint(1, 9) if rng.random() < 0.1 else None  # as a stop string would
    twins.add(name, prompt, params, rng.choice([None, None, None, 1, 6]), rng.randrange(3), stops_after)


def run_one(
    seed: int, scheduler: dict[str, Any], rates: Rates, fault_rate: float, num_steps: int, seen: Counter[str]
) -> None:
    rng = random.Random(seed)
    twins = Twins(some_policy(rng, fault_rate), scheduler, seen)
    number = now = 0

    def abort_some() -> None:
        if rng.random() < rates.abort:
            seen["aborts"] += 1
            twins.abort(rng.choice([*twins.there, "nobody"]), rng.choice([None, None, "its text cannot be decoded"]))

    for _ in range(num_steps):
        while rng.random() < rates.arrival and len(twins.there) < 12:
            add_some(twins, rng, number)
            number += 1
        abort_some()
        if rng.random() < rates.swap:
            seen["swaps"] += 1
            twins.swap(some_policy(rng, fault_rate))
        now += 10
        batches = twins.schedule(now)
        abort_some()
        if batches is None:
            continue
        if rng.random() < 0.1 and len(twins.there) < 12:  # arrives while the batch runs
            add_some(twins, rng, number)
            number += 1
        if len(batches[0]) and rng.random() < rates.backend_failure:
            twins.fail(batches, retry=rng.random() < 0.6, now=now + 5)
        else:
            some = [rng.choice(twins.rows)[0].request_id] if twins.rows and rng.random() < rates.row_failure else []
            twins.update(batches, now + 5, some)
        abort_some()
    drain(twins, now)


def drain(twins: Twins, now: int) -> None:
    """Under the default policy everything ends, and every block comes back."""
    twins.swap(FIRST_PARTY["prefill_first"])
    pending = sum(one.num_prompt_tokens + one.max_tokens for one, _ in twins.there.values())
    for _ in range(10 * pending + 10):
        now += 10
        batches = twins.schedule(now)
        if batches is None:
            break
        twins.update(batches, now + 5)
    assert not twins.there
    assert twins.fast.blocks.num_free == twins.settings["num_blocks"]


def test_random_policies_aborts_swaps_and_faults():
    seen: Counter[str] = Counter()

    @settings(
        max_examples=NUM_STEPS // STEPS_OF_AN_EXAMPLE + 1,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],  # a run follows from its seed, so there is little to shrink
        suppress_health_check=list(HealthCheck),
    )
    @given(
        seed=st.integers(0, 2**32 - 1),
        scheduler=schedulers,
        rates=rates,
        fault_rate=st.sampled_from([0.0, 0.0, 0.02, 0.1]),
        num_steps=st.one_of(st.integers(1, 80), st.just(80), st.just(80)),
    )
    def one_run(seed, scheduler, rates, fault_rate, num_steps):
        run_one(seed, scheduler, rates, fault_rate, num_steps, seen)

    one_run()
    print(dict(seen))
    assert seen["steps"] >= NUM_STEPS
    for what in (
        "aborts",
        "swaps",
        "backend failures",
        "rows failed",
        "rows with a prefix hit",
        "evictions from the batch",
        "evictions that take others along",
        "evictions of the asker",
        "offers begun anew",
        "errors: PolicyError",
        "errors: InfeasibleRequestError",
        "errors: InvalidRequestError",
        "errors: RefusedRequestError",
        "errors: UnknownRequestError",
    ):
        assert seen[what] >= NUM_STEPS // 10_000, f"the runs never came to {what}: they test less than they say"


@pytest.mark.parametrize("first", FIRST_PARTY)
@pytest.mark.parametrize("second", FIRST_PARTY)
def test_swapping_between_all_pairs_loses_no_request_and_changes_no_token(first, second):
    seen: Counter[str] = Counter()
    for seed in range(6):
        rng = random.Random(f"{first} {second} {seed}")
        scheduler = {
            "num_blocks": 16,
            "block_size": 2,
            "limits": Limits(max_num_seqs=4, max_num_batched_tokens=9, max_num_residents=4),
            "prefix_cache": PrefixCache(visible=rng.choice(["computed", "scheduled"])),
            "eos_token_ids": (0,),
        }
        pair = [FIRST_PARTY[first], FIRST_PARTY[second]]
        twins = Twins(pair[0], scheduler, seen)
        for number in range(20):
            add_some(twins, rng, number)
        for step in range(300):
            if rng.random() < 0.4:
                pair.reverse()
                seen["swaps"] += 1
                twins.swap(pair[0])
            batches = twins.schedule(step)
            if batches is None:
                break
            twins.update(batches, step)  # it compares whoever finishes with what the model says to its prompt
        assert not twins.there
    assert seen["swaps"] > 20, seen
    assert seen["evictions"] > 0, seen


@pytest.mark.parametrize("policy", FIRST_PARTY)
def test_long_rides_with_few_who_come_and_go(policy, monkeypatch):
    """Decodes that go together for long: over many blocks, over the roster's memory, with ends, aborts and faults."""
    seen: Counter[str] = Counter()
    num_riding = num_steady = 0
    for seed in range(12):
        rng = random.Random(f"{policy} {seed}")
        recent = rng.choice([4, 10, 16])
        shrink_ring(monkeypatch, recent, recent + rng.randrange(3))
        monkeypatch.setattr(state, "APART", rng.choice([0, 1, 4]))
        scheduler = {
            "num_blocks": rng.choice([40, 90]),
            "block_size": rng.choice([1, 2, 3, 4, 7]),
            "limits": Limits(max_num_seqs=6, max_num_batched_tokens=rng.choice([6, 9, 30]), max_num_residents=6),
            "prefix_cache": PrefixCache(
                enabled=rng.random() < 0.8,
                visible=rng.choice(["computed", "scheduled"]),
                duplicates=rng.choice(["newest", "oldest"]),
            ),
            "eos_token_ids": (0,),
        }
        twins = Twins(FIRST_PARTY[policy], scheduler, seen)
        number = 0
        for now in range(150):
            while rng.random() < (0.1 if twins.there else 0.9) and number < 40:
                prompt = SHARED[: rng.choice([0, 4, 8])] + [rng.randrange(3) for _ in range(rng.randint(1, 8))]
                params = SamplingParams(max_tokens=rng.randint(1, 40), ignore_eos=rng.random() < 0.95)
                stops_after = rng.randint(1, 30) if rng.random() < 0.15 else None
                twins.add(f"r{number}", prompt, params, None, rng.randrange(3), stops_after)
                number += 1
            batches = twins.schedule(10 * now)
            if batches is None:
                continue
            num_riding += bool(twins.fast.step._num_riding)
            if twins.there and rng.random() < 0.03:
                twins.abort(rng.choice([*twins.there]))
            if rng.random() < 0.01:
                twins.fail(batches, retry=rng.random() < 0.6, now=10 * now + 5)
            else:
                failing = [twins.rows[0][0].request_id] if rng.random() < 0.01 else []
                twins.update(batches, 10 * now + 5, failing)
            num_steady += twins.fast._state.steady
        drain(twins, 2000)
    assert num_riding > 500 and num_steady > 100, (num_riding, num_steady)
    assert seen["backend failures"] and seen["rows failed"]


class EvictsTheFirst(Policy):
    """Everybody who waits, in order; whoever lacks a block gets those of the first row."""

    @hookimpl
    def admission(self, step):
        yield from step.waiting

    @hookimpl
    def preemption(self, step, request):
        return step.batch[0]


def test_a_victim_takes_along_who_shares_what_it_was_to_fill():
    seen: Counter[str] = Counter()
    scheduler = {
        "num_blocks": 7,
        "block_size": 2,
        "limits": Limits(),
        "prefix_cache": PrefixCache(visible="scheduled"),
    }
    twins = Twins(EvictsTheFirst, scheduler, seen)
    params = SamplingParams(max_tokens=1)
    for name, prompt in (("a", [1] * 5), ("b", [1] * 5), ("c", [1] * 5), ("other", [2] * 5)):
        twins.add(name, prompt, params, None, 0, None)
    batches = twins.schedule(0)
    assert batches is not None
    assert [r.request_id for r in twins.fast.step.preempted] == ["c", "b", "a"]  # last row first, the victim last
    assert [(r.request_id, r.num_scheduled) for r in twins.fast.step.batch] == [("other", 5)]
    twins.update(batches, 1)
    assert [r.request_id for r in twins.fast.waiting] == ["a", "b", "c"]
    assert seen["evictions that take others along"] == 1
