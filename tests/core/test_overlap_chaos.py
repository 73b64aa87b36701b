"""Overlap with everything at once: aborts, stops, faults of policy and backend, swaps, strict mode, predictions."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright import Engine, PolicyError, Request, RequestOutput, StepResult, hookimpl
from batchwright.batch import Batch
from core.random_runs import Run, some_policy
from fake_backend import FakeTokenizer, expected_logprobs, expected_tokens
from faulty import FAULTS, Culprit
from toolbox import CHUNKING, make_request


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


class Returning:
    """Whose request ends asks again, now and then, from within the hook."""

    name = "returning"

    def __init__(self, rng: random.Random, run: Run) -> None:
        self._rng = rng
        self._run = run
        self.added: list[Request] = []

    @hookimpl
    def request_finished(self, request: Request) -> None:
        if self._rng.random() < 0.1 and len(self.added) < 5:
            again = make_request(f"again{len(self.added)}", request.prompt_token_ids[:], request.max_tokens, seed=3)
            self._run.expected[again.request_id] = expected_tokens(again.prompt_token_ids[:], 3, again.max_tokens)
            self._run.engine.add_request(again)
            self.added.append(again)


class Chaotic(Run):
    """One whose steps may end with an error of the policy, or be interrupted while they are waited for."""

    def __init__(self, seed: int, choice: random.Random, **settings: Any) -> None:
        self.num_interrupts = self.num_errors = 0
        super().__init__(seed, overlap=True, **settings)
        self._is_stepping = False  # only then is an interrupt caught here
        likely = choice.choice([0, 0, 0.03])
        collect = self.backend.collect

        def interrupted(handle: StepResult) -> StepResult:
            if self._is_stepping and choice.random() < likely:
                self.num_interrupts += 1
                raise KeyboardInterrupt
            return collect(handle)

        self.backend.collect = interrupted  # type: ignore[method-assign]

    def step(self) -> list[RequestOutput]:
        self._is_stepping = True
        try:
            return super().step()
        except PolicyError:
            self.num_errors += 1
        except KeyboardInterrupt:
            pass
        finally:
            self._is_stepping = False
        return []


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
        counts_decodes = run.engine.scheduler._in_force.rules.counts_decodes
        counted = batch.num_tokens if counts_decodes else batch.num_tokens - sum(batch.is_decode)
        assert counted <= run.budget
        step = run.engine.scheduler.step
        assert step.budget == run.budget - counted
        assert (step.num_decodes, step.num_prefill_tokens) == (
            batch.is_decode.sum(),
            batch.num_tokens - batch.is_decode.sum(),
        )

    is_poisonous = choice.random() < 0.4
    raises, is_strict = choice.random() < 0.3, choice.random() < 0.25
    run = Chaotic(
        seed,
        choice,
        lose_at=lost,
        fail_at=broken,
        poison=poison,
        infects=True,
        before=watch,
        tokenizer=FakeTokenizer(),
        config={
            "on_policy_error": "raise" if raises else "fallback",
            "strict": is_strict,
            "predict": choice.choice([None, "history:by=all,enough=1"]),
            "on_backend_error": "retry" if retry else "fail",
            "plugins": (),
        },
    )
    aborting.engine = run.engine
    curious._expected = run.expected
    run.engine.scheduler.register(curious)
    run.engine.scheduler.register(aborting)
    returning = Returning(choice, run)
    run.engine.scheduler.register(returning)
    requests = run.make_requests(12, stop_token_ids=lambda t: _cut(t, run.rng), stop=lambda t: _some_text(t, run.rng))
    met: dict[str, int] = {"swaps": 0, "aborts": 0}

    def between(call: int) -> None:
        there = [*run.engine.scheduler.running, *run.engine.scheduler.waiting]
        if there and choice.random() < 0.02:
            run.engine.abort(choice.choice(there).request_id)
            met["aborts"] += 1
        if choice.random() < 0.05:
            faulty = Culprit(FAULTS[choice.choice(sorted(FAULTS))], every=3)
            run.engine.swap_policy(faulty if choice.random() < 0.5 else some_policy(choice, CHUNKING))
            met["swaps"] += 1
        if call > 700:
            run.engine.swap_policy("prefill_first")

    run.play(requests, between)
    everybody = {r.request_id: r for some in (*requests.values(), returning.added) for r in some}
    assert set(everybody) == set(run.tape.reasons)
    may_fail = bool(poisoned or not retry)
    for request_id, request in everybody.items():
        _check_end(run, request, may_fail=may_fail)
        if not run.num_interrupts:  # a call that is interrupted gives back nothing
            _check_stream(run, request, run.outputs[request_id])
    met["aborts"] += aborting.num_aborts
    met["added"] = len(returning.added)
    met["errors"], met["interrupts"] = run.num_errors, run.num_interrupts
    met["strict"] = is_strict
    met["looks"] = curious.num_looks
    met["backend faults"] = len(run.tape.events("backend_fault"))
    met["policy faults"] = run.engine.scheduler.num_policy_faults
    met["poisoned"] = len(poisoned)
    met["stops"] = sum(o[-1].outputs[0].finish_reason == "stop" for o in run.outputs.values())
    met["evictions"] = len(run.tape.preemptions())
    return met


def _check_end(run: Run, request: Request, *, may_fail: bool) -> None:
    """It has the tokens that it implies, and ended where it should."""
    expected, params = run.expected[request.request_id], request.sampling_params
    tokens, reason = request.output_token_ids[:], request.finish_reason
    assert tokens == expected[: len(tokens)]
    stops = [
        n
        for n in range(1, len(expected) + 1)
        if expected[n - 1] in params.stop_token_ids
        or any(s in FakeTokenizer().decode(expected[:n]) for s in params.stop)
    ]
    if reason == "stop":
        assert len(tokens) == stops[0]
    elif reason == "length":
        assert len(tokens) == len(expected) and not stops
    else:
        assert reason == "abort" or (reason == "error" and may_fail), (reason, request.error)
        assert len(tokens) <= (stops[0] if stops else len(expected))
    assert (request.error is not None) == (reason == "error")


def _check_stream(run: Run, request: Request, told: list[RequestOutput]) -> None:
    """A caller got each token once, and the end last."""
    completion = told[-1].outputs[0]
    tokens, params = completion.token_ids, request.sampling_params
    assert [t for o in told for t in o.new_token_ids] == tokens == request.output_token_ids
    assert "".join(o.new_text for o in told) == completion.text
    assert told[-1].finished and not any(o.finished for o in told[:-1])
    if params.logprobs is not None:
        assert completion.logprobs == [expected_logprobs(t, i, params.logprobs) for i, t in enumerate(tokens)]
        assert [p for o in told for p in o.new_logprobs or ()] == completion.logprobs
    assert (completion.finish_reason, told[-1].error) == (request.finish_reason, request.error)


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_no_token_changes_and_nothing_leaks(seed: int) -> None:
    _chaos(seed)


def test_the_runs_are_worth_it() -> None:
    met: dict[str, int] = {}
    for seed in range(30):
        for what, count in _chaos(seed).items():
            met[what] = met.get(what, 0) + count
    assert min(met.values()) >= 6, met
