"""Our scheduler in the place of vLLM's asynchronous one: a step is scheduled while the one before it runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.core.sched.interface import PauseState  # pyright: ignore[reportMissingImports]
from vllm.v1.engine import FinishReason  # pyright: ignore[reportMissingImports]
from vllm.v1.request import RequestStatus  # pyright: ignore[reportMissingImports]

from backends.vllm.aborting import check_aborts
from backends.vllm.ahead import AheadWorkers, ours_ahead, stock_ahead
from backends.vllm.runs import BLOCK, EOS, POLICIES, VOCAB, Run, answer, check_answers, load, offer, stock
from backends.vllm.test_host_faults import HANGS
from batchwright import hookimpl
from batchwright.errors import BatchwrightError

Row = tuple[str, list[int], int, int, bool]

RAISES = """
from batchwright import Policy, hookimpl


class Broken(Policy):
    @hookimpl
    def admission(self, step):
        yield step.running
        if step.index % 3 == 1:
            raise RuntimeError('on purpose')
        yield step.waiting
"""


@pytest.mark.parametrize("num_blocks", [14, 200])
@pytest.mark.parametrize("policy", POLICIES)
def test_everybody_gets_his_tokens(policy: str, num_blocks: int) -> None:
    """With a pool of 14 blocks residents are evicted all the time, some with a step under way."""
    run = ours_ahead(policy, num_blocks, 6, 48)
    rows = load(1)
    for i, row in enumerate(rows):
        offer(run, row)
        if i % 3:
            run.step()
    run.finish()
    check_answers(run, rows)
    assert (run.core.num_preemptions > 0) == (num_blocks == 14 and policy != "no_evict")


@given(st.integers(0, 10_000), st.sampled_from(POLICIES), st.data())
def test_aborts_lose_nothing(seed: int, policy: str, data: st.DataObject) -> None:
    """Whoever is aborted, with one step under way or two, the others get their tokens and all blocks come back."""
    check_aborts(ours_ahead(policy, 16, 4, 40), seed, data)


def play(run: Run, rows: list[Row]) -> list[dict[str, int]]:
    """Requests come one a step; the steps in which anything ran."""
    for row in rows:
        offer(run, row)
        run.step()
    run.finish()
    check_answers(run, rows)
    return [step for step in run.workers.steps if step]


@given(st.integers(0, 10_000), st.integers(13, 60), st.integers(1, 8), st.integers(8, 80))
def test_who_ends_by_length_ends_as_without(seed: int, num_blocks: int, seats: int, budget: int) -> None:
    """Under vllm_v1, the same requests with the same tokens in every step as vLLM's scheduler that waits for each step:
    nobody is scheduled beyond his length, and his seat and blocks are free for the next step.

    (vLLM's asynchronous one keeps both for a step more.)
    """
    rows = [(*row[:4], True) for row in load(seed, 8)]
    sizes = num_blocks, seats, budget
    assert play(ours_ahead("vllm_v1", *sizes), rows) == play(stock(*sizes), rows)


@given(st.integers(0, 10_000), st.integers(8, 80))
def test_with_room_for_all_steps_are_those_of_stock(seed: int, budget: int) -> None:
    """Of its asynchronous scheduler, rows that come too late included."""
    rows = load(seed, 8)
    runs = stock_ahead(200, 8, budget), ours_ahead("vllm_v1", 200, 8, budget)
    theirs, mine = (play(run, rows) for run in runs)
    assert mine == theirs
    assert (runs[0].told, runs[0].ends, runs[0].stops) == (runs[1].told, runs[1].ends, runs[1].stops)
    assert sum(map(len, mine)) >= sum(map(len, play(stock(200, 8, budget), rows)))


@given(st.integers(0, 10_000), st.integers(13, 60), st.integers(1, 8), st.integers(8, 80))
def test_with_too_little_room_tokens_are_those_of_stock(seed: int, num_blocks: int, seats: int, budget: int) -> None:
    rows = load(seed, 8)
    runs = stock_ahead(num_blocks, seats, budget), ours_ahead("vllm_v1", num_blocks, seats, budget)
    for run in runs:
        play(run, rows)
    assert (runs[0].told, runs[0].ends, runs[0].stops) == (runs[1].told, runs[1].ends, runs[1].stops)


def test_who_stops_has_a_row_too_many_and_no_token_of_it() -> None:
    prompt = [5, 6, 7]
    expected = answer(prompt, 20, ignore_eos=True)
    stop = next(token for token in expected[3:] if token != EOS and expected.index(token) >= 3)
    run = ours_ahead("vllm_v1", 60, 4, 64)
    run.add("stops", prompt, 20, ignore_eos=True, stop_token_ids=[stop])
    run.finish()
    said = expected[: expected.index(stop) + 1]
    assert (run.told["stops"], run.ends["stops"], run.stops["stops"]) == (said, FinishReason.STOP, stop)
    assert [step for step in run.workers.steps if step] == [{"stops": 3}, *[{"stops": 1}] * len(said)]


def test_a_stop_with_the_last_token_is_a_stop() -> None:
    prompt = [5, 6, 7]
    last = answer(prompt, 4, ignore_eos=True)[-1]
    run = ours_ahead("vllm_v1", 60, 4, 64)
    run.add("stops", prompt, 4, ignore_eos=True, stop_token_ids=[last])
    run.finish()
    assert (run.ends["stops"], run.stops["stops"]) == (FinishReason.STOP, last)
    assert len([step for step in run.workers.steps if step]) == 4


def test_repetitions_are_found() -> None:
    """They are looked for in each token when it is there."""
    from vllm.sampling_params import RepetitionDetectionParams  # pyright: ignore[reportMissingImports]

    class Parrot(AheadWorkers):
        def _run(self, name: str, start: int, num: int) -> list[int]:
            said = super()._run(name, start, num)
            if said:
                self.tokens[name][-1] = 9
            return self.tokens[name][-1:] if said else []

    run = ours_ahead("vllm_v1", 60, 4, 64)
    run.workers = Parrot(BLOCK, VOCAB)
    detection = RepetitionDetectionParams(max_pattern_size=2, min_count=5)
    run.add("parrot", [5, 6, 7], 50, ignore_eos=True, repetition_detection=detection)
    run.finish()
    assert run.told["parrot"] == [9] * 5
    assert (run.ends["parrot"], run.stops["parrot"]) == (FinishReason.REPETITION, "repetition_detected")


def test_who_leaves_with_the_last_step_under_way_gets_nothing_more() -> None:
    run = ours_ahead("vllm_v1", 60, 4, 64)
    run.add("leaves", [5, 6, 7], 3, ignore_eos=True)
    run.add("stays", [5, 6, 8], 9, ignore_eos=True)
    for _ in range(3):
        run.step()

    def leave() -> None:
        assert run.core.core.get("leaves") is None  # it has ended by its length, and its last token is still to come
        assert "leaves" not in run.workers.tokens and not run.core.has_finished_requests()  # workers know
        [ended] = run.core.finish_requests("leaves", RequestStatus.FINISHED_ABORTED)
        assert ended.status == RequestStatus.FINISHED_ABORTED
        assert run.core.finish_requests("leaves", RequestStatus.FINISHED_ABORTED) == []

    run.step(leave)
    run.finish()
    assert len(run.told["leaves"]) == 2 and "leaves" not in run.ends
    assert len(run.told["stays"]) == 9 and run.core.get_kv_cache_usage() == 0


def test_an_id_may_be_used_again_at_once() -> None:
    """What is under way of the one who had it before is not taken for another's."""
    run = ours_ahead("vllm_v1", 60, 4, 64)
    run.add("same", [5, 6, 7], 9, ignore_eos=True)
    for _ in range(3):
        run.step()
    before = len(run.told["same"])
    run.core.finish_requests("same", RequestStatus.FINISHED_ABORTED)
    run.add("same", [8, 9], 5, ignore_eos=True)
    run.finish()
    assert run.told["same"][before:] == answer([8, 9], 5, ignore_eos=True)
    assert run.core.get_kv_cache_usage() == 0


def test_one_may_pause_with_a_step_under_way() -> None:
    run, rows = ours_ahead("prefill_first", 16, 4, 40), load(7, 6)
    for i, row in enumerate(rows):
        offer(run, row)
        run.step()
        if i % 2:
            run.core.set_pause_state(PauseState.PAUSED_ALL)
            assert not run.core.has_unfinished_requests()
            while run.under_way:
                run.step()
            told = dict(run.told)
            run.step()
            assert run.told == told and not run.core.reset_prefix_cache()
            run.core.set_pause_state(PauseState.UNPAUSED)
    run.finish()
    check_answers(run, rows)


def test_the_prefix_cache_is_forgotten_between_two_steps() -> None:
    """Not while somebody holds blocks, and at once when nobody does though the last step is under way."""
    run = ours_ahead("vllm_v1", 60, 4, 64)
    prompt = list(range(40))
    run.add("a", prompt, 2, ignore_eos=True)
    run.step()
    assert not run.core.reset_prefix_cache()
    run.step()
    run.step()
    assert run.under_way and run.core.get_kv_cache_usage() == 0
    run.add("b", prompt, 2, ignore_eos=True)
    run.step()
    assert run.workers.steps[-1]["b"] == 8
    run.finish()
    run.add("c", prompt, 2, ignore_eos=True)
    assert run.core.reset_prefix_cache()
    run.step()
    assert run.workers.steps[-1]["c"] == 40
    run.finish()


def test_blocks_with_tokens_that_are_not_known_are_found_a_step_later() -> None:
    """A next turn, which repeats an answer, finds its blocks; as with vLLM's asynchronous scheduler."""
    prompt = list(range(20))
    said = answer(prompt, 29, ignore_eos=True)
    found: list[list[int]] = []
    for make in (stock_ahead, partial(ours_ahead, "vllm_v1")):
        found.append([])
        for late in range(12, 30):
            run = make(200, 8, 64)
            run.add("first", prompt, 40, ignore_eos=True)
            for _ in range(late):
                run.step()
            run.add("next", [*prompt, *said, 1, 2, 3], 2, ignore_eos=True)
            run.step()
            found[-1].append(run.workers.steps[-1]["next"])
            run.finish()
            assert run.told["first"] == answer(prompt, 40, ignore_eos=True)
            assert run.told["next"] == answer([*prompt, *said, 1, 2, 3], 2, ignore_eos=True)
    assert found[1] == found[0] and len(set(found[0])) > 1


@pytest.mark.parametrize("num_blocks", [16, 200])
def test_a_policy_that_raises_loses_nothing(tmp_path: Path, num_blocks: int) -> None:
    path = tmp_path / "broken.py"
    path.write_text(RAISES)
    run = ours_ahead(f"{path}:Broken", num_blocks, 4, 40)
    play(run, load(5, 8))
    assert run.core.num_fallbacks["raised"] > 2


def test_a_policy_that_hangs_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "hangs.py"
    path.write_text(HANGS)
    run = ours_ahead({"policy": f"{path}:Hangs", "max_policy_ms": 30}, 16, 4, 40)
    rows = load(6, 5)
    for row in rows:
        offer(run, row)
    for _ in range(9):
        run.step()
    assert run.core.num_fallbacks == {"late": 3}
    run.core.set_pause_state(PauseState.PAUSED_ALL)
    while run.under_way:
        run.step()
    run.core.core.swap_policy("prefill_first")
    run.core.set_pause_state(PauseState.UNPAUSED)
    run.finish()
    check_answers(run, rows)


def test_steps_come_back_in_their_order() -> None:
    run = ours_ahead("vllm_v1", 60, 4, 64)
    run.add("a", [5, 6, 7], 9, ignore_eos=True)
    told = [run.core.schedule(), run.core.schedule()]
    outputs = [run.workers.execute(one) for one in told]
    with pytest.raises(BatchwrightError, match="in their order"):
        run.update(told[1], outputs[1])
    with pytest.raises(BatchwrightError, match="with two steps under way"):
        run.core.schedule()
    run.update(told[0], outputs[0])
    run.update(told[1], outputs[1])
    with pytest.raises(BatchwrightError, match="in their order"):
        run.update(told[1], outputs[1])
    run.finish()
    check = answer([5, 6, 7], 9, ignore_eos=True)
    assert run.told["a"] == check


class Looks:
    """An observer that reads what may not be known yet."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, int | None, int | None]] = []
        self.results: list[tuple[list[int], int]] = []
        self.ends: list[int] = []

    @hookimpl
    def step_started(self, step: Any) -> None:
        for request in step.running:
            told = len(request.output_token_ids)
            times = request.first_token_ns, request.last_token_ns
            self.seen.append((step.now, request.num_output_tokens, told, *times))

    @hookimpl
    def step_finished(self, step: Any, result: Any) -> None:
        self.results.append((list(result.token_ids), result.elapsed_ns))
        self.ends.append(step.end)


def test_what_is_seen_of_tokens_under_way() -> None:
    """They count, have the time at which the next step was scheduled, and no value; afterwards all is as it was."""
    run, looks = ours_ahead("vllm_v1", 60, 4, 64), Looks()
    run.core.core.register(looks, "looks")
    run.add("a", [5, 6, 7], 9, ignore_eos=True)
    request = run.core.our_request("a")
    for _ in range(4):
        run.step()
    assert run.core.our_request("nobody") is None
    nows = [now for now, *_ in looks.seen]
    assert [(num, told) for _, num, told, *_ in looks.seen] == [(1, 0), (2, 1), (3, 2)]
    assert [last for *_, last in looks.seen] == nows == looks.ends
    assert looks.results == [([-1], looks.results[i][1]) for i in range(3)]
    first = looks.seen[0][3]
    assert first == nows[0] and request.first_token_ns > first
    assert looks.seen[1][3] == looks.seen[2][3] == request.first_token_ns < nows[1]
    assert request.last_token_ns > nows[2]
    assert request.output_token_ids[:] == run.told["a"] == answer([5, 6, 7], 3, ignore_eos=True)
