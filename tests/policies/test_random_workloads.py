"""Every policy finishes every accepted request of random workloads, and no block leaks.

Tiny pools, budgets and batches; requests that arrive, are aborted, fail in the backend and are retried, while the
policy is swapped away and back. ``BATCHWRIGHT_RANDOM_WORKLOADS`` says how many for each policy (`make test-thorough`:
500). Composites are run by ``test_composition.py``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Any

import pytest

from batchwright import (
    InfeasibleRequestError,
    Limits,
    PluginError,
    Policy,
    PrefixCache,
    Request,
    SamplingParams,
    Scheduler,
)
from batchwright.request import SLO
from batchwright.resolve import resolve_policy
from batchwright_policies.prefill_first import PrefillFirst
from batchwright_policies.stall_free import StallFree
from batchwright_policies.vllm_v1 import VllmV1
from policies.drive import seconds
from policies.suite import SUITE
from toolbox import check_empty, check_whole

NUM_WORKLOADS = int(os.environ.get("BATCHWRIGHT_RANDOM_WORKLOADS", "20"))
MANY = {"iteration_tokens": 4, "quantum": 2, "starve_s": 0.2}
PARAMS: dict[str, list[dict[str, Any]]] = {
    "lpm": [{}, {"max_passes": 2, "fifo_above": 4}],
    "hrrn": [{"scan": 3}],
    "dlpm": [{"quantum": 20, "scan": 4}],
    "mlfq": [MANY],
    "plas": [{**MANY, "remembered": 2}],
    "slo_chunk": [{"tbt_s": 0.0105, "tile": 2, "min_chunk": 1}, {"tbt_s": 0.001, "min_chunk": 1}],
    "srpt": [{"ageing": 0}, {}],
}


def predict(batch: Any) -> float:
    return seconds(len(batch.token_ids), 0)


def some_scheduler(policy: Policy | Mapping[str, Any], rng: random.Random) -> Scheduler:
    seqs = rng.randint(1, 6)
    limits = Limits(
        max_num_seqs=seqs,
        max_num_batched_tokens=rng.choice([1, 3, 8, 30, 60]),
        max_num_residents=rng.choice([None, seqs, seqs, rng.randint(1, 8)]),
    )
    cache = PrefixCache(
        enabled=rng.random() < 0.8,
        visible=rng.choice(["computed", "scheduled"]),
        reuse=rng.choice(["oldest_freed", "uncached_first"]),
        duplicates=rng.choice(["newest", "oldest"]),
    )
    size = rng.choice([1, 2, 4])
    blocks = rng.randint(3, 12) if size == 4 else rng.randint(8, 30)
    return Scheduler(
        policy, num_blocks=blocks, block_size=size, limits=limits, prefix_cache=cache, seed=1, predict_s=predict
    )


def some_request(name: str, rng: random.Random, now: int) -> Request:
    prompt = [rng.randrange(3)] * rng.randint(1, 12) + [rng.randrange(50) for _ in range(rng.randint(0, 8))]
    params = SamplingParams(max_tokens=rng.randint(1, 14), ignore_eos=True)
    return Request(
        name,
        prompt,
        params,
        arrival_ns=now,
        priority=rng.randrange(3),
        client_id=rng.choice([None, "a", "b", f"one-off {name}"]),
        weight=rng.choice([1.0, 0.5, 3.0]),
        deadline_s=rng.choice([None, rng.random() * 3]),
        slo=rng.choice([None, SLO(ttft_s=0.5), SLO(tpot_s=0.01)]),
        predicted_output_tokens=rng.choice([None, rng.randint(0, 20)]),
        program_id=rng.choice([None, "p", "q", f"one-off {name}"]),
    )


def play(policy: Policy | Mapping[str, Any], seed: int, *, swaps: bool = True) -> Scheduler:
    """One workload to its end."""
    rng = random.Random(seed)
    active = resolve_policy(policy)
    scheduler = some_scheduler(active, rng)  # type: ignore[arg-type]
    to_come = rng.randint(4, 16)
    rate = rng.choice([0.2, 0.6, 1.0])
    now, number, accepted = 0, 0, []
    is_away = False
    for _ in range(4000):
        while to_come and rng.random() < rate:
            to_come -= 1
            number += 1
            request = some_request(f"r{number}", rng, now)
            try:
                scheduler.add(request, num_output_tokens=rng.choice([None, rng.randint(1, 14)]))
                accepted.append(request)
            except InfeasibleRequestError:
                pass
        if accepted and rng.random() < 0.04:
            victim = rng.choice(accepted)
            if not victim.is_finished:
                scheduler.abort(victim.request_id)
        if swaps and rng.random() < 0.06:
            is_away = not is_away
            try:
                other = rng.choice([PrefillFirst, VllmV1, StallFree])()
                scheduler.swap_policy(other if is_away else active)
            except PluginError:  # it never cuts prompts, and one here is too long for that
                is_away = True
        if not scheduler.has_unfinished():
            if not to_come:
                break
            continue
        batch = scheduler.schedule(now)
        now += round(seconds(scheduler.step.num_prefill_tokens, scheduler.step.num_decodes) * 1e9)
        if rng.random() < 0.03 and len(batch):
            scheduler.fail(batch, "lost", retry=rng.random() < 0.7, now=now)
        else:
            if rng.random() < 0.03 and len(batch):
                scheduler.abort(batch.request_ids[-1])
            scheduler.update(batch, [rng.randrange(50) for _ in range(sum(batch.samples.tolist()))], now)
        if rng.random() < 0.1:
            check_whole(scheduler)
    assert all(r.is_finished for r in accepted), f"seed {seed}: {[r for r in accepted if not r.is_finished]}"
    check_empty(scheduler)
    assert scheduler.num_observer_faults == 0, scheduler.take_events()
    if not is_away:
        for one in {id(p): p for p in active.slots.values()}.values():
            check_forgotten(one)
    return scheduler


def check_forgotten(policy: Policy) -> None:
    """It keeps nothing of requests that are gone, but for dead entries of heaps, which are bounded."""
    for name, value in vars(policy).items():
        if isinstance(value, (dict, set, list)):
            assert not any(isinstance(item, Request) for item in value), f"{name} keeps {value}"
    assert len(getattr(policy, "queue", ())) == 0


@pytest.mark.parametrize("name", SUITE)
def test_every_accepted_request_ends_and_no_block_leaks(name: str) -> None:
    choices = PARAMS.get(name, [{}])
    for seed in range(NUM_WORKLOADS):
        play(SUITE[name](**choices[seed % len(choices)]), seed)
