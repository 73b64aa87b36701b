"""Policies change places on a live engine: no request is lost, no token changes, and a newcomer knows who is there."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from batchwright import ConfigError, PluginError, Policy, Request, Step, hookimpl
from batchwright.resolve import resolve_policy
from batchwright_policies.plugin import register_policies
from toolbox import BASIC, check_whole, drain, expected_of, make_engine, make_request, prompt_of


class Shortest(Policy):
    """Shortest first, with a queue of its own: what it was never told of, it would never run."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[Request] = set()

    @hookimpl
    def policy_attached(self, step: Step) -> None:
        self._known = set(step.waiting)

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        self._known.add(request)

    @hookimpl
    def request_preempted(self, victim: Request) -> None:
        self._known.add(victim)

    @hookimpl
    def request_admitted(self, request: Request) -> None:
        self._known.discard(request)

    @hookimpl
    def request_finished(self, request: Request, reason: str) -> None:
        self._known.discard(request)

    @hookimpl
    def admission(self, step: Step) -> Any:
        assert self._known == set(step.waiting)
        yield step.running
        for request in sorted(self._known, key=lambda r: (r.num_tokens, r.arrival_index)):
            yield request
            if not request.num_scheduled:
                break


POLICIES: dict[str, Any] = {
    **{name: name for name in BASIC},
    "vllm_v1 by priority": {"use": "vllm_v1", "scheduling_policy": "priority"},
    "stall_free in small chunks": "stall_free:chunk_size=5",
    "guarded": "prefill_first:decode_interleave=2",
    "composite": {"admission": "vllm_v1", "chunking": "stall_free:chunk_size=9", "preemption": "prefill_first"},
    "shortest": Shortest,
}
PAIRS = list(itertools.product(POLICIES, POLICIES))


def _make(name: str) -> Any:
    given = POLICIES[name]
    return given() if isinstance(given, type) else given


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=[f"{a}->{b}" for a, b in PAIRS])
def test_all_pairs_at_random_steps(first: str, second: str) -> None:
    rng = random.Random(f"{first} {second}")
    engine, tape = make_engine(
        _make(first), P=14, T=12, prefix_cache={"visible": rng.choice(["computed", "scheduled"])}
    )
    stem = prompt_of("stem", 6)
    num_added = num_swaps = 0
    names = [first, second]
    for number in range(400):
        if num_added < 8 and rng.random() < 0.5:
            tail = prompt_of(str(num_added), rng.randint(1, 9))
            engine.add_request(make_request(str(num_added), stem + tail, rng.randint(1, 12), priority=number % 3))
            num_added += 1
        if number in (2, 5) or rng.random() < 0.25:
            num_swaps += 1
            engine.swap_policy(_make(names[num_swaps % 2]))
        engine.step()
        check_whole(engine.scheduler)
        if num_added == 8 and not engine.has_unfinished():
            break
    assert num_swaps >= 2
    assert engine.scheduler.num_observer_faults == 0
    assert tape.reasons == {str(i): "length" for i in range(8)}
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


