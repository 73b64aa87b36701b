"""Steps that are taken at once leave everything as the reference does, which takes each and asks its policy."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from batchwright.active_policy import is_stationary
from batchwright.limits import Limits
from batchwright.plugins import load_plugins
from batchwright.prefix_cache import PrefixCache
from batchwright.sampling_params import SamplingParams
from testing.small_ring import shrink_ring
from testing.twins import Twins, next_token

STATIONARY = sorted(name for name, policy in load_plugins().policies.items() if is_stationary(policy()))
SHARED = [1, 2, 1, 1, 2, 2, 1, 2, 1, 2, 1, 1, 2, 2, 1, 2]
NUM_RUNS = 8


def run_one(policy: str, rng: random.Random, seen: Counter[str]) -> None:
    make = load_plugins().policies[policy]
    seats = rng.choice([None, 2, 3])
    settings = {
        "num_blocks": rng.choice([30, 60, 90]),
        "block_size": rng.choice([2, 3, 4, 8]),
        "limits": Limits(
            max_num_seqs=rng.choice([3, 6]),
            max_num_batched_tokens=30,
            max_num_residents=seats,
        ),
        "prefix_cache": PrefixCache(
            enabled=rng.random() < 0.8,
            visible=rng.choice(["computed", "scheduled"]),
            reuse=rng.choice(["oldest_freed", "uncached_first"]),
            duplicates=rng.choice(["newest", "oldest"]),
        ),
        "eos_token_ids": (0,) if rng.random() < 0.3 else (),
    }
    twins = Twins(make, settings, seen)
    busy = rng.choice([0.1, 0.6])
    number = now = 0
    while number < 40 or twins.there:
        while number < 40 and rng.random() < (busy if twins.there else 0.9):
            if rng.random() < 0.3 and twins.there:  # the prompt goes on as somebody's output will
                other = rng.choice([*twins.there.values()])[1]
                prompt = [*other._tokens, *[rng.randrange(3) for _ in range(rng.randint(1, 12))]][:25]
            else:
                prompt = SHARED[: rng.choice([0, 4, 8])] + [rng.randrange(3) for _ in range(rng.randint(1, 8))]
            params = SamplingParams(max_tokens=rng.randint(1, 58 - len(prompt)), ignore_eos=rng.random() < 0.9)
            hidden = rng.choice([None, None, rng.randint(1, 30)])
            stops_after = rng.randint(1, 20) if rng.random() < 0.03 else None
            twins.add(f"r{number}", prompt, params, hidden, rng.randrange(3), stops_after)
            number += 1
        if twins.there and rng.random() < 0.03:
            twins.abort(rng.choice([*twins.there]))
        taken = twins.leap(now, rng.randint(1, 12)) if rng.random() < 0.9 else 0
        now += 10 * (taken or 1)
        if taken:
            continue
        batches = twins.schedule(now - 10)
        if batches is None:
            continue
        if rng.random() < 0.005:
            twins.fail(batches, retry=rng.random() < 0.6, now=now)
        else:
            failing = [twins.rows[0][0].request_id] if twins.rows and rng.random() < 0.005 else []
            twins.update(batches, now, failing)


@pytest.mark.parametrize("policy", STATIONARY)
@pytest.mark.parametrize("recent", [16, 256])
def test_leaps_are_what_single_steps_are(policy: str, recent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink_ring(monkeypatch, recent, recent + 3)
    seen: Counter[str] = Counter()
    for seed in range(NUM_RUNS):
        run_one(policy, random.Random(f"{policy} {recent} {seed}"), seen)
    assert seen["steps leapt"] > seen["leaps"] > NUM_RUNS * 4, seen
    assert seen["steps leapt while some wait"] > 20, seen


@pytest.mark.parametrize("visible", ["computed", "scheduled"])
def test_who_waits_gets_in_when_decodes_have_filled_enough_blocks_of_its_prompt(visible: Any) -> None:
    """Its blocks are short until another's output, which its prompt goes on with, is in blocks that it can share."""
    settings = {
        "num_blocks": 17,
        "block_size": 2,
        "limits": Limits(max_num_seqs=4, max_num_batched_tokens=30),
        "prefix_cache": PrefixCache(visible=visible),
    }
    seen: Counter[str] = Counter()
    twins = Twins(load_plugins().policies["no_evict"], settings, seen)
    prompt = [1, 2, 1, 1]
    twins.add("first", prompt, SamplingParams(max_tokens=20, ignore_eos=True), None, 0, None)
    whole = list(prompt)
    while len(whole) < 18:
        whole.append(next_token(whole))
    twins.add("second", whole, SamplingParams(max_tokens=4, ignore_eos=True), None, 0, None)
    now, in_at = 0, None
    while twins.there:
        taken = twins.leap(now, 20)
        if not taken:
            batches = twins.schedule(now)
            assert batches is not None
            twins.update(batches, now + 10)
        now += 10 * (taken or 1)
        if in_at is None and len(twins.fast.running) == 2:
            in_at = twins.fast.step.index
    assert seen["steps leapt while some wait"] >= 3
    assert in_at is not None and 4 < in_at < 16
