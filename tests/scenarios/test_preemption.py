"""Scenarios P1 to P6, P8, P9: who is evicted, what comes back, and that no token changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from batchwright import HOLD, Engine, EngineConfig, Policy, Request, Step, hookimpl
from batchwright.plugins import load_plugins
from fake_backend import expected_tokens
from toolbox import EVICTING, Tape, check_whole, expected_of, make_engine, make_request, play, prompt_of

PrefillFirst: Any = load_plugins().policy("prefill_first")


def test_p1_the_newest_are_evicted() -> None:
    engine, tape = make_engine("prefill_first", bs=4, P=16)
    lengths: dict[str, int] = {}

    class Lengths:
        @hookimpl
        def request_preempted(self, victim: Request) -> None:
            lengths[victim.request_id] = victim.num_tokens

    engine.scheduler.register(Lengths())
    assert play(engine, [make_request(str(i), 8, 24) for i in range(4)]) == 39
    assert tape.preemptions() == [(9, "3"), (13, "2")]
    assert lengths == {"3": 17, "2": 21}
    assert tape.num_prefill_tokens == 70
    assert tape.finish_steps() == {"0": 23, "1": 23, "2": 34, "3": 38}
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


def test_p2_evictions_one_after_the_other() -> None:
    engine, tape = make_engine("prefill_first", bs=4, P=6)
    assert play(engine, [make_request(str(i), 7, 12) for i in range(3)]) == 28
    assert tape.preemptions() == [(2, "2"), (6, "1")]
    assert tape.num_prefill_tokens == 39
    assert tape.finish_steps() == {"0": 11, "1": 17, "2": 27}


class ReservesNothing(PrefillFirst):
    """The default policy, with blocks taken chunk by chunk."""

    @hookimpl
    def reservation(self, step: Step, request: Request) -> int:
        return 0


def _p3_requests() -> list[Request]:
    return [make_request(str(i), 399, 30) for i in range(4)] + [make_request("4", 400, 2)]


def test_p3_reserving_the_whole_prompt_preempts_nobody() -> None:
    engine, tape = make_engine("prefill_first", bs=16, P=110, T=64)
    play(engine, _p3_requests())
    assert tape.preemptions() == []
    assert tape.num_prefill_tokens == 1996
    assert tape.events("thrash") == []


def test_p3_reserving_nothing_thrashes_and_the_detector_trips() -> None:
    # Without the prefix cache, which would give back much of what a victim computed.
    engine, tape = make_engine(ReservesNothing(), bs=16, P=110, T=64, prefix_cache={"enabled": False})
    play(engine, _p3_requests())
    computed = tape.num_prefill_tokens
    recomputed = sum(r.num_recomputed for r in tape.requests.values())
    assert recomputed > 0.3 * (computed + sum(s.num_decodes for s in tape.steps))
    assert [e["kind"] for s in tape.steps for e in s.events] == ["thrash"]
    event = tape.events("thrash")[0]
    assert event["recomputed_share"] > 0.3
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


class WorstFirst(Policy):
    """Offers the lowest in rank first, and evicts the lowest in rank, from the batch too."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int, int, list[int]]] = []

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        everybody = sorted((*step.running, *step.waiting), key=lambda r: -r.priority)
        for request in everybody:
            yield request
            self.seen.append((request.request_id, request.num_scheduled, step.budget, []))

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Any:
        worst = max((r for r in (*step.running, *step.batch) if r.is_resident), key=lambda r: r.priority)
        if worst.priority <= request.priority:
            return request if request.is_resident else HOLD
        self.seen.append((f"evict {worst.request_id}", worst.num_scheduled, step.budget, list(worst.block_table)))
        return worst


def test_p4_a_victim_in_the_batch_is_taken_out_whole() -> None:
    policy = WorstFirst()
    engine, tape = make_engine(policy, bs=4, P=4, T=6)
    high, low, last = make_request("A", 8, 4, priority=0), make_request("C", 5, 3, priority=2), make_request("D", 4, 1)
    engine.add_request(high)
    engine.advance()  # A: 6 of its 8 tokens
    engine.advance()  # A: the rest, and it samples the ninth, for which it has no block
    assert (high.num_tokens, len(high.block_table)) == (9, 2)
    engine.add_request(low)
    engine.add_request(last)
    policy.seen.clear()
    engine.advance()
    check_whole(engine.scheduler)
    evictions = [seen for seen in policy.seen if seen[0].startswith("evict")]
    assert [(who, count, budget) for who, count, budget, _ in evictions] == [("evict C", 5, 1)]
    assert len(evictions[0][3]) == 2  # it held both free blocks, and was in the batch with 5 tokens
    assert policy.seen[-2][:3] == ("A", 1, 5)  # its 5 tokens went back to the budget, and A took one
    assert tape.steps[-1].batch == [("A", 1), ("D", 4)]
    assert tape.steps[-1].preempted == ["C"]
    assert low.is_waiting and not low.block_table and low.num_preemptions == 1
    play(engine, [])
    for request in (high, low, last):
        assert request.output_token_ids == expected_of(request)


