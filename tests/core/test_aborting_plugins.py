"""A plugin may abort requests, past their deadline say; whoever waits for them is told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batchwright import (
    LLM,
    AsyncEngine,
    Engine,
    InvalidRequestError,
    Policy,
    PolicyError,
    Request,
    SamplingParams,
    Step,
    hookimpl,
)
from fake_backend import FakeTokenizer, HandClock, say
from fake_plugins import install
from toolbox import check_empty, check_whole, drain, make_engine, make_request


class Deadline:
    """Aborts requests that are past their deadline, in one of the hooks where that is allowed."""

    name = "deadline"

    def __init__(self, hook: str) -> None:
        self.engine: Engine | None = None
        self.aborted: list[str] = []
        setattr(self, hook, hookimpl(self._as_hook()))

    def _as_hook(self) -> Any:
        def look(step: Step) -> None:
            for request in [*step.running, *step.waiting]:
                if request.deadline_s is not None and (step.end or step.now) / 1e9 >= request.deadline_s:
                    assert self.engine is not None
                    self.engine.abort(request.request_id)
                    self.aborted.append(request.request_id)

        return look


HOOKS = ["step_started", "step_finished"]


@pytest.mark.parametrize("hook", HOOKS)
def test_step_gives_the_end_of_a_request_that_a_plugin_aborted(hook: str) -> None:
    plugin = Deadline(hook)
    script = {"late": say("hello world"), "calm": say("bye")}
    engine, tape = make_engine(
        plugins=[plugin], settings={"step_ns": 10**9, "tokenizer": FakeTokenizer(), "script": script}
    )
    plugin.engine = engine
    engine.add_request(make_request("late", 4, 11, deadline_s=4.0))
    engine.add_request(make_request("calm", 4, 3))
    ends: dict[str, Any] = {}
    for _ in range(30):
        for output in engine.step():
            assert output.request_id not in ends, "an output after the last"
            if output.finished:
                ends[output.request_id] = output.outputs[0]
        check_whole(engine.scheduler)
    assert plugin.aborted == ["late"] and engine.scheduler.num_observer_faults == 0
    assert tape.reasons == {"calm": "length", "late": "abort"}
    assert (ends["late"].finish_reason, ends["late"].text) == ("abort", "hell")
    assert ends["late"].token_ids == list(say("hell").values())
    assert (ends["calm"].finish_reason, ends["calm"].text) == ("length", "bye")


@pytest.mark.parametrize("hook", HOOKS)
def test_a_stream_ends_when_a_plugin_aborts_its_request(hook: str) -> None:
    async def body() -> None:
        plugin = Deadline(hook)
        engine, _ = make_engine(plugins=[plugin], settings={"step_ns": 10**9})
        plugin.engine = engine
        async with AsyncEngine(engine) as serving:
            outputs = [o async for o in serving.generate(make_request("late", 4, 50, deadline_s=4.0))]
        assert outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "abort"
        assert [t for o in outputs for t in o.new_token_ids] == outputs[-1].outputs[0].token_ids
        assert len(outputs[-1].outputs[0].token_ids) == 4

    asyncio.run(asyncio.wait_for(body(), 5))


def test_a_stream_ends_when_its_request_is_aborted_between_steps() -> None:
    async def body() -> None:
        engine, _ = make_engine(P=1000)
        async with AsyncEngine(engine) as serving:
            request = make_request("a", 4, 3000)

            async def collect() -> list[Any]:
                return [output async for output in serving.generate(request)]

            task = asyncio.create_task(collect())
            while request.num_output_tokens < 3:
                await asyncio.sleep(0.001)
            await serving.run(lambda e: e.abort("a"))
            outputs = await task
        assert outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "abort"

    asyncio.run(asyncio.wait_for(body(), 5))


PLUGIN = """
from batchwright import hookimpl
from fake_plugins import fake_entry


@hookimpl
def register_backends():
    return {"fake": fake_entry(step_ns=10**9)}
