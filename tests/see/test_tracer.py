"""``Engine.trace`` and ``Tracer``: self-contained records, and an engine that is left as it was."""

from __future__ import annotations

import dataclasses
import json

import pytest

from batchwright import BatchwrightError, Engine, EngineConfig, PolicyError, Request, SamplingParams, hookimpl
from batchwright.batch_builder import BatchBuilder
from batchwright.policy import Policy
from batchwright.trace import ReasonRecorder, TracedStep, Tracer
from fake_backend import FakeBackend, HandClock


def engine(policy: object = "stall_free", **settings: object) -> Engine:
    values = {"num_blocks": 12, "block_size": 4, "max_num_batched_tokens": 16, **settings}
    if isinstance(policy, Policy):
        return Engine(EngineConfig.parse(values), policy=policy)
    return Engine(EngineConfig.parse({**values, "policy": policy}))


def ask(engine: Engine, num: int = 5, start: int = 0) -> None:
    for i in range(start, start + num):
        tokens = [1, 2, 3, 4] * 3 + [i] * (i + 1)
        engine.add_request(Request(f"r{i}", tokens, SamplingParams(max_tokens=8), arrival_ns=i))


def test_each_step_is_given_as_it_was() -> None:
    with engine() as traced, engine() as plain:
        ask(traced)
        ask(plain)
        steps = list(traced.trace())
        assert [s.index for s in steps] == list(range(len(steps)))
        tokens: dict[str, int] = {}
        for step in steps:
            outputs = plain.step()
            was = plain.scheduler.step
            assert list(step.batch) == [r.request_id for r in was.batch]
            assert list(step.preempted) == [r.request_id for r in was.preempted]
            assert step.finished == {r.request_id: r.finish_reason for r in was.finished}
            assert (step.now, step.end) == (was.now, was.end)
            assert step.budget == was.budget == step.max_num_batched_tokens - step.num_tokens
            assert list(step.outputs) == outputs
            assert step.num_decodes == was.num_decodes
            held = {block for r in step.requests for block in r.block_table}
            assert step.free_blocks == step.num_blocks - len(held)
            for name in step.batch:
                tokens[name] = tokens.get(name, 0) + step.by_id[name].num_scheduled
        assert not plain.has_unfinished() and not traced.has_unfinished()
        assert steps[0].arrived == ("r0", "r1", "r2", "r3", "r4") and not any(s.arrived for s in steps[1:])
        assert any(s.preempted for s in steps) and any(r.num_cached for s in steps for r in s.requests)
        assert len(tokens) == 5


def test_a_step_keeps_nothing_of_the_engine_and_cannot_be_changed() -> None:
    with engine() as made:
        ask(made)
        first = next(made.trace())
        before = dataclasses.asdict(first)
        while made.has_unfinished():
            made.step()
        assert dataclasses.asdict(first) == before
        with pytest.raises(dataclasses.FrozenInstanceError):
            first.index = 3  # type: ignore[misc]
        json.dumps({name: reason.to_json() for name, reason in first.reasons.items()})


def test_requests_may_come_between_two_steps() -> None:
    with engine() as made:
        ask(made, 1)
        arrived = []
        for step in made.trace():
            arrived += step.arrived
            if step.index == 2:
                ask(made, 2, start=1)
            if step.index == 4:
                made.abort("r1")
        assert arrived == ["r0", "r1", "r2"]


def test_the_engine_is_as_it_was_afterwards() -> None:
    with engine() as made:
        ask(made)
        going = made.trace()
        next(going)
        assert type(made.scheduler._builder) is not BatchBuilder
        going.close()
        assert type(made.scheduler._builder) is BatchBuilder
        made.step()
        steps = list(made.trace())
        assert steps[0].index == 2
        assert type(made.scheduler._builder) is BatchBuilder


def test_nothing_is_watched_where_nobody_listens() -> None:
    with engine() as made:
        ask(made)
        made.step()
        assert type(made.scheduler._builder) is BatchBuilder


class Wrong(Policy):
    """Offers nobody from its third step on."""

    @hookimpl
    def admission(self, step):
        return [*step.running, *step.waiting] if step.index < 2 else []


def test_an_error_comes_through_and_the_engine_goes_on() -> None:
    with engine(Wrong()) as made:
        ask(made)
        seen: list[TracedStep] = []
        with pytest.raises(PolicyError, match="progress"):
            seen.extend(made.trace())
        made.swap_policy("prefill_first")
        assert type(made.scheduler._builder) is BatchBuilder
        steps = list(made.trace())
        assert steps[0].index == 3
        assert not made.has_unfinished()


def test_two_may_listen_and_each_leaves_alone() -> None:
    with engine() as made:
        ask(made)
        one, two = Tracer(made.scheduler), Tracer(made.scheduler)
        made.step()
        assert one.take() == two.take() != []
        one.close()
        made.step()
        assert not one.take() and len(two.take()) == 1
        two.is_on = False
        made.step()
        assert not two.take()
        two.close()
        two.close()
        assert type(made.scheduler._builder) is BatchBuilder


def test_watching_begins_between_two_steps() -> None:
    with engine() as made:
        ask(made)
        batch = made.scheduler.schedule(0)
        with pytest.raises(BatchwrightError, match="between two steps"):
            Tracer(made.scheduler)
        made.scheduler.fail(batch, "never mind", retry=True)
        Tracer(made.scheduler).close()


def test_steps_that_would_overlap_are_traced_one_after_the_other() -> None:
    def made(**settings: object) -> Engine:
        values = {"max_num_batched_tokens": 16, "policy": "stall_free", **settings}
        backend = FakeBackend(num_blocks=12, block_size=4, clock=HandClock(), script={"r1": {2: 7}}, eos_token_ids=(7,))
        return Engine(EngineConfig.parse(values), backend=backend)

    films = []
    for overlap in (False, True):
        with made(overlap=overlap) as engine:
            ask(engine)
            films.append(list(engine.trace()))
    assert films[0] == films[1]
    assert {name: reason for s in films[1] for name, reason in s.finished.items()}["r1"] == "stop"
    with made(overlap=True) as engine, pytest.raises(BatchwrightError, match="leave overlap off"):
        ReasonRecorder("why.jsonl", engine.scheduler)
