"""Structured output with our scheduler in the place of vLLM's, waiting for each step or ahead of it: nobody gets a
token that his grammar does not allow, and nobody is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.engine import FinishReason  # pyright: ignore[reportMissingImports]
from vllm.v1.request import RequestStatus  # pyright: ignore[reportMissingImports]

from backends.vllm.aborting import Aborting
from backends.vllm.ahead import Ahead, ours_ahead, stock_ahead
from backends.vllm.runs import EOS, POLICIES, VOCAB, Run, answer, load, ours, stock
from backends.vllm.small_grammars import Grammar
from batchwright import hookimpl

Row = tuple[str, list[int], int, int, bool]
Make = Callable[[str, int, int, int], Run]

both_ways = pytest.mark.parametrize("make", [ours, ours_ahead], ids=["waiting", "ahead"])


def grammar_of(row: Row) -> Grammar | None:
    """Of two in three requests; some end before their length, and most after it."""
    seed = int(row[0][1:])
    return Grammar(seed, 5 + 7 * seed % 40) if seed % 3 else None


def offer(run: Run, row: Row, grammar: Grammar | Future[Grammar] | None) -> None:
    name, prompt, max_tokens, priority, ignore_eos = row
    run.add(name, prompt, max_tokens, priority, ignore_eos=ignore_eos, grammar=grammar)


def check(run: Run, rows: list[Row]) -> None:
    """Each got what the "model" says to him alone."""
    for row in rows:
        name, prompt, max_tokens, _, ignore_eos = row
        expected = answer(prompt, max_tokens, ignore_eos=ignore_eos, grammar=grammar_of(row))
        assert run.told[name] == expected
        stopped = expected[-1] == EOS and not ignore_eos
        assert run.ends[name] == (FinishReason.STOP if stopped else FinishReason.LENGTH)
    assert run.core.get_kv_cache_usage() == 0
    assert run.core.get_request_counts() == (0, 0)


class Compiler:
    """Grammars that are compiled while steps are taken, each after some of them."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._left: list[tuple[int, Future[Grammar], Grammar]] = []

    def begin(self, row: Row) -> Grammar | Future[Grammar] | None:
        grammar, steps = grammar_of(row), self._rng.choice((-1, 0, 1, 3, 9))
        if grammar is None or steps < 0:
            return grammar
        future: Future[Grammar] = Future()
        self._left.append((steps, future, grammar))
        return future

    def go_on(self) -> None:
        left, self._left = self._left, []
        self._rng.shuffle(left)
        for steps, future, grammar in left:
            if steps > 0:
                self._left.append((steps - 1, future, grammar))
            elif future.set_running_or_notify_cancel():
                future.set_result(grammar)


def play(run: Run, rows: list[Row], seed: int) -> list[dict[str, int]]:
    """Requests come one a step; the steps in which anything ran."""
    compiler = Compiler(seed)
    for row in rows:
        offer(run, row, compiler.begin(row))
        compiler.go_on()
        run.step()
    while run.core.has_requests() or getattr(run, "under_way", None):
        compiler.go_on()
        run.step()
    return [step for step in run.workers.steps if step]


@both_ways
@pytest.mark.parametrize("num_blocks", [14, 200])
@pytest.mark.parametrize("policy", POLICIES)
def test_everybody_gets_his_tokens(policy: str, num_blocks: int, make: Make) -> None:
    """With a pool of 14 blocks residents are evicted in the middle of their grammars."""
    run, rows = make(policy, num_blocks, 6, 48), load(1)
    play(run, rows, 0)
    check(run, rows)
    assert (run.core.num_preemptions > 0) == (num_blocks == 14 and policy != "no_evict")
    assert run.workers.num_masked > 100
    assert not isinstance(run, Ahead) or run.num_late > 20


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(13, 60), st.integers(1, 8), st.integers(8, 80))
def test_vllm_v1_decides_as_stock(seed: int, num_blocks: int, seats: int, budget: int) -> None:
    """The same requests with the same tokens in every step, where all grammars are there."""
    runs, rows = (stock(num_blocks, seats, budget), ours("vllm_v1", num_blocks, seats, budget)), load(seed, 8)
    for run in runs:
        for row in rows:
            offer(run, row, grammar_of(row))
            run.step()
        run.finish()
        check(run, rows)
    one, other = runs
    assert other.workers.steps == one.workers.steps
    assert (one.told, one.ends, one.stops) == (other.told, other.ends, other.stops)


