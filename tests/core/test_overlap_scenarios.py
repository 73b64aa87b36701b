"""Overlap, case by case: what happens when, late rows, faults, and what reads what is not there yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from batchwright import (
    AsyncEngine,
    BatchwrightError,
    ConfigError,
    Engine,
    EngineConfig,
    InvalidRequestError,
    Policy,
    PolicyError,
    Request,
    RequestOutput,
    Scheduler,
    StepResult,
    hookimpl,
)
from batchwright.batch import Batch
from fake_backend import FakeBackend, FakeTokenizer, HandClock, expected_tokens, say
from faulty import FAULTS, Culprit
from toolbox import Tape, check_empty, check_whole, drain, expected_of, make_engine, make_request, prompt_of


class Logged(FakeBackend):
    """Writes down what is asked of it, and by whom besides."""

    def __init__(self, log: list[str], **settings: Any) -> None:
        super().__init__(clock=HandClock(), **settings)
        self._log = log

    def submit(self, batch: Batch) -> StepResult:
        self._log.append(f"submit {batch.step_index}: {' '.join(batch.request_ids)}")
        return super().submit(batch)

    def collect(self, handle: StepResult) -> StepResult:
        self._log.append("collect")
        return super().collect(handle)


class Hooks:
    """Writes down which hooks are called."""

    name = "hooks"

    def __init__(self, log: list[str]) -> None:
        self._log = log

    @hookimpl
    def step_started(self, step: Any) -> None:
        self._log.append(f"start {step.index}")

    @hookimpl
    def request_finished(self, request: Request, reason: str) -> None:
        self._log.append(f"{request.request_id}: {reason}")

    @hookimpl
    def step_finished(self, step: Any) -> None:
        self._log.append(f"finish {step.index}")


def _engine(log: list[str] | None = None, **settings: Any) -> tuple[Engine, Tape]:
    """An engine with overlap."""
    log = log if log is not None else []
    config = {n: settings.pop(n) for n in ("on_backend_error", "prefix_cache", "on_policy_error", "T") if n in settings}
    policy, plugins = settings.pop("policy", "prefill_first"), settings.pop("plugins", ())
    backend = Logged(log, **settings)
    return make_engine(policy, backend=backend, plugins=[Hooks(log), *plugins], overlap=True, **config)


def _all(engine: Engine) -> dict[str, list[RequestOutput]]:
    streams: dict[str, list[RequestOutput]] = {}
    for _ in range(500):
        if not engine.has_unfinished():
            return streams
        for output in engine.step():
            streams.setdefault(output.request_id, []).append(output)
        check_whole(engine.scheduler)
    raise AssertionError("it does not end")


def _stopping(request_id: str, prompt: int | Sequence[int], after: int, max_tokens: int = 9, **fields: Any) -> Request:
    """A request that stops with its output token number ``after``."""
    plain = make_request(request_id, prompt, max_tokens)
    tokens = expected_tokens(plain.prompt_token_ids[:], plain.sampling_params.seed or 0, max_tokens)
    assert tokens[after - 1] not in tokens[: after - 1]
    return make_request(request_id, prompt, max_tokens, stop_token_ids=[tokens[after - 1]], **fields)


# What happens when -------------------------------------------------------------------------------------------------


def test_a_step_is_scheduled_before_the_last_one_is_collected() -> None:
    log: list[str] = []
    engine, _ = _engine(log)
    engine.add_request(make_request("a", 5, 2))
    engine.add_request(make_request("b", 5, 3))
    calls = []
    while engine.has_unfinished():
        calls.append([(o.request_id, o.finished) for o in engine.step()])
        log.append("--")
    assert log == [
        *["start 0", "submit 0: a b", "finish 0", "--"],
        # By its length a ends with step 1, whatever its token is, so step 2 is scheduled without it.
        *["start 1", "collect", "submit 1: a b", "a: length", "finish 1", "--"],
        *["start 2", "collect", "submit 2: b", "b: length", "finish 2", "--"],
        *["collect", "--"],
    ]
    assert calls == [[], [("a", False), ("b", False)], [("a", True), ("b", False)], [("b", True)]]
    check_empty(engine.scheduler)


def test_a_late_row_is_dropped_with_all_it_was_given() -> None:
    log: list[str] = []
    engine, tape = _engine(log, num_blocks=16)
    engine.add_request(_stopping("a", 8, after=2))  # its row of step 2 needs a third block for its tenth token
    engine.add_request(make_request("b", 8, 5))
    for _ in range(2):
        engine.step()
    log.clear()
    before = engine.scheduler.blocks.num_free
    outputs = engine.step()
    assert log == ["start 2", "collect", "a: stop", "submit 2: b", "finish 2"]
    assert [(o.request_id, o.finished, o.outputs[0].finish_reason) for o in outputs] == [
        ("a", True, "stop"),
        ("b", False, None),
    ]
    assert outputs[0].outputs[0].token_ids == expected_of(tape.requests["a"]) and len(outputs[0].new_token_ids) == 1
    step = engine.scheduler.step
    assert step.batch == [tape.requests["b"]] and (step.num_decodes, step.num_prefill_tokens) == (1, 0)
    assert step.num_residents == 1
    assert engine.scheduler.blocks.num_free == before + 3  # the third one was given back too
    check_whole(engine.scheduler)
    drain(engine)
    check_empty(engine.scheduler)
    assert tape.steps[1].finished == [] and tape.steps[2].batch == [("b", 1)]


def test_its_tokens_go_back_to_the_budget() -> None:
    budgets = []
    engine, _ = _engine(policy="stall_free", T=16, before=lambda batch: budgets.append(engine.scheduler.step.budget))
    engine.add_request(_stopping("a", 4, after=2))
    engine.add_request(make_request("b", 4, 6))
    while engine.has_unfinished():
        engine.step()
    assert budgets == [8, 14, 15, 15, 15, 15]


def test_all_rows_were_late() -> None:
    log: list[str] = []
    engine, tape = _engine(log)
    for name in "ab":
        engine.add_request(_stopping(name, 8, after=1))
    engine.add_request(make_request("c", 60, 2))  # for its prompt no budget is left in the first step
    engine.step()
    del log[:]
    engine.step()
    assert log == ["start 1", "collect", "a: stop", "b: stop", "submit 1: c", "finish 1"]
    drain(engine)
    engine.add_request(_stopping("d", 3, after=1))
    streams = _all(engine)
    assert streams["d"][-1].outputs[0].finish_reason == "stop"
    assert [s.batch for s in tape.steps if not s.batch] == [[]]  # d was alone in its last step, and late
    check_empty(engine.scheduler)


def test_a_stop_string_ends_late_as_well() -> None:
    engine, _ = _engine(tokenizer=FakeTokenizer(), script={"a": say("one END more"), "b": say("to the end")})
    engine.add_request(make_request("a", 4, 12, stop=["END"]))
    engine.add_request(make_request("b", 4, 10))
    streams = _all(engine)
    assert streams["a"][-1].outputs[0].text == "one " and streams["a"][-1].outputs[0].finish_reason == "stop"
    assert [len(streams[i][-1].outputs[0].token_ids) for i in "ab"] == [7, 10]
    assert "".join(o.new_text for o in streams["b"]) == "to the end"


@pytest.mark.parametrize("end", ["stop_token_ids", "stop"])
def test_a_stop_with_the_last_token_is_a_stop(end: str) -> None:
    """Observers were told of its length, since the token was not known; its caller is told what it was."""
    engine, tape = _engine(tokenizer=FakeTokenizer(), script={"a": say("abc")})
    engine.add_request(make_request("a", 4, 3, **{end: [ord("c")] if end == "stop_token_ids" else "c"}))
    (*_, last) = _all(engine)["a"]
    assert last.outputs[0].finish_reason == "stop" == tape.requests["a"].finish_reason
    assert last.outputs[0].text == "ab" and tape.reasons == {"a": "length"}


# What is not there yet ---------------------------------------------------------------------------------------------


class Reader:
    """Reads one thing at the end of each step."""

    name = "reader"

    def __init__(self, log: list[str], read: Callable[[Any, StepResult], Any]) -> None:
        self._log, self._read = log, read
        self.seen: list[Any] = []

    @hookimpl
    def step_finished(self, step: Any, result: StepResult) -> None:
        self._log.append("read")
        self.seen.append(self._read(step, result))


@pytest.mark.parametrize(
    ("read", "waits"),
    [
        (lambda step, result: step.end, True),
        (lambda step, result: list(result.token_ids), True),
        (lambda step, result: result.elapsed_ns, True),
        (lambda step, result: dict(result.failed), True),
        (lambda step, result: result.logprobs, True),
        (lambda step, result: step.sampled[0].output_token_ids[:], True),
        (lambda step, result: step.sampled[0].last_token_ns, True),
        (lambda step, result: step.sampled[0].first_token_ns, None),  # only of the step that brought it
        (lambda step, result: step.sampled[0].num_output_tokens, False),
        (lambda step, result: [r.request_id for r in step.sampled], False),
        (lambda step, result: step.sampled[0].prompt_token_ids[:], False),
    ],
)
def test_whoever_reads_it_waits_and_sees_what_he_would_without(read: Any, waits: bool | None) -> None:
    seen, waited = [], []
    for overlap in (False, True):
        log: list[str] = []
        reader = Reader(log, read)
        engine, _ = make_engine(backend=Logged(log), plugins=[reader], overlap=overlap)
        for name in "ab":
            engine.add_request(make_request(name, 5, 3))
        while engine.has_unfinished():
            engine.step()
            log.append("--")
        seen.append(reader.seen)
        waited = [log[i + 1] == "collect" for i, what in enumerate(log) if what == "read"]
    assert seen[1] == seen[0] and len(seen[0]) == 3
    assert waited == ([True, False, False] if waits is None else [waits] * 3)


def test_a_policy_that_looks_at_tokens_decides_as_without() -> None:
    """It evicts whoever said the largest token last."""

    class Largest(Culprit):
        def __init__(self) -> None:
            super().__init__(FAULTS["chunking raises"], most=0)

        @hookimpl
        def preemption(self, step: Any, request: Request) -> Any:
            there = [r for r in step.running if r.is_resident and r.num_output_tokens]
            return max(there, key=lambda r: r.output_token_ids[-1]) if there else super().preemption(step, request)

    tapes = []
    for overlap in (False, True):
        engine, tape = make_engine(Largest(), backend=Logged([], num_blocks=14), overlap=overlap)
        for i in range(5):
            engine.add_request(make_request(str(i), 6, 14))
        drain(engine)
        assert all(r.output_token_ids == expected_of(r) for r in tape.requests.values())
        tapes.append(tape)
    assert tapes[0].preemptions() and tapes[1].steps == tapes[0].steps


def test_somebody_looks_for_a_block_that_an_unknown_token_fills() -> None:
    """With ``visible: scheduled`` a block is shared in the step that fills it: b has just what a says."""
    tapes = []
    for overlap in (False, True):
        engine, tape = make_engine(
            "vllm_v1", backend=Logged([]), overlap=overlap, prefix_cache={"visible": "scheduled"}
        )
        prompt = prompt_of("a", 6)
        engine.add_request(make_request("a", prompt, 9))
        said = expected_tokens(prompt, make_request("a", prompt, 9).sampling_params.seed or 0, 9)
        engine.step()
        engine.step()  # the next step computes the eighth token of a, the last of its second block
        engine.add_request(make_request("b", [*prompt, *said[:3]], 2))
        drain(engine)
        tapes.append(tape)
    assert tapes[0].requests["b"].num_cached == 8
    assert tapes[1].steps == tapes[0].steps


@pytest.mark.parametrize("together", [True, False])
def test_what_a_late_row_would_have_filled_is_shared_with_nobody(together: bool) -> None:
    """The policy looks at tokens, so a is known to stop when its block would be full; b begins with all of a."""

    class Looking(Policy):
        @hookimpl
        def admission(self, step: Any) -> Iterator[Any]:
            for request in step.running:
                _ = request.output_token_ids
            yield step.running if together else [*step.running]
            yield [*step.waiting]

    engine, tape = _engine(policy=Looking(), prefix_cache={"visible": "scheduled"})
    prompt = prompt_of("a", 5)
    engine.add_request(_stopping("a", prompt, after=3))  # with its eighth token, in blocks of four
    for _ in range(3):
        engine.step()
    said = expected_tokens(prompt, make_request("a", prompt, 9).sampling_params.seed or 0, 3)
    engine.add_request(make_request("b", [*prompt, *said, 7], 4))
    streams = _all(engine)
    assert streams["a"][-1].outputs[0].token_ids == said
    assert streams["b"][-1].outputs[0].token_ids == expected_of(tape.requests["b"])
    assert tape.requests["b"].num_cached == 4 and not tape.events("backend_fault")


# Faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("visible", ["computed", "scheduled"])
def test_what_a_failed_row_wrote_is_not_given_to_the_step_ahead(visible: str) -> None:
    """The prompt of b begins with that of a, whose blocks are shared when b is scheduled; then a turns out to fail."""
    log: list[str] = []
    engine, tape = _engine(log, poison=["a"], infects=True, T=12, prefix_cache={"visible": visible})
    prompt = prompt_of("a", 12)
    engine.add_request(make_request("a", prompt, 5))
    engine.add_request(make_request("b", [*prompt, 7], 5))
    engine.step()
    log.clear()
    (output,) = engine.step()
    assert (output.request_id, output.error, output.new_token_ids) == ("a", "logits are not finite", [])
    assert log == ["start 1", "collect", "a: error", "finish 1"]  # b waits again: nothing is submitted
    assert tape.admitted == [(0, "a"), (1, "b")] and tape.requests["b"].num_preemptions == 1
    streams = _all(engine)
    assert streams["b"][-1].outputs[0].token_ids == expected_of(tape.requests["b"])
    assert tape.admitted[2:] == [(2, "b")] and tape.requests["b"].num_cached == 0
    assert not engine.scheduler.num_observer_faults
    check_empty(engine.scheduler)


@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize("visible", ["computed", "scheduled"])
def test_the_results_of_a_step_are_lost(visible: str, retry: bool) -> None:
    """Requests of that step fail, or are computed again; what was built on it is undone."""
    log: list[str] = []
    engine, tape = _engine(
        log, lose_at=[1], T=30, on_backend_error="retry" if retry else "fail", prefix_cache={"visible": visible}
    )
    prompt = prompt_of("a", 12)
    for name in "ab":
        engine.add_request(make_request(name, 6, 6))
    engine.step()
    engine.add_request(make_request("c", prompt, 4))
    engine.step()  # step 1 runs c alone: prompts come first
    engine.add_request(make_request("d", [*prompt, 7], 4))  # and step 2 d, which finds what c is to write
    streams = _all(engine)
    assert len(tape.events("backend_fault")) == 1
    assert tape.events("backend_fault")[0]["retried"] == retry
    assert not engine.scheduler.num_observer_faults
    for request_id, outputs in streams.items():
        request, completion = tape.requests[request_id], outputs[-1].outputs[0]
        assert completion.token_ids == expected_of(request)
        failed = not retry and request_id == "c"
        assert completion.finish_reason == ("error" if failed else "length")
        assert len(completion.token_ids) == (0 if failed else request.max_tokens)
    assert tape.requests["d"].num_preemptions == 1 and tape.requests["a"].num_preemptions == 0
    check_empty(engine.scheduler)


@pytest.mark.parametrize("retry", [False, True])
def test_the_last_token_of_a_request_is_lost(retry: bool) -> None:
    log: list[str] = []
    engine, tape = _engine(log, lose_at=[1], on_backend_error="retry" if retry else "fail")
    engine.add_request(make_request("a", 6, 2))
    engine.add_request(make_request("b", 6, 6))
    engine.step()
    engine.step()
    assert tape.reasons == {"a": "length"}
    streams = _all(engine)
    completion = streams["a"][-1].outputs[0]
    if retry:
        assert completion.token_ids == expected_of(tape.requests["a"]) and len(completion.token_ids) == 2
        assert tape.reasons == {"a": "length", "b": "length"}
        assert [len(o.new_token_ids) for o in streams["a"]] == [1]  # the first came before
    else:
        assert (completion.finish_reason, len(completion.token_ids)) == ("error", 1)
        assert streams["a"][-1].error == "the backend failed: RuntimeError: the results of execution 1 are lost"
        assert streams["b"][-1].outputs[0].finish_reason == "error"
    check_empty(engine.scheduler)


def test_a_backend_that_cannot_submit_fails_that_step_alone() -> None:
    engine, tape = _engine(fail_at=[2])
    engine.add_request(make_request("a", 5, 9))
    outputs = [engine.step() for _ in range(3)]
    assert [[len(o.new_token_ids) for o in some] for some in outputs] == [[], [1], [1, 0]]
    assert outputs[2][0].outputs[0].finish_reason is None and outputs[2][1].outputs[0].finish_reason == "error"
    assert not engine.has_unfinished() and tape.reasons == {"a": "error"}


@pytest.mark.parametrize(
    ("ids", "message"), [([], "gave 0 tokens for a batch with 1 rows that sample"), ([5000], "allowed is"), ("x", "")]
)
def test_what_is_no_result_is_a_fault(ids: Any, message: str) -> None:
    class Odd(Logged):
        def collect(self, handle: StepResult) -> StepResult:
            return StepResult(ids, 5)

    engine, _ = make_engine(backend=Odd([]), overlap=True)
    engine.add_request(make_request("a", 5, 3))
    (output,) = _all(engine)["a"]
    assert message in str(output.error) and output.outputs[0].token_ids == []


def test_a_fault_of_the_policy_leaves_the_step_under_way() -> None:
    log: list[str] = []
    engine, tape = _engine(log, policy=Culprit(FAULTS["chunking raises"], every=1, most=1))
    engine.add_request(make_request("a", [5], 4))  # one token is never cut
    engine.step()
    engine.add_request(make_request("b", 5, 4))
    with pytest.raises(PolicyError):
        engine.step()
    assert engine.has_unfinished() and log[-1] == "start 1"
    streams = _all(engine)
    for request_id in "ab":
        assert [t for o in streams[request_id] for t in o.new_token_ids] == expected_of(tape.requests[request_id])
    check_empty(engine.scheduler)


# Coming and going --------------------------------------------------------------------------------------------------


def test_an_abort_between_two_calls_drops_the_token_on_its_way() -> None:
    engine, tape = _engine()
    for name in "ab":
        engine.add_request(make_request(name, 5, 6))
    engine.step()
    engine.step()
    told: list[RequestOutput] = []
    engine.on_abort = told.append
    output = engine.abort("a")
    assert told == [output] and output.outputs[0].token_ids == expected_tokens(
        tape.requests["a"].prompt_token_ids[:], tape.requests["a"]._seed, 1
    )
    assert tape.requests["a"].num_output_tokens == 1
    check_whole(engine.scheduler)
    assert [o.request_id for o in engine.step()] == ["b"]
    drain(engine)
    assert tape.requests["b"].output_token_ids == expected_of(tape.requests["b"])


def test_an_id_is_in_use_until_its_last_output_is_told() -> None:
    engine, _ = _engine()
    engine.add_request(make_request("a", 5, 1))
    engine.step()
    assert not engine.scheduler.has_unfinished() and engine.has_unfinished()
    with pytest.raises(InvalidRequestError, match="'a' is in use: the last output of that request is still to come"):
        engine.add_request(make_request("a", 5, 1))
    assert engine.step()[0].finished
    engine.add_request(make_request("a", 5, 1))
    drain(engine)


def test_collect_takes_what_is_under_way_and_schedules_nothing() -> None:
    log: list[str] = []
    engine, _ = _engine(log)
    assert engine.collect() == []
    engine.add_request(make_request("a", 5, 3))
    engine.step()
    log.clear()
    assert [len(o.new_token_ids) for o in engine.collect()] == [1]
    assert log == ["collect"] and engine.collect() == []
    assert [len(o.new_token_ids) for o in (*engine.step(), *engine.step(), *engine.step())] == [1, 1]


@pytest.mark.parametrize("lose_at", [(), (1,)])
def test_closing_waits_for_the_step_under_way(lose_at: Sequence[int]) -> None:
    log: list[str] = []
    engine, tape = _engine(log, lose_at=lose_at)
    engine.add_request(make_request("a", 5, 9))
    engine.add_request(make_request("b", 5, 2))
    engine.step()
    engine.step()
    log.clear()
    engine.close()
    assert log[0] == "collect" and engine.backend.num_closed == 1  # type: ignore[attr-defined]
    assert tape.reasons["a"] == ("error" if lose_at else "abort")
    check_empty(engine.scheduler)


def test_a_policy_is_swapped_while_a_step_is_under_way() -> None:
    engine, tape = _engine()
    for i in range(5):
        engine.add_request(make_request(str(i), 7, 6))
    for name in ("vtc", "stall_free", "mlfq"):
        engine.step()
        engine.swap_policy(name)
        check_whole(engine.scheduler)
    drain(engine)
    assert all(r.output_token_ids == expected_of(r) for r in tape.requests.values())


def test_streams_of_many_callers() -> None:
    async def body() -> None:
        engine, tape = make_engine("stall_free", T=16, backend=Logged([], num_blocks=40), overlap=True)
        async with AsyncEngine(engine) as serving:
            requests = [_stopping(str(i), 5 + i % 7, after=1 + i % 3) for i in range(20)]
            requests += [make_request(str(i), 5 + i % 7, 3 + i % 9) for i in range(20, 40)]

            async def stream(request: Request) -> list[RequestOutput]:
                return [o async for o in serving.generate(request)]

            streams = await asyncio.gather(*map(stream, requests))
            async for _ in serving.generate(make_request("gone", 5, 50)):
                break
        for request, outputs in zip(requests, streams, strict=True):
            assert [t for o in outputs for t in o.new_token_ids] == expected_of(request)
            assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
        assert tape.reasons["gone"] == "abort"
        check_empty(engine.scheduler)

    asyncio.run(asyncio.wait_for(body(), 10))


# Where it is not ---------------------------------------------------------------------------------------------------


def test_a_virtual_clock_has_nothing_to_hide() -> None:
    with pytest.raises(ConfigError, match="fake has a virtual clock, on which the host's work takes no time"):
        make_engine(overlap=True)
    with pytest.raises(ConfigError, match="leave overlap off"):
        Engine(EngineConfig.parse({"overlap": True, "backend": "sim:llama-3.1-8b@h100"}))


def test_a_scheduler_says_what_it_was_not_made_for() -> None:
    scheduler = Scheduler(num_blocks=8, block_size=4)
    scheduler.add(make_request("a", 5, 3))
    batch = scheduler.schedule()
    with pytest.raises(BatchwrightError, match="of a scheduler with overlap"):
        scheduler.expect(batch, lambda: StepResult([5], 1), lambda: 0)
    with pytest.raises(BatchwrightError, match="of a batch that was expected"):
        scheduler.settle()