"""


@pytest.mark.parametrize("hook", HOOKS)
def test_generate_gives_what_there_was_of_an_aborted_request(
    hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"acme_fake_aborting_{hook}"
    install(tmp_path, "acme-fake", {"acme": module}, {f"{module}.py": PLUGIN})
    monkeypatch.syspath_prepend(tmp_path)

    class Second(Deadline):
        """Gives the second request a deadline; ``generate`` has no way to."""

        @hookimpl
        def request_arrived(self, request: Request) -> None:
            request.deadline_s = 3.0 if request.arrival_index == 1 else None

    with LLM("fake:any") as llm:
        plugin = Second(hook)
        plugin.engine = llm.engine
        llm.engine.scheduler.register(plugin)
        outputs = llm.generate([[1, 2], [3, 4]], SamplingParams(max_tokens=8, ignore_eos=True))
    assert [o.outputs[0].finish_reason for o in outputs] == ["length", "abort"]
    assert [len(o.outputs[0].token_ids) for o in outputs] == [8, 3]


@pytest.mark.parametrize("fault", ["fail_at", "lose_at"])
@pytest.mark.parametrize("overlap", [False, True])
def test_nobody_is_aborted_while_evictions_are_told(fault: str, overlap: bool) -> None:
    """Of a retry too: the others of the batch are about to be evicted."""

    class Hasty:
        name = "hasty"
        engine: Engine

        @hookimpl
        def request_preempted(self, victim: Request, request: Request | None) -> None:
            assert request is None
            for other in [*self.engine.scheduler.running]:
                if other is not victim:
                    self.engine.abort(other.request_id)

    plugin = Hasty()
    settings = {fault: [2], "clock": HandClock()}
    engine, tape = make_engine(plugins=[plugin], settings=settings, on_backend_error="retry", overlap=overlap)
    plugin.engine = engine
    for i in range(3):
        engine.add_request(make_request(str(i), 6, 6))
    drain(engine)
    check_empty(engine.scheduler)
    assert tape.reasons == dict.fromkeys("012", "length") and engine.scheduler.num_observer_faults > 0
    assert all("queues are frozen" in e["error"] for e in tape.events("observer_fault"))


@pytest.mark.parametrize("overlap", [False, True])
def test_whoever_is_aborted_in_a_step_that_raises_is_told_by_the_next(overlap: bool) -> None:
    class Failing(Policy):
        name = "failing"

        @hookimpl
        def admission(self, step: Step) -> Sequence[Request]:
            if step.index == 3:
                raise RuntimeError("no idea")
            return [*step.running, *step.waiting]

    class Aborts:
        name = "aborts"

        @hookimpl
        def step_started(self, step: Step) -> None:
            if step.index == 3:
                engine.abort("a")
            if step.index == 4:
                engine.abort("b")

    backend = {"clock": HandClock(), "tokenizer": FakeTokenizer(), "script": {"a": say("hello world")}}
    engine, tape = make_engine(
        Failing(), plugins=[Aborts()], settings=backend, overlap=overlap, on_policy_error="raise"
    )
    engine.add_request(make_request("a", 4, 11))
    engine.add_request(make_request("b", 4, 9))
    told = []
    with pytest.raises(PolicyError, match="no idea"):
        for _ in range(10):
            told += engine.step()
    assert not any(o.finished for o in told) and tape.reasons == {"a": "abort"} and engine.has_unfinished()
    with pytest.raises(InvalidRequestError, match="'a' is in use: the last output"):
        engine.add_request(make_request("a", 4, 11))
    told += engine.step()
    told = [o for o in told if o.request_id == "a"]
    completion = told[-1].outputs[0]
    assert completion.finish_reason == "abort" and not any(o.finished for o in told[:-1])
    assert [t for o in told for t in o.new_token_ids] == completion.token_ids
    assert "".join(o.new_text for o in told) == completion.text == "hello world"[: len(completion.text)] != ""
    assert not engine._answers._texts and not engine._answers._prompts


@pytest.mark.parametrize("overlap", [False, True])
def test_an_id_is_free_again_when_its_last_output_was_given(overlap: bool) -> None:
    """Not before: it would get the other's text."""

    class Again:
        name = "again"

        @hookimpl
        def request_finished(self, request: Request) -> None:
            with pytest.raises(InvalidRequestError, match="'a' is in use: the last output"):
                engine.add_request(make_request("a", 4, 5))
            refused.append(request.request_id)

    refused: list[str] = []
    backend = {"clock": HandClock(), "tokenizer": FakeTokenizer(), "script": {"a": say("hello")}}
    engine, tape = make_engine(plugins=[Again()], settings=backend, overlap=overlap)
    for _ in range(2):
        engine.add_request(make_request("a", 4, 5))
        told: list[Any] = []
        while engine.has_unfinished():
            told += engine.step()
        assert told[-1].outputs[0].text == "".join(o.new_text for o in told) == "hello"
        tape.reasons.clear()
    assert refused == ["a", "a"] and engine.scheduler.num_observer_faults == 0