@pytest.mark.parametrize("makes", [(stock, ours), (stock_ahead, ours_ahead)], ids=["waiting", "ahead"])
@settings(max_examples=15)
@given(st.integers(0, 10_000))
def test_with_room_for_all_steps_are_those_of_stock(makes: tuple[Any, Any], seed: int) -> None:
    """Whenever grammars are there; ahead, masks are made when vLLM makes them. Prompts share nothing: of two that come
    into one step the second would hit the blocks of the first."""
    runs = makes[0](200, 8, 1100), makes[1]("vllm_v1", 200, 8, 1100)
    rows = [(row[0], [i, *row[1]], *row[2:]) for i, row in enumerate(load(seed, 8))]
    theirs, mine = (play(run, rows, seed) for run in runs)
    check(runs[1], rows)
    assert mine == theirs
    assert (runs[0].told, runs[0].ends, runs[0].stops) == (runs[1].told, runs[1].ends, runs[1].stops)
    assert runs[0].workers.num_masked == runs[1].workers.num_masked
    assert getattr(runs[0], "num_late", 0) == getattr(runs[1], "num_late", 0)


@both_ways
@settings(max_examples=40)
@given(st.integers(0, 10_000), st.sampled_from(POLICIES), st.data())
def test_aborts_lose_nothing(make: Make, seed: int, policy: str, data: st.DataObject) -> None:
    """Of whoever waits for a grammar, is in one, or is through with it."""
    run, rows, compiler = make(policy, 16, 4, 40), load(seed, 8), Compiler(seed)
    abort = Aborting(run, rows, data)
    for row in rows:
        offer(run, row, compiler.begin(row))
        run.step(abort)
        compiler.go_on()
        abort()
    while run.core.has_requests() or getattr(run, "under_way", None):
        compiler.go_on()
        run.step()
    assert abort.gone.isdisjoint(run.ends)
    check(run, [row for row in rows if row[0] not in abort.gone])


@contextmanager
def compiling(run: Run, name: str = "a", **params: Any) -> Iterator[Future[Grammar]]:
    """A request whose grammar is being compiled."""
    future: Future[Grammar] = Future()
    run.add(name, [5, 6, 7], 9, grammar=future, **params)
    assert run.core.get_request_counts() == (0, 1) and run.core.get_num_unfinished_requests() == 1
    run.step()
    run.step()
    assert not any(run.workers.steps) and run.core.core.get(name) is None
    yield future


@both_ways
def test_whoever_waits_for_a_grammar_may_leave(make: Make) -> None:
    """What nobody has begun to compile is not compiled, and what comes of it otherwise is nobody's."""
    for is_begun in (False, True):
        run = make("vllm_v1", 60, 4, 64)
        with compiling(run) as future:
            if is_begun:
                future.set_running_or_notify_cancel()
            [ended] = run.core.finish_requests("a", RequestStatus.FINISHED_ABORTED)
            assert ended.status == RequestStatus.FINISHED_ABORTED
            assert future.cancelled() == (not is_begun)
            assert run.core.finish_requests("a", RequestStatus.FINISHED_ABORTED) == []
            run.add("a", [8, 9], 3, ignore_eos=True)  # the id may be used again at once
            if is_begun:
                future.set_result(Grammar(0, 5))
        run.finish()
        assert run.told == {"a": answer([8, 9], 3, ignore_eos=True)} and run.ends == {"a": FinishReason.LENGTH}


def test_an_id_may_be_used_again_before_a_mask_is_made() -> None:
    """The row that is under way is that of who left."""
    run, future = ours_ahead("vllm_v1", 60, 4, 64), Future[Grammar]()
    run.add("same", [5, 6, 7], 20, grammar=Grammar(1, 30))
    run.add("other", [5, 6, 8], 20, grammar=Grammar(2, 30))
    for _ in range(4):
        run.step()

    def again() -> None:
        run.core.finish_requests("same", RequestStatus.FINISHED_ABORTED)
        run.told.pop("same")
        run.add("same", [8, 9], 5, grammar=future)

    late = run.num_late
    run.step(again)
    assert run.num_late == late + 1
    future.set_result(Grammar(3, 30))
    run.finish()
    assert run.told["same"] == answer([8, 9], 5, ignore_eos=False, grammar=Grammar(3, 30))
    assert run.told["other"] == answer([5, 6, 8], 20, ignore_eos=False, grammar=Grammar(2, 30))


