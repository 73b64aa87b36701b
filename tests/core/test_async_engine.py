"""Many callers at once: streams, callers that go away, faults that reach everybody, and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from batchwright import (
    AsyncEngine,
    BatchwrightError,
    Engine,
    EngineConfig,
    InfeasibleRequestError,
    InvalidRequestError,
    PolicyError,
    Request,
    SamplingParams,
    UnknownRequestError,
)
from batchwright.batch import Batch
from fake_backend import FakeBackend, FakeTokenizer, expected_tokens, say
from faulty import Broken, PrefillFirst
from toolbox import check_empty, expected_of, make_engine, make_request


def run(body: Callable[[], Awaitable[None]], timeout_s: float = 5.0) -> None:
    """Run a test's coroutine; hanging is a failure."""

    async def bounded() -> None:
        await asyncio.wait_for(body(), timeout_s)

    asyncio.run(bounded())


async def collect(serving: AsyncEngine, *args: Any, **fields: Any) -> list[Any]:
    """All outputs of one request."""
    return [output async for output in serving.generate(*args, **fields)]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it does not come about")


class Gate:
    """Holds an execution of the backend until it is opened."""

    def __init__(self, at: int) -> None:
        self._at = at
        self._number = 0
        self._reached, self._opened = threading.Event(), threading.Event()

    def __call__(self, batch: Batch) -> None:
        if self._number == self._at:
            self._reached.set()
            assert self._opened.wait(10), "the test never opened the gate"
        self._number += 1

    async def reached(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._reached.wait, 10)

    def open(self) -> None:
        self._opened.set()


def test_many_callers() -> None:
    async def body() -> None:
        engine, tape = make_engine("stall_free", P=40, T=32)
        async with AsyncEngine(engine) as serving:
            requests = [make_request(str(i), 5 + i % 7, 3 + i % 9) for i in range(60)]
            streams = await asyncio.gather(*(collect(serving, r) for r in requests))
        for request, outputs in zip(requests, streams, strict=True):
            tokens = expected_of(request)
            assert [t for o in outputs for t in o.new_token_ids] == tokens
            assert [o.finished for o in outputs] == [False] * (len(tokens) - 1) + [True]
        assert set(tape.reasons.values()) == {"length"} and len(tape.reasons) == 60
        assert max(len(s.batch) for s in tape.steps) > 4  # they did run together
        check_empty(engine.scheduler)
        assert engine.backend.num_closed == 1  # type: ignore[attr-defined]

    run(body)


def test_text_and_token_ids() -> None:
    async def body() -> None:
        backend = FakeBackend(tokenizer=FakeTokenizer(), script={"t": say("hello")})
        engine, _ = make_engine(backend=backend)
        async with AsyncEngine(engine) as serving:
            outputs = await collect(serving, "say", SamplingParams(max_tokens=5), request_id="t", priority=3)
            assert "".join(o.new_text for o in outputs) == "hello" and outputs[-1].prompt == "say"
            outputs = await collect(serving, [1, 2, 3], SamplingParams(max_tokens=4, seed=7))
            assert outputs[-1].outputs[0].token_ids == expected_tokens([1, 2, 3], 7, 4)

    run(body)


def test_a_request_that_is_not_taken() -> None:
    async def body() -> None:
        engine, _ = make_engine(P=4)
        async with AsyncEngine(engine) as serving:
            with pytest.raises(InfeasibleRequestError):
                await collect(serving, make_request("big", 40, 4))
            with pytest.raises(InvalidRequestError, match="no tokenizer"):
                await collect(serving, "text")
            assert len(await collect(serving, make_request("ok", 4, 4))) == 4

    run(body)


def test_one_that_is_offered_twice_runs_on_untouched() -> None:
    async def body() -> None:
        gate = Gate(at=2)
        engine, _ = make_engine(settings={"before": gate})
        async with AsyncEngine(engine) as serving:
            request = make_request("a", 4, 6)
            first = asyncio.create_task(collect(serving, request))
            await gate.reached()
            arrival_ns = request.arrival_ns
            second = asyncio.create_task(collect(serving, request))
            third = asyncio.create_task(collect(serving, make_request("a", 5, 5)))
            await asyncio.sleep(0)
            gate.open()
            for task, message in ((second, "was added before"), (third, "request_id 'a' is in use")):
                with pytest.raises(InvalidRequestError, match=message):
                    await task
            assert request.arrival_ns == arrival_ns
            assert (await first)[-1].outputs[0].token_ids == expected_of(request)

    run(body)


