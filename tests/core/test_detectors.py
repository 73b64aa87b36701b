"""Thrash and starvation: when they are reported, and how often."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchwright import HOLD, Policy, PolicyError, Request, Step, hookimpl
from batchwright.config import DetectorConfig
from batchwright.detectors import Detectors
from toolbox import BASIC, Tape, make_engine, make_request, play


class NewestFirst(Policy):
    """Residents, then the newest that waits: older ones starve under a stream."""

    @hookimpl
    def admission(self, step: Step) -> Any:
        yield step.running
        for request in reversed(step.waiting):
            yield request
            if not request.num_scheduled:
                break


def _stream(policy: Any, length: int, detectors: dict[str, Any], *, old: int = 1, **more: Any) -> Tape:
    # One seat: each admission passes over all older ones. A new request comes in each step.
    engine, tape = make_engine(policy, max_num_residents=1, detectors=detectors, **more)
    arrivals = {0: [make_request(f"old{i}", 4, 1) for i in range(old)] + [make_request("first", 4, 1)]}
    arrivals |= {k: [make_request(f"s{k}", 4, 1)] for k in range(1, length)}
    play(engine, arrivals)
    return tape


def test_starvation_is_reported_after_so_many_passes_and_once() -> None:
    tape = _stream(NewestFirst(), 40, {"starvation_passes": 10})
    assert tape.events("starvation") == [
        {"step": 9, "kind": "starvation", "request_id": "old0", "num_passes": 10, "waited_s": 0.01}
    ]
    assert _stream(NewestFirst(), 9, {"starvation_passes": 10}).events("starvation") == []


def test_the_next_oldest_is_watched_from_then_on() -> None:
    tape = _stream(NewestFirst(), 40, {"starvation_passes": 10}, old=3)
    assert [(e["step"], e["request_id"]) for e in tape.events("starvation")] == [
        (9, "old0"),
        (19, "old1"),
        (29, "old2"),
    ]


def test_starvation_by_time() -> None:
    detectors = {"starvation_s": 0.02, "starvation_passes": 10**6}
    tape = _stream(NewestFirst(), 40, detectors, settings={"step_ns": 1_000_000})
    assert [(e["step"], e["request_id"]) for e in tape.events("starvation")] == [(20, "old0")]
    assert tape.events("starvation")[0]["waited_s"] == 0.021


@pytest.mark.parametrize("policy", BASIC)
def test_nobody_starves_under_a_shipped_policy(policy: str) -> None:
    tape = _stream(policy, 40, {"starvation_passes": 1})
    assert tape.events("starvation") == [] and tape.events("thrash") == []


class Plan(Policy):
    """Offers whom a function says; the newest resident gives way to anybody while ``evicts`` says so."""

    def __init__(self, plan: Callable[[Step], Iterable[Request]], evicts: Callable[[Step], bool]) -> None:
        super().__init__()
        self._plan, self._evicts = plan, evicts

    @hookimpl
    def admission(self, step: Step) -> Iterable[Any]:
        return self._plan(step)

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Any:
        return step.evictable[-1] if step.evictable and self._evicts(step) else HOLD


def _newcomers_first(step: Step) -> Iterable[Request]:
    chosen = [r for r in (*step.running, *step.waiting) if r.request_id.startswith("s")]
    return chosen or [*step.running, *step.waiting]


def test_an_evicted_request_can_starve_too() -> None:
    policy = Plan(_newcomers_first, evicts=lambda step: step.index == 1)
    engine, tape = make_engine(policy, max_num_residents=1, detectors={"starvation_passes": 5})
    play(engine, {0: [make_request("old", 4, 9)]} | {k: [make_request(f"s{k}", 4, 1)] for k in range(1, 20)})
    assert tape.requests["old"].num_preemptions == 1
    # The admission for which it was evicted was before it waited: five more went past it.
    assert [(e["request_id"], e["num_passes"]) for e in tape.events("starvation")] == [("old", 5)]


def test_one_that_waited_twice_is_reported_once() -> None:
    def plan(step: Step) -> Iterable[Request]:
        # "b" goes past "a"; "a" takes its seat; then everybody goes past "b".
        turn = {0: "b", 1: "a"}.get(step.index)
        return [r for r in step.waiting if r.request_id == turn] if turn is not None else _newcomers_first(step)

    policy = Plan(plan, evicts=lambda step: step.index == 1)
    engine, tape = make_engine(policy, max_num_residents=1, detectors={"starvation_passes": 5})
    arrivals = {0: [make_request("a", 4, 1), make_request("b", 4, 9)]}
    arrivals |= {k: [make_request(f"s{k}", 4, 1)] for k in range(2, 30)}
    play(engine, arrivals)
    assert tape.requests["b"].num_preemptions == 1
    assert [e["request_id"] for e in tape.events("starvation")] == ["b"]


def _thrash(until: int, **detectors: Any) -> list[dict[str, Any]]:
    """Two requests take each other's seat in every step before ``until``."""

    def plan(step: Step) -> Iterable[Request]:
        return list(step.waiting)[:1] if step.index < until else [*step.running, *step.waiting]

    policy = Plan(plan, evicts=lambda step: step.index < until)
    engine, tape = make_engine(policy, max_num_residents=1, prefix_cache={"enabled": False}, detectors=detectors)
    play(engine, [make_request("a", 20, 100), make_request("b", 20, 100)])
    return tape.events("thrash")


