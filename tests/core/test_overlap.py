"""Overlap: the same tokens always, and the same decisions while nobody ends by its token."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyhow import Anyhow
from batchwright import Engine, PolicyError, Request, RequestOutput, hookimpl
from batchwright.batch import Batch
from fake_backend import FakeBackend, FakeTokenizer, HandClock, expected_logprobs, expected_tokens
from faulty import FAULTS, Culprit
from toolbox import BASIC, CHUNKING, Tape, check_empty, check_whole, make_engine, make_request, prompt_of


def _policy(rng: random.Random, names: list[str]) -> Any:
    return Anyhow(rng.randrange(1000)) if rng.random() < 0.25 else rng.choice([*names, "stall_free:chunk_size=6"])


def _cache(rng: random.Random) -> dict[str, Any]:
    return {
        "enabled": rng.random() < 0.9,
        "visible": rng.choice(["computed", "scheduled"]),
        "reuse": rng.choice(["oldest_freed", "uncached_first"]),
        "duplicates": rng.choice(["newest", "oldest"]),
    }


class Run:
    """A random workload on a random engine, the same with and without overlap.

    Attributes:
        outputs: of each request, in order, one that was aborted between two steps among them.
        met: how often something happened.
    """

    def __init__(self, seed: int, *, overlap: bool, names: list[str] = BASIC, **settings: Any) -> None:
        self.rng = rng = random.Random(seed)
        block_size, num_blocks = rng.choice([1, 2, 4]), rng.randint(9, 24)
        self._longest = block_size * num_blocks
        config = settings.pop("config", {})
        self.backend = FakeBackend(num_blocks=num_blocks, block_size=block_size, clock=HandClock(), **settings)
        self.budget, self.seqs = rng.choice([5, 16, 64]), rng.choice([2, 5, 64])
        self.engine, self.tape = make_engine(
            settings.get("policy", _policy(rng, names)),
            backend=self.backend,
            T=self.budget,
            S=self.seqs,
            max_num_residents=rng.choice([None, 1, 3]),
            prefix_cache=_cache(rng),
            overlap=overlap,
            **config,
        )
        self.outputs: dict[str, list[RequestOutput]] = {}
        self.engine.on_abort = self._take
        self.expected: dict[str, list[int]] = {}
        self.stems = [prompt_of(str(i), 12) for i in range(2)]
        self.num_calls = 0

    def make_requests(self, num: int, **fields: Callable[[list[int]], Any]) -> dict[int, list[Request]]:
        """Requests with prefixes and continuations in common, by the call before which they arrive.

        Args:
            fields: further fields of some, as functions of what they sample.
        """
        rng = self.rng
        when: dict[int, list[Request]] = {}
        for i in range(num):
            prompt = rng.choice(self.stems)[: rng.randint(0, 12)] + prompt_of(str(i % 3), rng.randint(1, 4))
            max_tokens = rng.randint(1, max(1, min(9, self._longest - len(prompt) + 1)))
            prompt = prompt[: self._longest - max_tokens + 1]
            seed = rng.choice([1, 1, 2, i])  # the same again, so that outputs are shared too
            tokens = expected_tokens(prompt, seed, max_tokens)
            more = {name: make(tokens) for name, make in fields.items()}
            logprobs = rng.choice([None, None, 2])
            request = make_request(
                str(i), prompt, max_tokens, seed=seed, priority=rng.randrange(3), logprobs=logprobs, **more
            )
            self.expected[str(i)] = tokens
            when.setdefault(rng.randrange(12), []).append(request)
        return when

    def play(self, when: dict[int, list[Request]], between: Callable[[int], None] = lambda call: None) -> None:
        """Run to the end; the engine is whole after every call."""
        when = dict(when)
        while when or self.engine.has_unfinished():
            for request in when.pop(self.num_calls, ()):
                self.engine.add_request(request)
            between(self.num_calls)
            for output in self.step():
                self._take(output)
            check_whole(self.engine.scheduler)
            self.num_calls += 1
            assert self.num_calls < 3000, self.engine.scheduler.running
        check_empty(self.engine.scheduler)
        assert not self.engine.scheduler.num_observer_faults, [e for s in self.tape.steps for e in s.events]

    def step(self) -> list[RequestOutput]:
        """One call."""
        return self.engine.step()

    def _take(self, output: RequestOutput) -> None:
        told = self.outputs.setdefault(output.request_id, [])
        assert not told or not told[-1].finished, f"{output.request_id} ended twice"
        told.append(output)

    def streams(self) -> dict[str, list[Any]]:
        """What each caller got, output by output."""
        return {
            i: [(o.new_token_ids, o.new_logprobs, o.new_text, o.finished, o.outputs[0].finish_reason) for o in told]
            for i, told in self.outputs.items()
        }


def _decisions(tape: Tape) -> list[Any]:
    return [*map(vars, tape.steps), tape.admitted, tape.reasons]


def _play(run: Run) -> str | None:
    """To the end, or to an error of the policy: one that decides by chance may evict in turns."""
    try:
        run.play(run.make_requests(10))
    except PolicyError as error:
        return str(error)
    return None


# While nobody ends by its token ------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_decisions_and_streams_are_those_without_overlap(seed: int) -> None:
    runs = [Run(seed, overlap=overlap) for overlap in (False, True)]
    errors = [_play(run) for run in runs]
    plain, ahead = runs
    assert _decisions(ahead.tape) == _decisions(plain.tape)
    assert errors[0] == errors[1]
    if errors[0] is not None:
        return  # of what is under way then, the outputs would come with the next call
    assert ahead.streams() == plain.streams()
    assert {i: o[-1].outputs[0].token_ids for i, o in ahead.outputs.items()} == ahead.expected
    assert ahead.num_calls <= plain.num_calls + 2  # the last results come with a call of their own
    assert ahead.engine.clock.now_ns() == plain.engine.clock.now_ns()


@pytest.mark.parametrize("policy", CHUNKING)
def test_under_any_policy(policy: str) -> None:
    for seed in range(4):
        runs = [Run(seed, overlap=overlap, names=[policy]) for overlap in (False, True)]
        for run in runs:
            run.play(run.make_requests(10))
        assert _decisions(runs[1].tape) == _decisions(runs[0].tape)
        assert runs[1].streams() == runs[0].streams()


# Everything at once ------------------------------------------------------------------------------------------------


class Aborting:
    """Aborts by chance, from within the hooks that may."""

    name = "aborting"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.engine: Engine
        self.num_aborts = 0

    def _perhaps(self) -> None:
        there = [*self.engine.scheduler.running, *self.engine.scheduler.waiting]
        if there and self._rng.random() < 0.02:
            self.engine.abort(self._rng.choice(there).request_id)
            self.num_aborts += 1

    @hookimpl
    def step_started(self) -> None:
        self._perhaps()

    @hookimpl
    def step_finished(self) -> None:
        self._perhaps()

    @hookimpl
    def request_finished(self) -> None:
        self._perhaps()


class Curious:
    """Reads by chance what may not be known yet, and checks that it is what it should be."""

    name = "curious"

    def __init__(self, rng: random.Random, expected: dict[str, list[int]]) -> None:
        self._rng = rng
        self._expected = expected
        self.num_looks = 0

    def _look(self, step: Any) -> None:
        if self._rng.random() < 0.2:
            for request in (*step.batch, *step.running, *step.waiting):
                output = request.output_token_ids[:]
                assert output == self._expected[request.request_id][: len(output)]
                assert len(output) <= request.num_output_tokens, request
                first, last = request.first_token_ns, request.last_token_ns
                assert last is None or first is None or last >= first >= 0, request
            self.num_looks += 1

    @hookimpl
    def step_started(self, step: Any) -> None:
        self._look(step)

    @hookimpl
    def request_preempted(self, step: Any) -> None:
        self._look(step)

    @hookimpl
    def step_finished(self, step: Any, result: Any) -> None:
        self._look(step)
        if self._rng.random() < 0.1:
            assert step.end >= step.now
            assert result.elapsed_ns in (0, 1_000_000)


def _cut(tokens: list[int], rng: random.Random) -> list[int]:
    """Stop tokens for some."""
    return [rng.choice(tokens)] if rng.random() < 0.4 else []


def _some_text(tokens: list[int], rng: random.Random) -> list[str]:
    """A stop string for some: one or two characters of what they will say."""
    place = rng.randrange(len(tokens))
    text = FakeTokenizer().decode(tokens[place : place + 2])
    return [text] if text and rng.random() < 0.3 else []


def _chaos(seed: int) -> dict[str, int]:
    choice = random.Random(seed + 1)  # of what happens to it
    lost = {choice.randrange(60) for _ in range(choice.choice([0, 0, 3]))}
    broken = {choice.randrange(60) for _ in range(choice.choice([0, 0, 3]))}
    retry = choice.random() < 0.7
    aborting = Aborting(choice)
    curious = Curious(choice, {})
    poisoned: set[str] = set()

    def poison(batch: Batch) -> Iterable[str]:
        ids = [i for i in batch.request_ids if choice.random() < 0.02] if is_poisonous else []
        poisoned.update(ids)
        return ids

    def watch(batch: Batch) -> None:
        assert 0 < len(batch) <= run.seqs
        counted = (
            batch.num_tokens if run.engine.scheduler._rules.counts_decodes else batch.num_tokens - sum(batch.is_decode)
        )
        assert counted <= run.budget
        step = run.engine.scheduler.step
        assert step.budget == run.budget - counted
        assert (step.num_decodes, step.num_prefill_tokens) == (
            batch.is_decode.sum(),
            batch.num_tokens - batch.is_decode.sum(),
        )

    is_poisonous = choice.random() < 0.3
    run = Run(
        seed,
        overlap=True,
        lose_at=lost,
        fail_at=broken,
        poison=poison,
        infects=True,
        before=watch,
        tokenizer=FakeTokenizer(),
        config={
            "on_policy_error": "fallback",
            "on_backend_error": "retry" if retry else "fail",
            "plugins": (),
        },
    )
    aborting.engine = run.engine
    curious._expected = run.expected
    run.engine.scheduler.register(curious)
    run.engine.scheduler.register(aborting)
    requests = run.make_requests(12, stop_token_ids=lambda t: _cut(t, run.rng), stop=lambda t: _some_text(t, run.rng))
    met: dict[str, int] = {"swaps": 0, "aborts": 0}

    def between(call: int) -> None:
        there = [*run.engine.scheduler.running, *run.engine.scheduler.waiting]
        if there and choice.random() < 0.02:
            run.engine.abort(choice.choice(there).request_id)
            met["aborts"] += 1
        if choice.random() < 0.05:
            faulty = Culprit(FAULTS[choice.choice(sorted(FAULTS))], every=3)
            run.engine.swap_policy(faulty if choice.random() < 0.5 else _policy(choice, CHUNKING))
            met["swaps"] += 1
        if call > 700:
            run.engine.swap_policy("prefill_first")

    run.play(requests, between)
    everybody = {r.request_id: r for some in requests.values() for r in some}
    assert set(run.outputs) == set(everybody) == set(run.tape.reasons)
    for request_id, told in run.outputs.items():
        _check_stream(run, everybody[request_id], told, may_fail=bool(poisoned or not retry))
    met["aborts"] += aborting.num_aborts
    met["looks"] = curious.num_looks
    met["backend faults"] = len(run.tape.events("backend_fault"))
    met["policy faults"] = run.engine.scheduler.num_policy_faults
    met["poisoned"] = len(poisoned)
    met["stops"] = sum(o[-1].outputs[0].finish_reason == "stop" for o in run.outputs.values())
    met["evictions"] = len(run.tape.preemptions())
    return met


def _check_stream(run: Run, request: Request, told: list[RequestOutput], *, may_fail: bool) -> None:
    """A caller got each token once, those that its request implies, and the right end."""
    expected = run.expected[request.request_id]
    completion = told[-1].outputs[0]
    tokens, params = completion.token_ids, request.sampling_params
    assert [t for o in told for t in o.new_token_ids] == tokens == expected[: len(tokens)]
    assert request.output_token_ids == tokens
    assert "".join(o.new_text for o in told) == completion.text
    assert told[-1].finished and not any(o.finished for o in told[:-1])
    if params.logprobs is not None:
        assert completion.logprobs == [expected_logprobs(t, i, params.logprobs) for i, t in enumerate(tokens)]
        assert [p for o in told for p in o.new_logprobs or ()] == completion.logprobs
    text = FakeTokenizer().decode(tokens)
    stops = [
        n
        for n in range(1, len(expected) + 1)
        if expected[n - 1] in params.stop_token_ids
        or any(s in FakeTokenizer().decode(expected[:n]) for s in params.stop)
    ]
    reason = completion.finish_reason
    if reason == "stop":
        assert len(tokens) == stops[0]
    elif reason == "length":
        assert len(tokens) == len(expected) and not stops
    else:
        assert reason == "abort" or (reason == "error" and may_fail), (reason, told[-1].error)
        assert len(tokens) <= (stops[0] if stops else len(expected)), text
    assert (told[-1].error is not None) == (reason == "error")


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_no_token_changes_and_nothing_leaks(seed: int) -> None:
    _chaos(seed)


def test_the_runs_are_worth_it() -> None:
    met: dict[str, int] = {}
    for seed in range(30):
        for what, count in _chaos(seed).items():
            met[what] = met.get(what, 0) + count
    assert min(met.values()) >= 8, met