@pytest.mark.parametrize("how", ["break", "cancel", "raise"])
def test_a_caller_that_goes_away_gives_its_blocks_back(how: str) -> None:
    async def body() -> None:
        engine, tape = make_engine(P=1000)
        async with AsyncEngine(engine) as serving:
            seen = asyncio.Event()

            async def listen() -> None:
                async for output in serving.generate(make_request("gone", 4, 3000)):
                    if len(output.outputs[0].token_ids) == 3:
                        seen.set()
                        if how == "break":
                            break
                        if how == "raise":
                            raise Broken("the client")

            task = asyncio.create_task(listen())
            await seen.wait()
            if how == "cancel":
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await until(lambda: "gone" in tape.reasons)
            assert tape.reasons == {"gone": "abort"}
            assert engine.scheduler.blocks.num_free == 1000
            assert len(await collect(serving, make_request("next", 4, 3))) == 3
            assert serving._queues == {}

    run(body)


@pytest.mark.parametrize("resumed", [False, True], ids=["before it was added", "just after it was added"])
def test_a_caller_cancelled_while_its_request_is_added(resumed: bool) -> None:
    async def body() -> None:
        gate = Gate(at=1)
        engine, tape = make_engine(P=1000, settings={"before": gate})
        async with AsyncEngine(engine) as serving:
            first = asyncio.create_task(collect(serving, make_request("first", 4, 40)))
            await gate.reached()
            second = asyncio.create_task(collect(serving, make_request("second", 4, 3000)))
            await asyncio.sleep(0.01)
            if resumed:
                add_request = engine.add_request

                def cancels(request: Request, **kwargs: Any) -> None:
                    add_request(request, **kwargs)
                    asyncio.get_running_loop().call_soon(second.cancel)

                engine.add_request = cancels  # type: ignore[method-assign]
            else:
                second.cancel()
                await asyncio.sleep(0)
            gate.open()
            assert len(await first) == 40
            with pytest.raises(asyncio.CancelledError):
                await second
            await until(lambda: not engine.has_unfinished())
            assert tape.reasons.get("second", "abort") == "abort"
            assert serving._queues == {}
            assert ("second" in tape.requests) == resumed
        check_empty(engine.scheduler)

    run(body)


def test_a_finished_id_can_be_used_again_at_once() -> None:
    async def body() -> None:
        gate = Gate(at=2)
        engine = Engine(EngineConfig(), backend=FakeBackend(before=gate))
        async with AsyncEngine(engine) as serving:
            first = asyncio.create_task(collect(serving, make_request("x", 4, 3)))
            await gate.reached()  # its last token is being computed
            second = asyncio.create_task(collect(serving, make_request("x", 5, 4)))
            await asyncio.sleep(0.01)
            gate.open()
            assert len(await first) == 3
            assert len(await second) == 4

    run(body)


def test_who_goes_away_aborts_nobody_elses_request_of_the_same_id() -> None:
    async def body() -> None:
        gate = Gate(at=2)
        engine = Engine(EngineConfig(), backend=FakeBackend(before=gate))
        async with AsyncEngine(engine) as serving:
            stream = serving.generate(make_request("x", 4, 3))
            await anext(stream)
            await anext(stream)
            await gate.reached()  # the last token of the first "x" is on its way
            second = asyncio.create_task(collect(serving, make_request("x", 5, 4)))
            await asyncio.sleep(0.01)
            await stream.aclose()  # the caller goes away, just too late to abort anything
            gate.open()
            outputs = await second
            assert [o.outputs[0].finish_reason for o in outputs] == [None, None, None, "length"]

    run(body)


