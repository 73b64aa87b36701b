"""Every hook is documented with its signature, and has a test that it fires."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchwright import (
    HOLD,
    Engine,
    EngineConfig,
    FleetView,
    InvalidRequestError,
    Policy,
    Predictor,
    Refusal,
    RefusedRequestError,
    Request,
    Router,
    Step,
    StepResult,
    hookimpl,
    hookspecs,
)
from batchwright.hookspecs import DECISIONS, HOOKS, OBSERVERS, REGISTRATIONS, ROUTING
from batchwright.lab import RunMetric
from batchwright.plugins import load_plugins
from fake_plugins import FakePoint, fake_entry, module_of
from faulty import PrefillFirst
from fleet_toolbox import drive, make_fleet
from toolbox import make_engine, make_request, play

DOCS = Path(__file__).parents[2] / "docs" / "hooks.md"

FIRES: dict[str, Callable[[], None]] = {}
"""Hook to the test that it fires."""


def fires(hook: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Mark a test as the one of a hook."""

    def take(test: Callable[[], None]) -> Callable[[], None]:
        assert hook not in FIRES
        FIRES[hook] = test
        return test

    return take


def test_what_decisions_answer_beside_requests_and_numbers() -> None:
    assert repr(HOLD) == "HOLD"
    with pytest.raises(InvalidRequestError, match="gives its reason in words, not ''"):
        Refusal("")


class Told:
    """An observer with one hook, which keeps the arguments of each call."""

    name = "told"

    def __init__(self, hook: str) -> None:
        self.calls: list[dict[str, Any]] = []
        names = list(inspect.signature(getattr(hookspecs, hook)).parameters)

        def keep(**arguments: Any) -> None:
            self.calls.append(arguments)

        namespace: dict[str, Any] = {"keep": keep}
        given = ", ".join(f"{n}={n}" for n in names)
        exec(f"def {hook}({', '.join(names)}):\n    keep({given})\n", namespace)
        setattr(self, hook, hookimpl(namespace[hook]))


def observe(hook: str, **settings: Any) -> list[dict[str, Any]]:
    """Run four requests that evict each other; what an observer of ``hook`` was told."""
    plugin = Told(hook)
    engine, _ = make_engine(P=16, plugins=[plugin], **settings)
    play(engine, [make_request(str(i), 8, 24) for i in range(4)])
    assert engine.scheduler.num_observer_faults == 0
    return plugin.calls


@fires("admission")
def test_admission_decides_who_is_offered_room() -> None:
    class Backwards(Policy):
        @hookimpl
        def admission(self, step: Step) -> Any:
            yield step.running
            yield list(reversed(step.waiting))

    engine, tape = make_engine(Backwards())
    play(engine, [make_request(i, 4, 2) for i in "abc"])
    assert tape.steps[0].batch == [("c", 4), ("b", 4), ("a", 4)]


@fires("chunking")
def test_chunking_decides_how_many_tokens_run() -> None:
    class Threes(PrefillFirst):
        @hookimpl
        def chunking(self, step: Step, request: Request) -> int:
            return min(3, request.num_pending, step.budget)

    engine, tape = make_engine(Threes())
    play(engine, [make_request("a", 8, 1)])
    assert [s.batch for s in tape.steps] == [[("a", 3)], [("a", 3)], [("a", 2)]]


@fires("reservation")
def test_reservation_decides_how_many_blocks_are_taken() -> None:
    class Reserves(PrefillFirst):
        num_tokens = 0

        @hookimpl
        def reservation(self, step: Step, request: Request) -> int:
            return self.num_tokens

    # 8 prompt tokens are two blocks, and more than prompt + max_tokens - 1 is cut to that: 13 tokens, four blocks.
    for num_tokens, num_blocks in ((0, 2), (9, 3), (13, 4), (14, 4), (10**9, 4)):
        policy = Reserves()
        policy.num_tokens = num_tokens
        engine, tape = make_engine(policy)
        engine.add_request(make_request("a", 8, 6))
        engine.step()
        assert 256 - tape.steps[0].free_blocks == num_blocks