@both_ways
def test_a_grammar_that_cannot_be_compiled_ends_its_request(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """At once or later, with an error; the others do not notice."""
    run = make("vllm_v1", 60, 4, 64)
    bad: Future[Grammar] = Future()
    bad.set_exception(ValueError("there is no such thing"))
    with caplog.at_level("WARNING", "vllm.batchwright"), compiling(run) as late:
        run.add("at once", [1, 2, 3], 5, grammar=bad)
        run.add("good", [1, 2, 3], 5, grammar=Grammar(3, 20))
        late.set_exception(ValueError("nor this"))
        run.finish()
    assert run.ends == {"a": FinishReason.ERROR, "at once": FinishReason.ERROR, "good": FinishReason.LENGTH}
    assert run.told["good"] == answer([1, 2, 3], 5, ignore_eos=False, grammar=Grammar(3, 20))
    assert "'at once' has a grammar that cannot be used: ValueError: there is no such thing" in caplog.text
    assert "'a' has a grammar that cannot be used: ValueError: nor this" in caplog.text
    assert run.core.get_num_unfinished_requests() == 0 and run.core.get_kv_cache_usage() == 0


@both_ways
def test_who_could_never_fit_is_refused_when_the_grammar_is_there(make: Make) -> None:
    run, future = make("vllm_v1", 12, 4, 64), Future[Grammar]()
    run.add("large", [1, 2, 3], 1000, grammar=future)
    future.set_result(Grammar(0, 3))
    run.finish()
    assert run.ends == {"large": FinishReason.ERROR} and run.core.get_num_unfinished_requests() == 0


@pytest.mark.parametrize("makes", [(stock, ours), (stock_ahead, ours_ahead)], ids=["waiting", "ahead"])
@pytest.mark.parametrize("length", [5, 30])
def test_a_token_that_a_grammar_rejects_ends_its_request(makes: tuple[Any, Any], length: int) -> None:
    """With an error, as with stock; also where it is the last. What policies are told says why."""
    ended: dict[str, tuple[str, str]] = {}

    class Looks:
        @hookimpl
        def request_finished(self, request: Any, reason: str) -> None:
            ended[request.request_id] = reason, request.error

    runs, told = (makes[0](60, 4, 64), makes[1]("vllm_v1", 60, 4, 64)), []
    runs[1].core.core.register(Looks(), "looks")
    for run in runs:
        run.add("bad", [5, 6, 7], length, grammar=Grammar(1, 40, rejects_at=4), ignore_eos=True)
        run.add("good", [5, 6, 7], 20, grammar=Grammar(2, 40), ignore_eos=True)
        run.finish()
        assert run.ends == {"bad": FinishReason.ERROR, "good": FinishReason.LENGTH}
        assert len(run.told["bad"]) == 5 and len(run.told["good"]) == 20
        assert run.core.get_kv_cache_usage() == 0
        told.append(run.told)
    assert told[0] == told[1]
    [reason, error] = ended["bad"]
    if length > 5 or makes[1] is ours:  # ahead, who reaches his length has ended in the policy's eyes
        assert reason == "error" and error.startswith("the grammar does not go on with token")


class Arrivals:
    """What a policy sees of who comes."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    @hookimpl
    def request_arrived(self, request: Any) -> None:
        self.seen.append((request.request_id, request.arrival_ns))


def test_a_request_arrives_when_its_grammar_is_there() -> None:
    """In the policy's eyes; in the order in which they came, and at the time at which they did."""
    run, looks = ours("vllm_v1", 60, 4, 64), Arrivals()
    run.core.core.register(looks, "looks")
    futures = [Future[Grammar]() for _ in range(3)]
    for i, future in enumerate(futures):
        run.add(f"r{i}", [5, 6, 7], 9, grammar=future)
    run.add("plain", [5, 6, 7], 2)
    futures[2].set_result(Grammar(2, 5))
    run.step()
    stats = run.core.make_stats()
    assert (stats.num_running_reqs, stats.num_waiting_reqs, stats.num_skipped_waiting_reqs) == (2, 0, 2)
    futures[1].set_result(Grammar(1, 5))
    futures[0].set_result(Grammar(0, 5))
    run.add("late", [5, 6, 7], 2)
    run.finish()
    names, times = zip(*looks.seen, strict=True)
    assert names == ("plain", "r2", "r0", "r1", "late")
    assert times[2] < times[3] < times[1] < times[0] < times[4]


def test_who_waits_for_a_grammar_costs_a_step_nothing() -> None:
    looked = []

    class Watched(Future[Grammar]):
        def done(self) -> bool:
            looked.append(1)
            return super().done()

    run = ours("vllm_v1", 60, 4, 64)
    for i in range(50):
        run.add(f"r{i}", [5, 6, 7], 9, grammar=Watched())
    run.add("plain", [5, 6, 7], 9, ignore_eos=True)
    looked.clear()
    for _ in range(9):
        run.step()
    assert len(run.told["plain"]) == 9 and not looked


THOUGHT = 11


class Reasoner:
    """A request thinks until it says so, and is not constrained before."""

    def __init__(self, tokenizer: Any) -> None:
        self.prompt: list[int] = tokenizer

    def is_reasoning_end(self, token_ids: Any) -> bool:
        return False

    def is_reasoning_end_streaming(self, token_ids: Any, delta_ids: Any) -> bool:
        assert list(token_ids[: len(self.prompt)]) == self.prompt and list(delta_ids) == list(token_ids[-1:])
        return THOUGHT in delta_ids


@pytest.mark.parametrize("makes", [(stock, ours), (stock_ahead, ours_ahead)], ids=["waiting", "ahead"])
@pytest.mark.parametrize("num_blocks", [9, 60])
def test_who_thinks_first_is_constrained_afterwards(makes: tuple[Any, Any], num_blocks: int) -> None:
    """As with stock."""
    told = []
    for run in (makes[0](num_blocks, 4, 64), makes[1]("vllm_v1", num_blocks, 4, 64)):
        manager = run.core.structured_output_manager
        manager.reasoner_cls, manager.tokenizer = Reasoner, [5, 6, 7]
        for i in range(6):
            run.add(f"r{i}", [5, 6, 7, i], 60, grammar=Grammar(i, 90), ignore_eos=True)
        run.finish()
        told.append((run.told, run.ends))
    assert told[0] == told[1]
    ends = [tokens.index(THOUGHT) for tokens in told[0][0].values() if THOUGHT in tokens]
    assert len(ends) > 2
    for i, tokens in enumerate(told[1][0][f"r{i}"] for i in range(6)):
        alone = answer([5, 6, 7, i], 60, ignore_eos=True)
        assert tokens == alone or THOUGHT in tokens
        grammar = Grammar(i, 90)
        assert THOUGHT not in tokens or grammar.accept_tokens("", tokens[tokens.index(THOUGHT) + 1 :])


def test_what_policies_are_told_of_who_waited_is_recorded(tmp_path: Path) -> None:
    from batchwright.lab.readers.recording import RecordedTraffic
    from peers_vllm import HostOfVllm

    section = {"policy": "vtc", "trust_requests": True, "record": str(tmp_path)}
    run = Run(type("Host", (HostOfVllm,), {"additional_config": {"batchwright": section}})(60, 16, 4, 64))
    with compiling(run, extra_args={"batchwright_client_id": "alice"}) as future:
        future.set_result(Grammar(0, 30))
        run.finish()
    run.core.shutdown()
    [(_, _, request)] = RecordedTraffic(tmp_path).requests()
    assert (request.status, request.client_id) == ("finished", "alice")


def test_masks_are_what_the_checks_take_them_for() -> None:
    grammar = Grammar(0, 9)
    assert len(grammar.allowed()) == 3 and max(grammar.allowed()) < VOCAB
    assert not grammar.accept_tokens("", [next(t for t in range(VOCAB) if t not in grammar.allowed())])