def test_thrash_is_reported_when_it_begins_and_not_again_while_it_lasts() -> None:
    events = _thrash(until=120, thrash_steps=50)
    assert len(events) == 1
    assert events[0]["step"] == 19  # the first of which enough is known
    assert events[0]["recomputed_share"] > 0.8


def test_thrash_of_a_short_run_with_a_small_window() -> None:
    assert _thrash(until=10, thrash_steps=5)[0]["step"] == 4


def test_no_thrash_no_event() -> None:
    assert _thrash(until=0) == []
    assert _thrash(until=120, thrash_steps=50, thrash_share=1.0) == []


def test_plugins_of_the_engine_see_what_was_found() -> None:
    seen: list[str] = []

    class Plain:
        name = "plain"

        @hookimpl
        def step_finished(self, step: Step) -> None:
            seen.extend(e["kind"] for e in step.events)

    tape = _stream(NewestFirst(), 40, {"starvation_passes": 10}, plugins=[Plain()])
    assert len(tape.events("starvation")) == 1 and seen == ["starvation"]


# Livelock -------------------------------------------------------------------------------------------------------


class Circles(Policy):
    """Newcomers evict residents, who come back and evict them, while their prompts are half done."""

    preemptive = True

    @hookimpl
    def admission(self, step: Step) -> Any:
        yield from step.waiting
        yield [r for r in step.running if not r.num_scheduled]

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        return min(4, request.num_pending, step.budget)

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Any:
        return step.evictable[0] if step.evictable else (HOLD if request.is_waiting else request)


def _circles(**config: Any) -> tuple[Any, Tape]:
    engine, tape = make_engine(Circles(), P=4, T=4, prefix_cache={"enabled": False}, **config)
    for name in "ab":
        engine.add_request(make_request(name, 12, 2))
    return engine, tape


def test_requests_that_evict_each_other_for_ever_are_stopped() -> None:
    engine, tape = _circles()
    with pytest.raises(PolicyError, match="more than 10 pools hold, and nobody got a token") as caught:
        for _ in range(3000):
            engine.step()
    assert (caught.value.rule, caught.value.hook, caught.value.plugin) == ("progress", "preemption", "circles")
    (event,) = tape.events("livelock")
    assert event["num_recomputed"] > 10 * 16 and event["step"] == len(tape.steps) - 1
    engine.swap_policy("prefill_first")  # nothing was lost
    while engine.has_unfinished():
        engine.step()
    assert tape.reasons == {"a": "length", "b": "length"}


def test_with_fallback_the_default_policy_takes_that_step() -> None:
    engine, tape = _circles(on_policy_error="fallback", detectors={"livelock_pools": 1})
    for _ in range(120):
        engine.step()
    found = tape.events("livelock")
    assert len(found) > 1 and engine.scheduler.num_policy_faults == len(found)
    assert "nobody got a token" in tape.events("policy_fault")[0]["error"]


def test_a_long_recompute_is_no_livelock() -> None:
    """Everything is computed again in tiny chunks, once: the pool's worth of tokens, and then they go on."""
    engine, tape = make_engine(P=16, T=2, detectors={"livelock_pools": 1}, prefix_cache={"enabled": False})
    play(engine, [make_request(str(i), 8, 24) for i in range(4)])
    assert tape.preemptions() and not tape.events("livelock")


steps_of_a_run = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from([0, 0, 0, 0, 2, 5]), st.sampled_from([1, 1, 1, 2, 30])), max_size=60
)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(steps_of_a_run, st.sampled_from([1, 3, 7, 25]), st.sampled_from([0.1, 0.4]))
def test_thrash_is_the_share_of_the_last_steps(runs: list[tuple[int, int, int]], most: int, share: float) -> None:
    """Sums are kept only while anything in the window was recomputed, and are those that adding up gives."""
    detectors = Detectors(DetectorConfig(thrash_steps=most, thrash_share=share))
    all_steps: list[tuple[int, int]] = []
    found: list[dict[str, Any]] = []
    expected = []
    quiet_until = -1
    for tokens, again, num in runs:
        recomputed = min(again, tokens) if num == 1 else 0
        at_once = num > 1 and not detectors._recomputed
        if at_once:
            detectors._note(tokens, num)  # as of a leap
        for _ in range(num):
            index = len(all_steps)
            if not at_once:
                detectors._look_for_thrash(found, index, tokens, recomputed)
            all_steps.append((tokens, recomputed))
            last = all_steps[-most:]
            part = sum(r for _, r in last) / sum(t for t, _ in last)
            if len(last) >= min(20, most) and part > share:
                if index >= quiet_until:
                    expected.append((index, round(part, 6), len(last)))
                quiet_until = index + most
    assert [(e["step"], e["recomputed_share"], e["num_steps"]) for e in found] == expected