EVERY: dict[str, Any] = {
    **{name: name for name in register_policies()},
    **POLICIES,
    "slo_chunk that cuts": "slo_chunk:tbt_s=0.0005,tile=2,min_chunk=1",
    "mlfq that demotes": "mlfq:quantum=1,iteration_tokens=4,levels=4,starve_s=0.02",
    "fair, in small chunks, cheap": {
        "admission": "vtc",
        "chunking": "stall_free:chunk_size=7",
        "preemption": "cheapest",
    },
    "reserving, preemptive": {"admission": "srpt", "reservation": "no_evict", "preemption": "srpt"},
    "whole prompts": {"admission": "lpm", "chunking": "orca", "reservation": "vllm_v1", "preemption": "most_blocks"},
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
def test_every_policy_takes_over_from_any_other_and_no_token_changes(name: str, strict: bool) -> None:
    """It comes, goes and comes back in the middle of things: prompts half done, evictions, aborts, shared prefixes."""
    rng = random.Random(f"{name} {strict}")
    engine, tape = make_engine("prefill_first", P=18, T=32, S=rng.choice([3, 8]), strict=strict)
    installed = engine.plugins
    stem = prompt_of("stem", 6)
    num_added = num_came = 0
    num_steps = 0
    aborted = set()
    away = False
    while num_added < 12 or engine.has_unfinished():
        num_steps += 1
        assert num_steps < 2000, f"it does not end: {engine.scheduler.running!r}"
        if num_added < 12 and rng.random() < 0.5:
            prompt = rng.choice([stem, []]) + prompt_of(str(num_added), rng.randint(1, 9))
            fields = {"priority": rng.randrange(3), "client_id": rng.choice("ab"), "program_id": rng.choice("pq")}
            fields |= {"predicted_output_tokens": rng.choice([None, 4]), "deadline_s": rng.choice([None, 0.01])}
            engine.add_request(make_request(str(num_added), prompt, rng.randint(1, 12), **fields))
            num_added += 1
        if rng.random() < 0.4:
            newcomer = rng.choice(list(EVERY)) if away else name
            given = EVERY[newcomer]
            made: Any = given() if isinstance(given, type) else resolve_policy(given, installed)
            engine.swap_policy(made)
            num_came += newcomer == name
            away = not away
        if rng.random() < 0.03 and engine.scheduler.running:
            victim = engine.scheduler.running[-1].request_id
            aborted.add(victim)
            engine.abort(victim)
        engine.step()
        check_whole(engine.scheduler)
    assert num_came >= 2
    assert engine.scheduler.num_observer_faults == engine.scheduler.num_policy_faults == 0
    assert tape.reasons == {str(i): "abort" if str(i) in aborted else "length" for i in range(12)}
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


def test_a_policy_that_does_not_exist_changes_nothing() -> None:
    engine, tape = make_engine()
    engine.add_request(make_request("a", 4, 6))
    engine.step()
    with pytest.raises(ConfigError, match=r"unknown policy 'stall_fre'; did you mean 'stall_free'"):
        engine.swap_policy("stall_fre")
    with pytest.raises(ConfigError, match="chunk_size"):
        engine.swap_policy("stall_free:chunk_size=0")
    assert engine.policy_name == "prefill_first"
    drain(engine)
    assert tape.reasons == {"a": "length"}


def test_a_policy_of_a_plugins_name_changes_nothing() -> None:
    class Observer:
        name = "stall_free"
        num_steps = 0

        @hookimpl
        def step_started(self) -> None:
            self.num_steps += 1

    observer = Observer()
    engine, tape = make_engine(plugins=[observer])
    engine.add_request(make_request("a", 4, 6))
    engine.step()
    with pytest.raises(PluginError, match="plugin and a policy are both named 'stall_free'"):
        engine.swap_policy("stall_free")
    assert engine.policy_name == "prefill_first"
    drain(engine)
    assert tape.reasons == {"a": "length"} and observer.num_steps == 6


def test_plugins_stay_and_keep_their_place() -> None:
    calls: list[str] = []

    class First:
        name = "first"

        @hookimpl
        def chunking(self, step: Step, request: Request) -> int | None:
            calls.append("plugin")
            return 3 if request.request_id == "a" else None

    engine, tape = make_engine(plugins=[First()])
    engine.add_request(make_request("a", 9, 2))
    engine.swap_policy("stall_free")
    engine.step()
    assert tape.steps[0].batch == [("a", 3)] and calls == ["plugin"]
    drain(engine)


def test_limits_and_cache_settings_stay() -> None:
    engine, _ = make_engine("prefill_first", S=3)
    engine.swap_policy("vllm_v1")  # alone it would bound residents by 3, and share blocks at once
    assert engine.limits.max_num_residents is None
    assert engine.scheduler.blocks.cache.visible == "computed"


def test_the_newcomer_is_told_who_is_there() -> None:
    told: list[Any] = []

    class Newcomer(Policy):
        @hookimpl
        def policy_attached(self, step: Step) -> None:
            told.append(([r.request_id for r in step.waiting], [r.request_id for r in step.running], step.now))

    engine, _ = make_engine(S=2, max_num_residents=2)
    for i in "abc":
        engine.add_request(make_request(i, 4, 9))
    engine.step()
    engine.swap_policy(Newcomer())
    assert told == [(["c"], ["a", "b"], 1_000_000)]
