"""The view that hooks get."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batchwright import BackendError, BatchwrightError, PluginError, Policy, Request, Step, hookimpl
from fake_backend import BlindBackend
from faulty import PrefillFirst
from toolbox import make_engine, make_request, play, prompt_of


class Looks(PrefillFirst):
    """The default policy, which calls a function in each admission."""

    def __init__(self, look: Callable[[Step], Any]) -> None:
        super().__init__()
        self._look = look

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        self._look(step)
        yield from super().admission(step)


def test_numbers_and_times() -> None:
    seen: list[Any] = []

    def look(step: Step) -> None:
        seen.append((step.index, step.now, step.now_s, step.end, step.budget, step.num_residents, step.free_blocks))

    engine, _ = make_engine(Looks(look), P=20, T=32, settings={"step_ns": 2_000_000})
    play(engine, [make_request("a", 9, 3)])
    assert seen == [
        (0, 0, 0.0, None, 32, 0, 20),
        (1, 2_000_000, 0.002, None, 32, 1, 17),
        (2, 4_000_000, 0.004, None, 32, 1, 17),
    ]
    step = engine.scheduler.step
    assert (step.num_blocks, step.block_size, step.limits.max_num_batched_tokens, step.end) == (20, 4, 32, 6_000_000)


def test_prefilling_and_decodes_part_the_residents() -> None:
    seen: list[tuple[list[str], list[str], bool]] = []

    def look(step: Step) -> None:
        assert set(step.prefilling) | set(step.decodes) == set(step.running)
        assert not set(step.prefilling) & set(step.decodes)
        assert all(r.is_prefilling for r in step.prefilling) and all(r.is_decode for r in step.decodes)
        ids = [[r.request_id for r in part] for part in (step.prefilling, step.decodes)]
        seen.append((ids[0], ids[1], step.decodes is step.running))

    engine, _ = make_engine(Looks(look), T=8)
    play(engine, {0: [make_request("a", 9, 6)], 2: [make_request("b", 17, 2)]})
    # A half-done prompt with one token left ("a" at step 1) is no decode.
    assert seen[1] == (["a"], [], False)
    assert seen[2] == ([], ["a"], True)
    assert seen[3] == (["b"], ["a"], False)
    assert seen[-1][2]


def test_evictable_is_who_could_be_evicted() -> None:
    seen: list[Any] = []

    class Asks(PrefillFirst):
        @hookimpl
        def preemption(self, step: Step, request: Request) -> Any:
            found = step.evictable
            expected = [r for r in step.running if r is not request and r not in step.batch and r not in step.preempted]
            assert list(found) == expected and list(reversed(found)) == expected[::-1]
            assert len(found) == len(expected) and bool(found) == bool(expected)
            if expected:
                assert (found[0], found[-1], found[1:]) == (expected[0], expected[-1], expected[1:])
            else:
                for place in (0, -1):
                    with pytest.raises(IndexError, match="nobody can be evicted: test `if step"):
                        found[place]
            seen.append((step.lacking, len(expected)))
            return super().preemption(step, request)

    engine, tape = make_engine(Asks(), P=14)
    play(engine, [make_request(str(i), 8, 24) for i in range(4)])
    assert len(tape.reasons) == 4
    assert {lacking for lacking, _ in seen} == {"blocks"}
    assert {min(n, 1) for _, n in seen} == {0, 1}
    assert engine.scheduler.step.lacking is None


def test_lacking_says_seats() -> None:
    seen: set[Any] = set()

    class Asks(PrefillFirst):
        @hookimpl
        def preemption(self, step: Step, request: Request) -> Any:
            seen.add((step.lacking, step.num_residents))
            return super().preemption(step, request)

    engine, tape = make_engine(Asks(), max_num_residents=2)
    play(engine, [make_request(str(i), 8, 4) for i in range(5)])
    assert len(tape.reasons) == 5
    assert seen == {("seats", 2)}


def test_num_cached_and_blocks_needed() -> None:
    seen: list[Any] = []

    def look(step: Step) -> None:
        seen.extend((r.request_id, step.num_cached(r), step.blocks_needed(r, r.num_tokens)) for r in step.waiting)

    prompt = prompt_of("p", 13)
    engine, tape = make_engine(Looks(look))
    play(
        engine,
        {0: [make_request("a", prompt, 3)], 1: [make_request("b", prompt, 3)], 9: [make_request("c", prompt, 2)]},
    )
    # "b" comes while "a" holds the three blocks: it takes one of its own. "c" finds them free: they cost as well.
    assert seen == [("a", 0, 4), ("b", 12, 1), ("c", 12, 4)]
    assert tape.requests["b"].num_cached == 12

    def residents(step: Step) -> None:
        for request in step.running:
            assert step.num_cached(request) == request.num_cached
            assert step.blocks_needed(request, request.num_tokens) == max(
                0, -(-request.num_tokens // 4) - len(request.block_table)
            )

    engine, _ = make_engine(Looks(residents))
    play(engine, {0: [make_request("a", prompt, 6)], 1: [make_request("b", prompt, 6)]})


def test_the_batch_and_the_budget_grow_as_it_is_built() -> None:
    seen: list[Any] = []

    class Builds(Policy):
        @hookimpl
        def admission(self, step: Step) -> Iterator[Any]:
            batch = step.batch  # kept: it must stay the batch of this step
            for request in itertools.chain(step.running, step.waiting):
                yield request
                seen.append((request.request_id, request.num_scheduled, len(batch), step.budget))
                assert batch is step.batch

    engine, _ = make_engine(Builds(), T=10)
    play(engine, [make_request(i, 4, 2) for i in "abc"])
    assert seen[:3] == [("a", 4, 1, 6), ("b", 4, 2, 2), ("c", 2, 3, 0)]
    assert seen[3:] == [("a", 1, 1, 9), ("b", 1, 2, 8), ("c", 2, 3, 6), ("c", 1, 1, 9)]


def test_a_kept_batch_stays_the_batch_when_all_residents_are_offered() -> None:
    seen: list[int] = []

    class Keeps(Policy):
        @hookimpl
        def admission(self, step: Step) -> Iterator[Any]:
            batch = step.batch
            yield step.running
            yield list(step.waiting)
            seen.append(len(batch))

    engine, _ = make_engine(Keeps())
    play(engine, [make_request(i, 4, 3) for i in "abc"])
    assert seen == [3, 3, 3]


def test_the_only_source_of_chance_is_seeded() -> None:
    def draws(seed: int) -> list[float]:
        seen: list[float] = []
        engine, _ = make_engine(Looks(lambda step: seen.append(step.rng.random())), seed=seed)
        play(engine, [make_request("a", 4, 5)])
        return seen

    assert draws(1) == draws(1) != draws(2)


class Predicts(PrefillFirst):
    uses_predict = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        self.seen.append(step.predict_s())
        for request in step.waiting:
            self.seen.append(step.predict_s(request, 2))
        yield from super().admission(step)


def test_predict_s() -> None:
    policy = Predicts()
    engine, _ = make_engine(policy, settings={"step_ns": 3_000_000})
    play(engine, [make_request("a", 4, 2)])
    assert policy.seen == [0.0, 0.003, 0.0]


def test_predict_s_without_an_estimate_is_refused_at_load() -> None:
    with pytest.raises(PluginError, match=r"needs step times in advance .*use a sim backend, or another policy"):
        make_engine(Predicts(), backend=BlindBackend())
    engine, _ = make_engine(backend=BlindBackend())
    with pytest.raises(PluginError, match="no cost estimate"):
        engine.swap_policy(Predicts())
    assert engine.policy_name == "prefill_first"


def test_predict_s_undeclared_is_an_error_of_the_policy() -> None:
    errors: list[BaseException] = []

    def look(step: Step) -> None:
        try:
            step.predict_s(next(iter(step.waiting)), 1)
        except BatchwrightError as error:
            errors.append(error)

    engine, _ = make_engine(Looks(look), backend=BlindBackend())
    play(engine, [make_request("a", 4, 1)])
    assert isinstance(errors[0], BackendError) and "no cost estimate" in str(errors[0])
