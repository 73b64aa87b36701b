"""What steps and requests count, against counting each token of each batch."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyhow import Anyhow
from batchwright import Request, Step, hookimpl, prefix_index
from toolbox import BASIC, make_engine, make_request, play, prompt_of


class Ledger:
    """Counts by itself what was computed, and compares after every step."""

    name = "ledger"

    def __init__(self, counts_decodes: bool) -> None:
        self._counts_decodes = counts_decodes
        self.held: dict[Request, set[int]] = {}  # places whose K and V it had in its blocks at any time
        self.num_recomputed: dict[Request, int] = {}
        self.computed = 0
        self._rows: list[tuple[Request, int, int, bool]] = []

    @hookimpl
    def request_admitted(self, request: Request) -> None:
        self.held.setdefault(request, set()).update(range(request.num_cached))

    @hookimpl
    def step_finished(self, step: Step) -> None:
        prefill = decodes = recomputed = 0
        for request in step.batch:
            if request.is_finished or request in step.sampled:
                start = request.num_tokens - 1 - request.num_scheduled
            else:
                start = request.num_computed - request.num_scheduled
            places = set(range(start, start + request.num_scheduled))
            again = len(places & self.held[request])
            self.num_recomputed[request] = self.num_recomputed.get(request, 0) + again
            recomputed += again
            self.held[request] |= places
            is_decode = start >= request.num_prompt_tokens and request.num_scheduled == 1 and not again
            decodes += is_decode
            prefill += 0 if is_decode else request.num_scheduled
            assert request.num_recomputed == self.num_recomputed[request]
        assert step.num_recomputed == recomputed
        assert step.num_prefill_tokens + step.num_decodes == prefill + decodes
        assert step.num_prefill_tokens >= recomputed
        limits = step.limits
        assert len(step.batch) <= limits.max_num_seqs
        charged = step.num_prefill_tokens + (step.num_decodes if self._counts_decodes else 0)
        assert charged <= limits.max_num_batched_tokens
        assert step.budget == limits.max_num_batched_tokens - charged
        assert step.num_residents - len([r for r in step.finished if r in step.batch]) == len(step.running)


@given(
    policy=st.sampled_from([*BASIC, "random"]),
    visible=st.sampled_from(["computed", "scheduled"]),
    enabled=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_every_step_counts_right(policy: str, visible: str, enabled: bool, seed: int) -> None:
    rng = random.Random(seed)
    given_policy: Any = Anyhow(seed) if policy == "random" else policy
    ledger = Ledger(counts_decodes=policy in ("vllm_v1", "stall_free"))
    engine, tape = make_engine(
        given_policy,
        P=rng.choice([12, 16, 40]),
        T=rng.choice([6, 24]),
        S=rng.choice([3, 64]),
        plugins=[ledger],
        max_num_residents=rng.choice([None, 4]),
        prefix_cache={"visible": visible, "enabled": enabled},
    )
    stem = prompt_of("stem", 9)
    requests = [
        make_request(str(i), stem[: rng.randint(0, 9)] + prompt_of(str(i), rng.randint(1, 8)), rng.randint(1, 12))
        for i in range(8)
    ]
    play(engine, {2 * i: [r] for i, r in enumerate(requests)})
    assert engine.scheduler.num_observer_faults == 0, tape.events("observer_fault")
    assert len(tape.reasons) == 8


def test_the_ledger_meets_recomputing() -> None:
    ledger = Ledger(counts_decodes=False)
    engine, _ = make_engine(P=16, plugins=[ledger], prefix_cache={"enabled": False})
    play(engine, [make_request(str(i), 8, 24) for i in range(4)])
    assert engine.scheduler.num_observer_faults == 0
    assert sorted(ledger.num_recomputed.values()) == [0, 0, 16, 20]  # all but the last token sampled before


class Counted:
    """Counts how often blocks are hashed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_hashed = 0
        hashed = prefix_index.xxh3_64_intdigest

        def counted(data: bytes, seed: int = 0) -> int:
            self.num_hashed += 1
            return hashed(data, seed)

        monkeypatch.setattr(prefix_index, "xxh3_64_intdigest", counted)


@pytest.mark.parametrize("policy", BASIC)
def test_a_full_block_is_hashed_once_a_request(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it waits while others change the cache, and however often it is evicted."""
    counted = Counted(monkeypatch)
    engine, tape = make_engine(policy, P=30, T=200)
    requests = [make_request("long", 80, 4), make_request("blocked", 100, 4)]
    requests += [make_request(f"e{i}", 8, 20) for i in range(3)]
    play(engine, requests)
    assert len(tape.steps) > 20
    most = sum(-(-(r.num_tokens) // 4) for r in requests)
    assert counted.num_hashed <= most


def test_an_equal_prompt_is_found_by_its_first_block(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    engine, _ = make_engine(P=300)
    prompt = prompt_of("p", 400)  # blocks of 4: one cold, then the first to find the others, and the last, never a hit
    for number in range(3):
        play(engine, [make_request(str(number), prompt, 1)])
        assert counted.num_hashed == 100 + 2 * number