@fires("preemption")
def test_preemption_decides_who_is_evicted() -> None:
    class Oldest(PrefillFirst):
        @hookimpl
        def preemption(self, step: Step, request: Request) -> Any:
            if request.is_waiting:
                return HOLD
            return step.evictable[0] if step.evictable else request

    engine, tape = make_engine(Oldest(), P=16)
    play(engine, [make_request(str(i), 8, 24) for i in range(4)])
    assert tape.preemptions()[0] == (9, "1")  # "0" asks, and is the only one that is older
    assert len(tape.reasons) == 4


@fires("arrival")
def test_arrival_decides_who_is_taken() -> None:
    class Short(Policy):
        @hookimpl
        def arrival(self, request: Request) -> bool | Refusal:
            return True if request.num_prompt_tokens < 8 else Refusal("too long")

    engine, tape = make_engine(Short())
    with pytest.raises(RefusedRequestError, match="too long"):
        engine.add_request(make_request("long", 8, 2))
    play(engine, [make_request("short", 7, 2)])
    assert tape.reasons == {"short": "length"}


@fires("predict_output")
def test_predict_output_decides_what_is_expected_of_a_request() -> None:
    class Tens(Policy):
        @hookimpl
        def predict_output(self, request: Request) -> int | None:
            return 10 if request.request_id != "c" else None

    engine, tape = make_engine(Tens())
    play(engine, [make_request("a", 4, 2), make_request("b", 4, 2, predicted_output_tokens=3), make_request("c", 4, 2)])
    assert [tape.requests[i].predicted_output_tokens for i in "abc"] == [10, 3, None]


@fires("routing")
def test_routing_decides_which_replica_takes_a_request() -> None:
    class Last(Router):
        @hookimpl
        def routing(self, fleet: FleetView, request: Request) -> int:
            return len(fleet) - 1

    with make_fleet(3, Last()) as fleet:
        assert drive(fleet, [make_request(i, 4, 2) for i in "ab"]) == [2, 2]


@fires("step_started")
def test_step_started_fires_before_each_step() -> None:
    calls = observe("step_started")
    assert [c["step"].index for c in calls] == list(range(39))


@fires("step_finished")
def test_step_finished_fires_after_each_step() -> None:
    calls = observe("step_finished")
    assert [c["step"].index for c in calls] == list(range(39))
    assert all(isinstance(c["result"], StepResult) and c["result"].elapsed_ns == 1_000_000 for c in calls)


@fires("steps_leapt")
def test_steps_leapt_fires_where_a_simulator_takes_steps_at_once() -> None:
    plugin = Told("steps_leapt")
    config = EngineConfig.parse({"backend": "sim:llama-3.1-8b@h100", "policy": "vllm_v1"})
    with Engine(config, plugins=[plugin]) as engine:
        engine.add_request(make_request("a", 8, 24))
        engine.advance()
        engine.advance()
        assert (engine.leap(max_steps=5), engine.leap(max_steps=2)) == (5, 2)
    assert [(c["leap"].first_index, len(c["leap"])) for c in plugin.calls] == [(2, 5), (7, 2)]


@fires("request_arrived")
def test_request_arrived_fires_once_a_request() -> None:
    assert [c["request"].request_id for c in observe("request_arrived")] == ["0", "1", "2", "3"]


@fires("request_admitted")
def test_request_admitted_fires_at_each_admission() -> None:
    calls = [(c["step"].index, c["request"].request_id) for c in observe("request_admitted")]
    assert calls == [(0, "0"), (0, "1"), (0, "2"), (0, "3"), (24, "2"), (24, "3")]