class Ranked(Policy):
    """Who has a lower priority number goes first; a seat or a block is taken only from who is strictly worse."""

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        yield from sorted((*step.waiting, *step.running), key=lambda r: (r.priority, r.arrival_index))

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Any:
        worse = [r for r in step.evictable if r.priority > request.priority]
        if worse:
            return max(worse, key=lambda r: (r.priority, r.arrival_index))
        return request if request.is_resident else HOLD


@pytest.mark.parametrize("num_newcomers", [1, 2])
def test_p5_seats_go_to_the_higher_priority_and_never_to_an_equal(num_newcomers: int) -> None:
    engine, tape = make_engine(Ranked(), max_num_residents=2)
    arrivals = {0: [make_request("a", 4, 12, priority=10), make_request("b", 4, 12, priority=10)]}
    newcomers = [make_request(f"high{i}", 4, 6, priority=0) for i in range(num_newcomers)]
    play(engine, arrivals | {3: newcomers, 4: [make_request("equal", 4, 6, priority=10)]})
    assert tape.preemptions() == [(3, "b"), (3, "a")][:num_newcomers]
    assert tape.requests["equal"].num_preemptions == 0
    assert len(tape.reasons) == 3 + num_newcomers


def _p6_requests(temperature: float) -> list[Request]:
    return [make_request(f"r{i}", 5 + 3 * i, 14, temperature=temperature, priority=i % 3) for i in range(6)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("policy", [*EVICTING, "vllm_v1:scheduling_policy=priority"])
def test_p6_evictions_change_no_token(policy: str, temperature: float) -> None:
    outputs = []
    for num_blocks in (200, 12):
        engine, tape = make_engine(policy, bs=4, P=num_blocks, T=24)
        play(engine, _p6_requests(temperature))
        assert bool(tape.preemptions()) == (num_blocks == 12)
        outputs.append({i: r.output_token_ids[:] for i, r in tape.requests.items()})
        for request in tape.requests.values():
            assert request.output_token_ids == expected_of(request)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("policy", EVICTING)
def test_p6_nor_on_the_simulator(policy: str) -> None:
    outputs = []
    for num_blocks in (200, 12):
        tape = Tape()
        config = EngineConfig(
            policy=policy,
            backend="sim:llama-3.1-8b@h100",
            num_blocks=num_blocks,
            block_size=4,
            max_num_batched_tokens=24,
        )
        with Engine(config, plugins=[tape]) as engine:
            play(engine, _p6_requests(0.8))
        assert bool(tape.preemptions()) == (num_blocks == 12)
        outputs.append({i: r.output_token_ids[:] for i, r in tape.requests.items()})
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("visible", ["computed", "scheduled"])
def test_p8_the_need_is_counted_anew_after_every_eviction(visible: str) -> None:
    engine, tape = make_engine(Ranked(), bs=4, P=5, prefix_cache={"visible": visible})
    shared = prompt_of("shared", 8)
    victim, other = make_request("V", shared, 5, priority=5), make_request("W", 5, 3, priority=4)
    engine.add_request(victim)
    engine.add_request(other)
    engine.advance()
    engine.advance()
    assert (len(victim.block_table), len(other.block_table), engine.scheduler.blocks.num_free) == (3, 2, 0)
    # 16 tokens: two blocks hit, which V holds, and two more. With V evicted three blocks are free, and two of them are
    # the hits: one is left for two. A need counted once would take a block from an empty pool.
    asker = make_request("R", shared + prompt_of("R", 8), 1, priority=0)
    play(engine, {0: [asker]})
    assert tape.preemptions() == [(2, "V"), (2, "W")]
    assert tape.steps[2].batch[0] == ("R", 8)
    for request in (victim, other, asker):
        assert request.output_token_ids == expected_of(request)


class ReservesAll(PrefillFirst):
    """The default policy, with all blocks a request can need taken at its admission."""

    @hookimpl
    def reservation(self, step: Step, request: Request) -> int:
        return request.num_prompt_tokens + request.max_tokens


@pytest.mark.parametrize("visible", ["computed", "scheduled"])
def test_p9_blocks_are_registered_as_they_fill(visible: str) -> None:
    engine, tape = make_engine(ReservesAll(), bs=4, prefix_cache={"visible": visible})
    first = make_request("first", 9, 24)
    prompt = first.prompt_token_ids[:]
    engine.add_request(first)
    engine.advance()
    assert len(first.block_table) == 8  # 9 + 24 - 1 tokens
    again = make_request("again", prompt, 2)
    play(engine, [again])
    assert again.num_cached == 8
    assert tape.steps[1].batch == [("again", 1)]
    # And output tokens, which fill blocks in the middle of the reservation.
    engine, tape = make_engine(ReservesAll(), bs=4, prefix_cache={"visible": visible})
    first = make_request("first", 9, 24)
    known = prompt + expected_tokens(prompt, first.sampling_params.seed or 0, 11)
    play(engine, {0: [first], 14: [make_request("later", known, 2)]})
    assert tape.requests["later"].num_cached == 16  # of 20 tokens: the last block is never taken from the cache
    assert tape.reasons == {"first": "length", "later": "length"}
