"""The rules that every decision is held to, beyond the one-rule faults of scenario A2."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from batchwright import HOLD, Policy, PolicyError, Refusal, RefusedRequestError, Request, Step, hookimpl
from faulty import BadArrival, Broken, PrefillFirst
from toolbox import check_whole, drain, expected_of, make_engine, make_request, play, prompt_of

ARRIVALS = [
    (Broken("no idea"), "raised", r"it raised Broken: no idea \(faulty\.py, line \d+\)$"),
    (False, "type", "must return True, a Refusal or None, not False"),
    (1, "type", "not 1"),
    ("no", "type", "not 'no'"),
]


@pytest.mark.parametrize(("answer", "rule", "says"), ARRIVALS)
def test_arrival_raises(answer: Any, rule: str, says: str) -> None:
    engine, tape = make_engine(BadArrival(answer))
    with pytest.raises(PolicyError, match=says) as caught:
        engine.add_request(make_request("a", 4, 2))
    error = caught.value
    assert (error.plugin, error.hook, error.step, error.rule, error.value) == (
        "bad_arrival",
        "arrival",
        0,
        rule,
        answer,
    )
    assert not engine.has_unfinished() and tape.requests == {}


@pytest.mark.parametrize(("answer", "rule", "says"), ARRIVALS)
def test_arrival_falls_back_to_taking_it(answer: Any, rule: str, says: str) -> None:
    engine, tape = make_engine(BadArrival(answer), on_policy_error="fallback")
    play(engine, [make_request("a", 4, 2)])
    assert tape.reasons == {"a": "length"}
    assert engine.scheduler.num_policy_faults == 1
    assert [e["hook"] for e in tape.events("policy_fault")] == ["arrival"]
    assert re.search(says, tape.events("policy_fault")[0]["error"])


def test_arrival_may_refuse_with_its_reason() -> None:
    engine, tape = make_engine(BadArrival(Refusal("the queue is full")))
    with pytest.raises(RefusedRequestError, match="refused by policy 'bad_arrival': the queue is full") as caught:
        engine.add_request(make_request("a", 4, 2))
    assert caught.value.reason == "the queue is full"
    assert not engine.has_unfinished() and tape.requests == {}


class Scripted(PrefillFirst):
    """The default policy, whose hooks are given as functions."""

    def __init__(self, **hooks: Callable[..., Any]) -> None:
        super().__init__()
        self._hooks = hooks

    @hookimpl
    def admission(self, step: Step) -> Any:
        return self._hooks["admission"](step) if "admission" in self._hooks else super().admission(step)

    @hookimpl
    def chunking(self, step: Step, request: Request) -> Any:
        if "chunking" in self._hooks:
            return self._hooks["chunking"](step, request)
        return super().chunking(step, request)

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Any:
        if "preemption" in self._hooks:
            return self._hooks["preemption"](step, request)
        return super().preemption(step, request)


@pytest.mark.parametrize("mode", ["raise", "fallback"])
def test_a_victim_evicted_in_this_step_cannot_be_evicted_again(mode: str) -> None:
    asked: list[str] = []

    def preemption(step: Step, request: Request) -> Any:
        if request.request_id != "big" or not request.is_waiting:
            return step.evictable[-1] if step.evictable else request
        asked.append(request.request_id)
        return step.preempted[0] if step.preempted else step.evictable[0]

    def admission(step: Step) -> Iterator[Any]:
        yield from sorted(step.waiting, key=lambda r: r.request_id != "big")
        yield step.running

    engine, tape = make_engine(Scripted(admission=admission, preemption=preemption), P=6, on_policy_error=mode)
    for i in range(3):
        engine.add_request(make_request(str(i), 7, 2))
    engine.step()
    engine.add_request(make_request("big", 20, 2))
    if mode == "raise":
        with pytest.raises(PolicyError, match="victim '0' is not a resident: it holds no blocks here") as caught:
            engine.step()
        assert caught.value.rule == "victim" and caught.value.value is tape.requests["0"]
        # Its eviction stays, though the batch was undone; it is at the head of the queue.
        assert [r.request_id for r in engine.scheduler.waiting] == ["0", "big"]
    else:
        engine.step()
        assert tape.steps[-1].preempted == ["0"]
        assert tape.steps[-1].waiting == ["0", "big"]
        assert [i for i, _ in tape.steps[-1].batch] == ["1", "2"]  # the default policy's decodes
    check_whole(engine.scheduler)
    assert asked == ["big", "big"]
    assert tape.requests["0"].num_preemptions == 1
    engine.swap_policy("prefill_first")
    drain(engine)
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


def test_evictions_of_a_step_that_falls_back_keep_their_order_and_are_not_offered_again() -> None:
    def admission(step: Step) -> Iterator[Any]:
        yield from (r for r in step.waiting if r.request_id == "big")
        raise Broken("after two evictions")

    def preemption(step: Step, request: Request) -> Any:
        return step.evictable[0]

    engine, tape = make_engine("prefill_first", P=6, T=64, on_policy_error="fallback")
    for i in range(3):
        engine.add_request(make_request(str(i), 7, 3))
    engine.step()
    engine.swap_policy(Scripted(admission=admission, preemption=preemption))
    engine.add_request(make_request("big", 15, 2))
    engine.step()
    step = tape.steps[-1]
    # "big" took the blocks of "0" and "1" and was in the batch when the fault came: it waits again, at its old place,
    # behind the victims, the last evicted first. The default policy then found room for it.
    assert step.preempted == ["0", "1"]
    assert step.batch == [("big", 15)]
    assert step.waiting == ["1", "0"] and step.running == ["2", "big"]
    assert len(tape.events("policy_fault")) == 1
    engine.swap_policy("prefill_first")
    drain(engine)
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


@pytest.mark.parametrize("visible", ["computed", "scheduled"])
def test_an_undone_batch_leaves_no_trace(visible: str) -> None:
    prompt = prompt_of("shared", 9)
    broken: list[bool] = [False]

    def admission(step: Step) -> Iterator[Any]:
        yield step.running
        yield list(step.waiting)
        if broken[0]:
            raise Broken("at the end")

    engine, tape = make_engine(Scripted(admission=admission), prefix_cache={"visible": visible})
    for i in range(3):
        engine.add_request(make_request(str(i), [*prompt, i], 9))
    for _ in range(4):
        engine.step()
    for i in range(3, 6):
        engine.add_request(make_request(str(i), [*prompt, i], 4))
    scheduler = engine.scheduler

    def snapshot() -> Any:
        requests = [*scheduler.running, *scheduler.waiting]
        fields = ["request_id", "num_tokens", "num_computed", "num_scheduled", "num_preemptions", "block_table"]
        fields += ["is_waiting", "is_resident", "is_prefilling", "first_scheduled_ns", "_room", "_num_registered"]
        rows = [repr([getattr(r, f) for f in fields]) for r in requests]
        return (
            rows,
            scheduler.blocks.references,
            sorted(scheduler.blocks.free),
            dict(scheduler.blocks.index._answering),
        )

    before = snapshot()
    broken[0] = True
    for _ in range(3):
        with pytest.raises(PolicyError, match="Broken: at the end"):
            engine.step()
        assert snapshot() == before
        check_whole(scheduler)
    broken[0] = False
    drain(engine)
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_policy_leaves_the_engine_whole(error: type[BaseException]) -> None:
    left = [3, 5]

    def admission(step: Step) -> Iterator[Any]:
        yield list(step.waiting)
        yield step.running
        if step.index in left:
            raise error

    engine, tape = make_engine(Scripted(admission=admission), P=16)
    for i in range(4):
        engine.add_request(make_request(str(i), 8, 24))
    for _ in range(8):
        with contextlib.suppress(error):
            engine.step()
        check_whole(engine.scheduler)
    drain(engine)
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


def test_a_sequence_without_an_end_is_found_too() -> None:
    drawn = [0]

    def admission(step: Step) -> Iterator[Any]:
        yield list(step.waiting)
        yield _cycle(step, drawn)

    engine, _ = make_engine(Scripted(admission=admission, chunking=lambda step, request: 0))
    engine.add_request(make_request("a", 4, 2))
    with pytest.raises(PolicyError, match="does it ever end") as caught:
        engine.step()
    assert caught.value.rule == "endless"
    assert drawn[0] < 10**5


def _cycle(step: Step, drawn: list[int]) -> Iterator[Request]:
    while drawn[0] < 10**6:  # an end, for a core that does not bound it
        drawn[0] += 1
        yield from step.waiting


def test_zero_is_an_answer_and_none_is_not() -> None:
    def chunking(step: Step, request: Request) -> int | None:
        return (0 if step.index < 4 else None) if request.request_id == "later" else None

    engine, tape = make_engine(Scripted(chunking=chunking))
    play(engine, [make_request("a", 5, 9), make_request("later", 5, 2)])
    assert tape.token_steps("a")[0] == 0
    assert tape.token_steps("later")[0] == 4


def test_chunking_is_asked_only_where_there_is_something_to_decide() -> None:
    asked: list[tuple[str, int, int]] = []

    def chunking(step: Step, request: Request) -> int:
        asked.append((request.request_id, request.num_pending, step.budget))
        return min(request.num_pending, step.budget)

    def admission(step: Step) -> Iterator[Any]:
        yield step.running
        yield from step.waiting

    engine, tape = make_engine(Scripted(chunking=chunking, admission=admission), T=8)
    play(engine, [make_request("a", 8, 3), make_request("b", 9, 3), make_request("c", 1, 3)])
    assert len(tape.reasons) == 3
    assert all(pending > 1 and budget > 0 for _, pending, budget in asked)
    assert {i for i, _, _ in asked} == {"a", "b"}


class Nothing(Policy):
    """Decides nothing."""

    budget_counts_decodes = False


def test_what_a_policy_leaves_open_the_core_decides() -> None:
    def run(policy: Any) -> Any:
        engine, tape = make_engine(policy, P=16, T=20)
        play(engine, [make_request(str(i), 8, 24) for i in range(4)] + [make_request("long", 37, 5)])
        return tape.steps

    neutral = Scripted(chunking=lambda step, request: min(request.num_pending, step.budget))
    assert run(Nothing()) == run(neutral)
    with_prompts_cut_anywhere = [len([n for _, n in s.batch if n > 1]) for s in run(Nothing())]
    assert max(with_prompts_cut_anywhere) > 1


def test_another_plugins_decision_is_blamed_on_that_plugin() -> None:
    class Meddler:
        name = "meddler"

        @hookimpl
        def chunking(self, step: Step, request: Request) -> int | None:
            return -5 if request.request_id == "b" else None

    engine, _ = make_engine(plugins=[Meddler()])
    engine.add_request(make_request("a", 4, 2))
    engine.step()
    engine.add_request(make_request("b", 4, 2))
    with pytest.raises(PolicyError) as caught:
        engine.step()
    assert (caught.value.plugin, caught.value.hook, caught.value.value) == ("meddler", "chunking", -5)


def test_hold_is_no_victim_for_a_resident_either() -> None:
    def preemption(step: Step, request: Request) -> Any:
        return HOLD if request.request_id == "3" else step.evictable[-1] if step.evictable else request

    engine, tape = make_engine(Scripted(preemption=preemption), P=16)
    play(engine, [make_request(str(i), 8, 24) for i in range(4)])
    assert len(tape.reasons) == 4
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


def test_evicting_only_who_was_admitted_in_this_step_is_no_progress() -> None:
    """Nothing would ever change: each step ends where it began."""

    def admission(step: Step) -> Iterator[Any]:
        yield from step.waiting  # "a" enters; "b" evicts it and still does not fit beside the resident
        if step.index == 0:
            yield step.running

    def preemption(step: Step, request: Request) -> Any:
        return step.batch[0] if step.batch else HOLD

    policy = Scripted(admission=admission, preemption=preemption)
    engine, tape = make_engine(policy, P=6, on_policy_error="fallback")
    arrivals = {0: [make_request("resident", 7, 9)], 1: [make_request("a", 12, 4), make_request("b", 20, 4)]}
    play(engine, arrivals, max_steps=100)
    assert set(tape.reasons.values()) == {"length"} and len(tape.reasons) == 3
    assert engine.scheduler.num_policy_faults > 0