@fires("request_preempted")
def test_request_preempted_fires_at_each_eviction() -> None:
    calls = observe("request_preempted")
    assert [(c["step"].index, c["victim"].request_id, c["request"].request_id) for c in calls] == [
        (9, "3", "0"),
        (13, "2", "1"),
    ]
    retried = observe("request_preempted", settings={"fail_at": [1]}, on_backend_error="retry")
    assert [c["victim"].request_id for c in retried if c["request"] is None] == ["3", "2", "1", "0"]


@fires("request_finished")
def test_request_finished_fires_once_a_request() -> None:
    calls = [(c["request"].request_id, c["reason"]) for c in observe("request_finished")]
    assert calls == [("0", "length"), ("1", "length"), ("2", "length"), ("3", "length")]


@fires("policy_attached")
def test_policy_attached_fires_on_a_fresh_engine_and_at_each_swap() -> None:
    seen: list[int] = []

    class Attached(Policy):
        @hookimpl
        def policy_attached(self, step: Step) -> None:
            seen.append(len(step.waiting))

    engine, _ = make_engine(Attached())
    engine.add_request(make_request("a", 4, 2))
    engine.swap_policy(Attached())
    assert seen == [0, 1]


def _registered(hook: str, value: Any) -> Any:
    return load_plugins(points=[FakePoint("acme", module_of(**{hook: hookimpl(lambda: {"mine": value})}))])


@fires("register_policies")
def test_register_policies_fires_when_plugins_are_loaded() -> None:
    assert _registered("register_policies", Policy).policies == {"mine": Policy}


@fires("register_backends")
def test_register_backends_fires_when_plugins_are_loaded() -> None:
    entry = fake_entry()
    assert _registered("register_backends", entry).backend("mine") is entry


@fires("register_predictors")
def test_register_predictors_fires_when_plugins_are_loaded() -> None:
    class Mine(Predictor):
        pass

    assert _registered("register_predictors", Mine).predictor("mine") is Mine


@fires("register_routers")
def test_register_routers_fires_when_plugins_are_loaded() -> None:
    class Mine(Router):
        pass

    assert _registered("register_routers", Mine).router("mine") is Mine


@fires("register_workloads")
def test_register_workloads_fires_when_plugins_are_loaded() -> None:
    assert _registered("register_workloads", len).workloads == {"mine": len}


@fires("register_metrics")
def test_register_metrics_fires_when_plugins_are_loaded() -> None:
    metric = _registered("register_metrics", len).metrics["mine"]
    assert isinstance(metric, RunMetric)
    assert metric.function is len


def test_every_hook_has_its_test() -> None:
    assert set(FIRES) == set(HOOKS)
    assert all(test.__name__.startswith(f"test_{hook}_") for hook, test in FIRES.items())


def test_the_list_of_hooks_is_the_specification() -> None:
    specified = {n for n, f in vars(hookspecs).items() if getattr(f, "batchwright_spec", None) is not None}
    assert specified == set(HOOKS)
    kinds = (DECISIONS, ROUTING, OBSERVERS, REGISTRATIONS)
    assert len(HOOKS) == sum(map(len, kinds)) == len(set(HOOKS))
    for hook in HOOKS:
        function = getattr(hookspecs, hook)
        assert "Since 0." in " ".join((function.__doc__ or "").split()), f"{hook}: since when?"
        assert function.batchwright_spec["firstresult"] == (hook in (*DECISIONS, *ROUTING))


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_with_its_signature(hook: str) -> None:
    text = DOCS.read_text(encoding="utf-8")
    section = re.search(rf"^### {hook}$(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, f"{DOCS.name} has no section '### {hook}'"
    function = getattr(hookspecs, hook)
    parameters = ", ".join(f"{p.name}: {p.annotation}" for p in inspect.signature(function).parameters.values())
    signature = f"def {hook}({parameters}) -> {inspect.signature(function).return_annotation}"
    assert signature in section.group(1), f"the section of {hook} does not show its signature: {signature}"
    assert "Since" in section.group(1)