def test_abort_by_id() -> None:
    async def body() -> None:
        engine, _ = make_engine(P=1000)
        async with AsyncEngine(engine) as serving:
            request = make_request("a", 4, 3000)
            task = asyncio.create_task(collect(serving, request))
            await until(lambda: request.num_output_tokens > 3)
            await serving.abort("a")
            outputs = await task
            assert outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "abort"
            assert outputs[-1].outputs[0].token_ids == expected_of(request)
            with pytest.raises(UnknownRequestError):
                await serving.abort("a")

    run(body)


def test_run_between_steps() -> None:
    async def body() -> None:
        engine, tape = make_engine("vllm_v1")
        async with AsyncEngine(engine) as serving:
            request = make_request("a", 4, 200)
            task = asyncio.create_task(collect(serving, request))
            await until(lambda: request.num_output_tokens > 3)
            await serving.run(lambda e: e.swap_policy("stall_free"))
            assert await serving.run(lambda e: e.policy_name) == "stall_free"
            with pytest.raises(ZeroDivisionError):
                await serving.run(lambda e: 1 / 0)
            assert (await task)[-1].outputs[0].token_ids == expected_of(request)
            assert tape.reasons == {"a": "length"}

    run(body)


class Breaks(PrefillFirst):
    """The default policy, until a step."""

    def __init__(self, at: int, before: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._at = at
        self._before = before

    def admission(self, step: Any) -> Any:
        if step.index == self._at:
            self._before()
            raise Broken("no idea")
        yield from super().admission(step)

    admission.batchwright_impl = PrefillFirst.admission.batchwright_impl  # type: ignore[attr-defined]


def test_a_policy_error_reaches_everybody_and_the_engine_still_closes() -> None:
    async def body() -> None:
        engine, _ = make_engine(Breaks(at=3))
        serving = AsyncEngine(engine)
        results = await asyncio.gather(
            *(collect(serving, make_request(str(i), 4, 50)) for i in range(5)), return_exceptions=True
        )
        assert all(isinstance(r, PolicyError) and "Broken: no idea" in str(r) for r in results)
        with pytest.raises(BatchwrightError, match=r"the engine stopped: .*Broken: no idea"):
            await collect(serving, make_request("late", 4, 4))
        await serving.close()
        assert engine.backend.num_closed == 1  # type: ignore[attr-defined]
        check_empty(engine.scheduler)
        with pytest.raises(BatchwrightError, match="closed"):
            await collect(serving, make_request("later", 4, 4))

    threads = threading.active_count()
    run(body)
    assert threading.active_count() <= threads


def test_one_that_comes_while_a_policy_breaks_does_not_wait_for_ever() -> None:
    async def body() -> None:
        reached, opened = threading.Event(), threading.Event()

        def before() -> None:
            reached.set()
            assert opened.wait(10)

        engine, _ = make_engine(Breaks(at=3, before=before))
        async with AsyncEngine(engine) as serving:
            first = asyncio.create_task(collect(serving, make_request("first", 4, 50)))
            await asyncio.get_running_loop().run_in_executor(None, reached.wait, 10)
            second = asyncio.create_task(collect(serving, make_request("second", 4, 50)))
            await asyncio.sleep(0.01)
            opened.set()
            for result in await asyncio.gather(first, second, return_exceptions=True):
                assert isinstance(result, BatchwrightError), result

    run(body)


def test_close_ends_streams_and_is_idempotent() -> None:
    async def body() -> None:
        engine, tape = make_engine(P=1000)
        serving = AsyncEngine(engine)
        request = make_request("a", 4, 3000)
        task = asyncio.create_task(collect(serving, request))
        await until(lambda: request.num_output_tokens > 3)
        await serving.close()
        await serving.close()
        with pytest.raises(BatchwrightError, match="the engine was closed"):
            await task
        with pytest.raises(BatchwrightError, match="the engine is closed"):
            await collect(serving, make_request("b", 4, 4))
        assert tape.reasons == {"a": "abort"}
        assert engine.backend.num_closed == 1  # type: ignore[attr-defined]
        check_empty(engine.scheduler)

    run(body)


def test_close_of_one_that_was_never_used() -> None:
    async def body() -> None:
        engine, _ = make_engine()
        async with AsyncEngine(engine):
            pass
        assert engine.backend.num_closed == 1  # type: ignore[attr-defined]

    run(body)
