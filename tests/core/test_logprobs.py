"""Log-probabilities, from what a request asks for to what its caller gets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batchwright import (
    AsyncEngine,
    BackendError,
    Batch,
    InvalidRequestError,
    RequestOutput,
    Scheduler,
    StepResult,
    TokenLogprobs,
    hookimpl,
)
from fake_backend import FakeBackend, expected_logprobs
from toolbox import BASIC, drain, expected_of, make_engine, make_request


def _expected(tokens: list[int], num_top: int | None) -> list[TokenLogprobs] | None:
    if num_top is None:
        return None
    return [expected_logprobs(token, index, num_top) for index, token in enumerate(tokens)]


@pytest.mark.parametrize("policy", BASIC)
@pytest.mark.parametrize("spared", [(), ("2", "3")])
def test_each_token_has_its_own_whatever_becomes_of_the_request(policy: str, spared: tuple[str, ...]) -> None:
    """Preempted and recomputed, beside rows that fail and rows that want none; also where nobody else wants any."""
    engine, tape = make_engine(policy, P=16, T=16, settings={"poison": ["bad"]})
    wanted = {str(i): None if str(i) in spared else i * 4 for i in range(5)}
    for request_id, num_top in wanted.items():
        engine.add_request(make_request(request_id, 8, 24, logprobs=num_top))
    engine.add_request(make_request("bad", 3, 9, logprobs=3))
    streams: dict[str, list[RequestOutput]] = {}
    while engine.has_unfinished():
        for output in engine.step():
            streams.setdefault(output.request_id, []).append(output)
    assert tape.preemptions()
    for request_id, num_top in wanted.items():
        outputs, tokens = streams[request_id], expected_of(tape.requests[request_id])
        expected = _expected(tokens, num_top)
        assert outputs[-1].outputs[0].token_ids == tokens and len(tokens) == 24
        assert outputs[-1].outputs[0].logprobs == expected
        news = [o.new_logprobs for o in outputs]
        assert news == ([[e] for e in expected] if expected is not None else [None] * 24)
        whole = outputs[-1].outputs[0].cumulative_logprob
        assert whole == (sum(e.logprob for e in expected) if expected is not None else None)
    (last,) = streams["bad"]
    assert last.error == "logits are not finite" and last.outputs[0].logprobs == [] == last.new_logprobs


def test_a_late_row_is_dropped_and_the_rows_behind_it_keep_their_own() -> None:
    """Aborted while its batch is executed, by decodes that ride and by prompts."""
    doomed: list[str] = []

    def abort(batch: Batch) -> None:
        while doomed:
            engine.abort(doomed.pop())

    engine, tape = make_engine(settings={"before": abort})
    for request_id in "abcd":
        engine.add_request(make_request(request_id, 5, 6, logprobs=2))
    doomed.append("b")
    outputs = {o.request_id: o for o in engine.step()}
    assert outputs["b"].outputs[0].logprobs == [] and outputs["b"].outputs[0].finish_reason == "abort"
    assert outputs["c"].new_logprobs == _expected(outputs["c"].new_token_ids, 2)
    engine.step()
    doomed.append("a")
    outputs = {o.request_id: o for o in engine.step()}
    for request_id, num_tokens in (("a", 2), ("c", 3), ("d", 3)):
        completion = outputs[request_id].outputs[0]
        assert len(completion.token_ids) == num_tokens
        assert completion.logprobs == _expected(completion.token_ids, 2)
    told: list[Any] = []
    engine.on_abort = lambda output: told.append(output.new_logprobs)
    aborted = engine.abort("c").outputs[0]
    assert aborted.logprobs == _expected(aborted.token_ids, 2) and len(aborted.token_ids) == 3
    assert told == [[]]
    drain(engine)
    assert tape.reasons["d"] == "length"


def test_a_backend_without_any_refuses_at_once() -> None:
    engine, tape = make_engine(settings={"gives_logprobs": False})
    with pytest.raises(InvalidRequestError, match=r"'a' wants log-probabilities, and fake gives none; leave logprobs"):
        engine.add_request(make_request("a", 5, 3, logprobs=0))
    assert not tape.requests and not engine.has_unfinished()
    engine.add_request(make_request("a", 5, 3))
    (output,) = engine.step()
    assert output.outputs[0].logprobs is None and output.new_logprobs is None


class _Odd(FakeBackend):
    """Gives other log-probabilities than it should."""

    def __init__(self, logprobs: Any) -> None:
        super().__init__()
        self._odd = logprobs

    def collect(self, handle: StepResult) -> StepResult:
        handle.logprobs = self._odd
        return super().collect(handle)


ONE = TokenLogprobs(-1.0, 1)


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        (None, "request 'a' wants log-probabilities, and the backend gave None for its token"),
        ([None, ONE], "request 'a' wants log-probabilities, and the backend gave None for its token"),
        ([-1.0, ONE], "request 'a' wants log-probabilities, and the backend gave -1.0 for its token"),
        ([ONE], "the backend gave 1 log-probabilities for 2 rows that sample"),
        ([ONE] * 3, "the backend gave 3 log-probabilities for 2 rows that sample"),
    ],
)
def test_what_a_backend_owes_is_checked(logprobs: Any, message: str) -> None:
    engine, _ = make_engine(backend=_Odd(logprobs))
    engine.add_request(make_request("a", 5, 3, logprobs=1))
    engine.add_request(make_request("b", 5, 3))
    outputs = engine.step()
    assert [o.outputs[0].finish_reason for o in outputs] == ["error", "error"]
    assert message in str(outputs[0].error)
    assert outputs[0].outputs[0].logprobs == [] and outputs[0].outputs[0].token_ids == []


def test_nothing_was_touched_where_they_lack() -> None:
    scheduler = Scheduler(num_blocks=8, block_size=4)
    request = make_request("a", 5, 3, logprobs=1)
    scheduler.add(request)
    batch = scheduler.schedule()
    with pytest.raises(BackendError, match="wants log-probabilities"):
        scheduler.update(batch, [5])
    assert request.num_output_tokens == 0
    scheduler.update(batch, [5], logprobs=[ONE])
    assert request.output_token_ids == [5] and request._logprobs == [ONE]


def test_a_retried_batch_gives_each_once() -> None:
    engine, tape = make_engine(settings={"fail_at": [0, 3]}, on_backend_error="retry")
    for request_id in "ab":
        engine.add_request(make_request(request_id, 6, 8, logprobs=1))
    last: dict[str, RequestOutput] = {}
    while engine.has_unfinished():
        last.update({o.request_id: o for o in engine.step()})
    assert len(tape.preemptions()) == 4
    for output in last.values():
        assert output.outputs[0].logprobs == _expected(output.outputs[0].token_ids, 1)
        assert len(output.outputs[0].token_ids) == 8


def test_observers_get_them_with_the_result() -> None:
    results: list[StepResult] = []

    class Observer:
        @hookimpl
        def step_finished(self, result: StepResult) -> None:
            results.append(result)

    engine, _ = make_engine(plugins=[Observer()])
    engine.add_request(make_request("a", 5, 1, logprobs=1))
    engine.step()
    assert results[0].logprobs == _expected([*results[0].token_ids], 1)


def test_streams_carry_them() -> None:
    async def body() -> None:
        engine, _ = make_engine()
        async with AsyncEngine(engine) as serving:
            outputs = [o async for o in serving.generate(make_request("a", 5, 4, logprobs=2))]
        assert [o.new_logprobs for o in outputs] == [[e] for e in _expected(outputs[-1].outputs[0].token_ids, 2) or ()]

    asyncio.run(asyncio.wait_for(body(), 5))
