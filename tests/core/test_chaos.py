"""Everything at once: random policies, cache settings, aborts, faults of the backend and of policies, swaps.

Whatever happens, each request that was not aborted gets exactly the tokens that its prompt and seed imply, no block
leaks, and everybody ends.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyhow import Anyhow
from batchwright import prefix_index
from fake_backend import FakeBackend
from faulty import FAULTS, Culprit
from toolbox import CHUNKING, check_empty, check_whole, expected_of, make_engine, make_request, prompt_of

_hash = prefix_index.xxh3_64_intdigest


def _policy(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice([*CHUNKING, "vllm_v1:scheduling_policy=priority", "stall_free:chunk_size=6"])
    return Anyhow(rng.randrange(1000)) if kind < 0.8 else Culprit(FAULTS[rng.choice(sorted(FAULTS))], every=3)


def _run(seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    failures = {rng.randrange(60) for _ in range(rng.randrange(6))}
    backend = FakeBackend(num_blocks=rng.randint(9, 24), block_size=rng.choice([1, 2, 4]), fail_at=failures)
    longest = backend.capacity().num_blocks * backend.capacity().block_size
    engine, tape = make_engine(
        _policy(rng),
        backend=backend,
        T=rng.choice([5, 16, 64]),
        S=rng.choice([2, 5, 64]),
        on_policy_error="fallback",
        on_backend_error="retry",
        max_num_residents=rng.choice([None, 1, 3]),
        prefix_cache={
            "enabled": rng.random() < 0.9,
            "visible": rng.choice(["computed", "scheduled"]),
            "reuse": rng.choice(["oldest_freed", "uncached_first"]),
            "duplicates": rng.choice(["newest", "oldest"]),
        },
    )
    stems = [prompt_of(str(i), 12) for i in range(2)]
    num_added = num_swaps = 0
    for step in range(1500):
        while num_added < 10 and rng.random() < 0.4:
            prompt = rng.choice(stems)[: rng.randint(0, 12)] + prompt_of(str(num_added), rng.randint(1, 4))
            max_tokens = rng.randint(1, max(1, min(9, longest - len(prompt) + 1)))
            prompt = prompt[: longest - max_tokens + 1]
            engine.add_request(make_request(str(num_added), prompt, max_tokens, priority=rng.randrange(3)))
            num_added += 1
        if rng.random() < 0.03 and (there := [*engine.scheduler.running, *engine.scheduler.waiting]):
            engine.abort(rng.choice(there).request_id)
        if rng.random() < 0.06:
            engine.swap_policy(_policy(rng))
            num_swaps += 1
        engine.step()
        check_whole(engine.scheduler)
        if num_added == 10 and not engine.has_unfinished():
            break
        if step == 700:
            engine.swap_policy("prefill_first")  # random policies may take very long
    check_empty(engine.scheduler)
    assert set(tape.reasons) == {str(i) for i in range(10)}
    assert set(tape.reasons.values()) <= {"length", "abort"}
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request), (seed, request)
        assert request.num_output_tokens == request.max_tokens or tape.reasons[request.request_id] == "abort"
    return {
        "swaps": num_swaps,
        "aborts": list(tape.reasons.values()).count("abort"),
        "evictions": len(tape.preemptions()),
        "policy faults": engine.scheduler.num_policy_faults,
        "backend faults": len(tape.events("backend_fault")),
        "hits": sum(r.num_cached > 0 for r in tape.requests.values()),
    }


@settings(max_examples=80)
@given(st.integers(0, 2**32))
def test_no_token_changes_and_no_block_leaks(seed: int) -> None:
    _run(seed)


@pytest.mark.parametrize("num_hashes", [1, 2, 5])
def test_nor_under_colliding_hashes(num_hashes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_index, "xxh3_64_intdigest", lambda data, seed=0: 1 + _hash(data, seed) % num_hashes)
    for seed in range(15):
        _run(seed)


def test_the_runs_are_worth_it() -> None:
    met: dict[str, int] = {}
    for seed in range(20):
        for what, count in _run(seed).items():
            met[what] = met.get(what, 0) + count
    assert min(met.values()) >= 10, met
