"""Results that are given: another program runs the loop, and submits a step before the one before it is settled.

Its rows are executed as they were scheduled, those of requests that stopped or were aborted meanwhile too.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyhow import Anyhow
from batchwright import BackendError, Limits, PrefixCache, Request, Scheduler, StepResult, hookimpl
from batchwright.errors import BatchwrightError
from batchwright.results import rows_that_sample
from batchwright.step import Step
from fake_backend import expected_logprobs, expected_tokens
from toolbox import BASIC, check_empty, check_whole, make_request, prompt_of

Sampled = dict[Request, int]
Visible = Literal["computed", "scheduled"]
VISIBLE: tuple[Visible, Visible] = ("computed", "scheduled")


class Loop:
    """Drives a scheduler, with a step scheduled while the one before it is under way, or without.

    Attributes:
        steps: who ran in each, with how many tokens.
        expected: what each request would say until its length.
    """

    def __init__(self, scheduler: Scheduler, *, ahead: bool) -> None:
        self.scheduler, self.ahead = scheduler, ahead
        self.expected: dict[str, list[int]] = {}
        self.steps: list[dict[str, int]] = []
        self.under_way: deque[tuple[Step, Sampled]] = deque()
        self.now = 0

    def add(self, request: Request) -> None:
        tokens = expected_tokens(request.prompt_token_ids[:], request.sampling_params.seed or 0, request.max_tokens)
        self.expected[request.request_id] = tokens
        self.scheduler.add(request)

    def schedule(self) -> None:
        """A step, after the one under way was taken for executed."""
        scheduler = self.scheduler
        self.now += 1
        now, last = self.now, scheduler.in_flight
        if last is not None and not len(last):
            scheduler.update(last, (), now)
        elif last is not None:
            scheduler.expect(last, None, lambda: now)
        batch = scheduler.schedule(now)
        if batch is not scheduler.in_flight:
            return  # nobody is here
        step = scheduler.step
        self.steps.append({r.request_id: r.num_scheduled for r in step.batch})
        sampled = {r: self.expected[r.request_id][r.num_output_tokens] for r in rows_that_sample(step)}
        self.under_way.append((step, sampled))

    def update(self) -> None:
        """What the oldest step under way gave."""
        self.now += 1
        scheduler, awaited = self.scheduler, self.scheduler.awaited
        step, sampled = self.under_way.popleft()
        if awaited is not None and awaited.step is step:
            scheduler.settle(self.result(awaited.rows, sampled), self.now)
        elif scheduler.in_flight is not None and scheduler.step is step:
            given_ = self.result(rows_that_sample(step), sampled)
            scheduler.update(scheduler.in_flight, given_.token_ids, self.now, logprobs=given_.logprobs)
        check_whole(scheduler)

    def result(self, rows: list[Request], sampled: Sampled) -> StepResult:
        wanted = [
            expected_logprobs(sampled[r], self.expected[r.request_id].index(sampled[r]), r.sampling_params.logprobs)
            if r.sampling_params.logprobs is not None
            else None
            for r in rows
        ]
        return StepResult([sampled[r] for r in rows], 1, logprobs=wanted if any(wanted) else None)

    def turn(self, between: Callable[[], None] = lambda: None) -> None:
        self.schedule()
        between()
        while len(self.under_way) > self.ahead:
            self.update()

    def finish(self) -> None:
        for _ in range(3000):
            if not self.scheduler.has_unfinished():
                break
            self.turn()
        while self.under_way:
            self.update()
        check_empty(self.scheduler)
        assert not self.scheduler.num_observer_faults


def loop(seed: int, *, ahead: bool, visible: Visible | None = None) -> tuple[Loop, list[Request]]:
    """The same scheduler and requests for the same seed."""
    rng = random.Random(seed)
    size, num_blocks = rng.choice([1, 2, 4]), rng.randint(9, 24)
    policy: Any = (
        Anyhow(rng.randrange(1000)) if rng.random() < 0.25 else rng.choice([*BASIC, "stall_free:chunk_size=6"])
    )
    scheduler = Scheduler(
        policy,
        num_blocks=num_blocks,
        block_size=size,
        limits=Limits(max_num_batched_tokens=rng.choice([5, 16, 64]), max_num_seqs=rng.choice([2, 5, 64])),
        prefix_cache=PrefixCache(visible=visible or rng.choice(VISIBLE)),
        overlap=ahead,
        on_policy_error="fallback",
    )
    requests = []
    for i in range(10):
        prompt = prompt_of(str(rng.randrange(2)), 12)[: rng.randint(0, 12)] + prompt_of(str(i % 3), rng.randint(1, 4))
        most = rng.randint(1, max(1, min(9, size * num_blocks - len(prompt) + 1)))
        prompt = prompt[: size * num_blocks - most + 1]
        requests.append(make_request(str(i), prompt, most, seed=rng.choice([1, 2, i]), logprobs=rng.choice([None, 2])))
    return Loop(scheduler, ahead=ahead), requests


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_while_nobody_stops_steps_are_those_without(seed: int) -> None:
    """Blocks are found when they are computed here; with one that holds a token under way it is a step later else."""
    steps = []
    for ahead in (False, True):
        run, requests = loop(seed, ahead=ahead, visible="computed")
        for request in requests:
            run.add(request)
            run.turn()
        run.finish()
        steps.append(run.steps)
        for request in requests:
            assert request.output_token_ids[:] == run.expected[request.request_id]
            assert request.finish_reason == "length"
    assert steps[1] == steps[0]


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_stops_and_aborts_at_any_time(seed: int) -> None:
    """Others get their tokens, and nothing is left behind."""
    run, requests = loop(seed, ahead=True)
    rng = random.Random(seed + 1)
    stops: dict[str, int] = {}

    def abort() -> None:
        while rng.random() < 0.1 and (there := [*run.scheduler.running, *run.scheduler.waiting]):
            run.scheduler.abort(rng.choice(there).request_id)
            check_whole(run.scheduler)

    for request in requests:
        said = expected_tokens(request.prompt_token_ids[:], request.sampling_params.seed or 0, request.max_tokens)
        if rng.random() < 0.5:
            stops[request.request_id] = stop = rng.choice(said)
            request = make_request(
                request.request_id,
                request.prompt_token_ids[:],
                request.max_tokens,
                seed=request.sampling_params.seed,
                stop_token_ids=[stop],
                logprobs=request.sampling_params.logprobs,
            )
        requests[int(request.request_id)] = request
        run.add(request)
        run.turn(abort)
        abort()
    run.finish()
    for request in requests:
        expected, name = run.expected[request.request_id], request.request_id
        said = request.output_token_ids[:]
        if request.finish_reason == "abort":
            assert said == expected[: len(said)]
            continue
        assert said == (expected[: expected.index(stops[name]) + 1] if name in stops else expected)
        assert request.finish_reason == ("stop" if name in stops else "length")
        if request.sampling_params.logprobs is not None:
            assert len(request._logprobs or ()) == len(said)


def simple(**settings_: Any) -> Loop:
    limits = Limits(max_num_batched_tokens=64, max_num_seqs=8)
    return Loop(Scheduler("vllm_v1", num_blocks=32, block_size=4, limits=limits, overlap=True, **settings_), ahead=True)


def test_what_is_given_must_be_right() -> None:
    """Nothing is touched by what is wrong: it can be given again."""
    run = simple()
    request = make_request("a", 5, 4)
    run.add(request)
    run.schedule()
    run.schedule()
    with pytest.raises(BackendError, match="2 tokens for a batch with 1 rows"):
        run.scheduler.settle(StepResult([1, 2], 1), 5)
    with pytest.raises(BatchwrightError, match="is given the results"):
        run.scheduler.settle()
    assert request.output_token_ids[:] == [] and request.num_output_tokens == 1
    batch = run.scheduler.in_flight
    assert batch is not None
    with pytest.raises(BatchwrightError, match="again before settle"):
        run.scheduler.expect(batch, None, lambda: 9)
    run.update()
    run.finish()
    assert request.output_token_ids[:] == run.expected["a"]


def test_who_is_named_to_collect_is_asked() -> None:
    run = simple()
    run.add(make_request("a", 5, 4))
    batch = run.scheduler.schedule(1)
    run.scheduler.expect(batch, lambda: StepResult([7], 1), lambda: 2)
    with pytest.raises(BatchwrightError, match="is given the results"):
        run.scheduler.settle(StepResult([7], 1), 3)
    assert run.scheduler.settle().sampled[0].output_token_ids[:] == [7]


def test_times_and_values_of_tokens_under_way() -> None:
    run = simple()
    request = make_request("a", 5, 4)
    run.add(request)
    run.schedule()  # at 1
    run.schedule()  # at 2: the first token is under way
    assert (request.num_output_tokens, request.output_token_ids[:]) == (1, [])
    assert request.first_token_ns == request.last_token_ns == 2
    awaited = run.scheduler.awaited
    assert awaited is not None and awaited.step.end == 2
    run.update()  # at 3
    assert (request.first_token_ns, request.last_token_ns, awaited.step.end) == (3, 3, 3)
    run.schedule()  # at 4
    assert (request.first_token_ns, request.last_token_ns) == (3, 4)
    run.update()
    assert (request.first_token_ns, request.last_token_ns) == (3, 5)
    run.finish()


def test_who_is_aborted_has_nothing_of_the_token_that_was_under_way() -> None:
    """Nor its time: observers of its end would take it for one that came."""
    run, seen = simple(), {}

    class Ends:
        @hookimpl
        def request_finished(self, request: Request) -> None:
            times = request.first_token_ns, request.last_token_ns
            seen[request.request_id] = (request.num_output_tokens, len(request.output_token_ids), *times)

    run.scheduler.register(Ends(), "ends")
    first, later, other = (make_request(name, 5, 6) for name in ("first", "later", "other"))
    for request in (later, other):
        run.add(request)
    run.schedule()  # at 1
    run.schedule()  # at 2
    run.update()  # at 3
    run.add(first)
    run.schedule()  # at 4
    run.update()
    run.schedule()  # at 6: the first token of one, and the third of others, are under way
    for request in (first, later):
        assert request.last_token_ns == 6
        run.scheduler.abort(request.request_id)
    assert seen == {"first": (0, 0, None, None), "later": (2, 2, 3, 4)}
    run.update()
    run.finish()
    assert other.output_token_ids[:] == run.expected["other"]
    check_empty(run.scheduler)


def test_who_is_aborted_keeps_no_place_for_a_token_that_somebody_collects() -> None:
    scheduler = simple().scheduler
    request = make_request("a", 5, 4)
    scheduler.add(request)
    scheduler.expect(scheduler.schedule(1), lambda: StepResult([7], 1), lambda: 2)
    scheduler.abort("a")
    assert (request.num_output_tokens, request.output_token_ids[:]) == (0, [])
    assert request.first_token_ns is request.last_token_ns is None


def test_a_row_that_failed_ends_and_the_row_ahead_of_it_too() -> None:
    run = simple()
    bad, good = make_request("bad", 5, 6), make_request("good", 6, 6)
    for request in (bad, good):
        run.add(request)
    run.schedule()
    run.schedule()
    rows = run.scheduler.awaited.rows  # type: ignore[union-attr]
    assert rows == [bad, good]
    _, sampled = run.under_way.popleft()
    run.scheduler.settle(StepResult([sampled[r] for r in rows], 1, failed={"bad": "not finite"}), 3)
    assert (bad.finish_reason, bad.error) == ("error", "not finite")
    assert (bad.output_token_ids[:], bad.first_token_ns, bad.last_token_ns) == ([], None, None)
    assert [r.request_id for r in run.scheduler.step.batch] == ["good"]
    run.finish()
    assert good.output_token_ids[:] == run.expected["good"]
