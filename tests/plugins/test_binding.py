"""How hooks become what the scheduler calls: directly, in pluggy's order, anew where a plugin comes."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright import PluginError, Request, Scheduler, Step, hookimpl
from batchwright.plugins import Plugins, load_plugins
from batchwright.resolve import resolve_policy
from faulty import PrefillFirst
from toolbox import drain, make_engine, make_request, play


def _bound(engine: Any) -> Any:
    return engine.scheduler._hooks


def test_a_single_implementation_is_called_directly() -> None:
    policy = PrefillFirst()
    engine, _ = make_engine(policy)
    hooks = _bound(engine)
    for hook in ("admission", "chunking", "preemption"):
        method = getattr(hooks, hook)
        assert method == getattr(policy, hook) and method.__self__ is policy
    assert hooks.reservation is None and hooks.arrival is None  # the core answers
    assert hooks.who("chunking") == "prefill_first"


def test_without_a_word_it_is_the_default_policy() -> None:
    assert resolve_policy(None).name == "prefill_first"


def test_observers_are_called_directly_too() -> None:
    class Observer:
        name = "observer"

        @hookimpl
        def request_admitted(self, step: Step, request: Request) -> None:
            """Takes both."""

    observer = Observer()
    engine, _ = make_engine(plugins=[observer])
    assert any(call == observer.request_admitted for call, *_ in _bound(engine).request_admitted)


class Says:
    """A plugin that answers ``chunking`` as told, and writes down that it was asked."""

    def __init__(self, name: str, answer: int | None, asked: list[str]) -> None:
        self.name = name
        self._answer = answer
        self._asked = asked

    @hookimpl
    def chunking(self, request: Request) -> int | None:
        self._asked.append(self.name)
        return None if self._answer is None else min(self._answer, request.num_pending)


def test_several_are_asked_in_pluggys_order_until_one_answers() -> None:
    asked: list[str] = []
    plugins = [Says("one", 2, asked), Says("two", None, asked), Says("three", None, asked)]
    engine, tape = make_engine(plugins=plugins)
    engine.add_request(make_request("a", 9, 1))
    engine.step()
    assert asked == ["three", "two", "one"]  # registered last, asked first; the policy is never asked
    assert tape.steps[0].batch == [("a", 2)]
    assert _bound(engine).who("chunking") == "one"


def test_tryfirst_and_trylast() -> None:
    asked: list[str] = []

    class Early(Says):
        @hookimpl(tryfirst=True)
        def chunking(self, request: Request) -> int | None:
            return super().chunking(request)

    class Late(Says):
        @hookimpl(trylast=True)
        def chunking(self, request: Request) -> int | None:
            return super().chunking(request)

    engine, _ = make_engine(plugins=[Early("early", None, asked), Says("plain", None, asked), Late("late", 1, asked)])
    engine.add_request(make_request("a", 9, 1))
    engine.step()
    assert asked == ["early", "plain"]  # then the policy answers, and "late" is not asked


def test_none_falls_through_to_the_policy_and_then_to_the_core() -> None:
    asked: list[str] = []

    class Declines(PrefillFirst):
        @hookimpl
        def chunking(self, step: Step, request: Request) -> int | None:
            asked.append("policy")
            return None

        @hookimpl
        def admission(self, step: Step) -> Any:
            return None

        @hookimpl
        def preemption(self, step: Step, request: Request) -> Any:
            return None

        @hookimpl
        def reservation(self, step: Step, request: Request) -> Any:
            return None

        @hookimpl
        def arrival(self, request: Request) -> Any:
            return None

    engine, tape = make_engine(Declines(), P=16, plugins=[Says("plugin", None, asked)])
    play(engine, [make_request(str(i), 8, 24) for i in range(4)])
    assert asked[:2] == ["plugin", "policy"]
    assert tape.preemptions() == [(9, "3"), (13, "2")]  # as prefill_first
    assert len(tape.reasons) == 4


def test_each_engine_has_its_own_manager() -> None:
    log: list[tuple[str, str]] = []

    class Observer:
        name = "observer"

        @hookimpl
        def step_started(self, step: Step) -> None:
            log.append(("observer", str(step.index)))

    first, _ = make_engine(plugins=[Observer()])
    second, _ = make_engine("stall_free")
    for engine in (first, second):
        engine.add_request(make_request("a", 4, 3))
        drain(engine)
    assert len(log) == 3
    assert _bound(first)._manager is not _bound(second)._manager
    assert _bound(first).admission.__self__ is not _bound(second).admission.__self__


def test_one_plugin_object_may_serve_two_engines() -> None:
    class Observer:
        name = "observer"
        num_steps = 0

        @hookimpl
        def step_started(self) -> None:
            self.num_steps += 1

    observer = Observer()
    for policy in ("prefill_first", "vllm_v1"):
        engine, _ = make_engine(policy, plugins=[observer])
        play(engine, [make_request("a", 4, 3)])
    assert observer.num_steps == 6


def test_hooks_are_bound_anew_when_a_plugin_comes() -> None:
    asked: list[str] = []
    engine, tape = make_engine()
    engine.add_request(make_request("a", 9, 1))
    engine.scheduler.register(Says("late", 2, asked))
    drain(engine)
    assert tape.steps[0].batch == [("a", 2)] and asked


def test_the_same_object_twice() -> None:
    engine, _ = make_engine()
    plugin = Says("one", None, [])
    engine.scheduler.register(plugin)
    with pytest.raises(PluginError, match="plugin 'other' is registered twice"):
        engine.scheduler.register(plugin, "other")


def test_a_plugin_with_the_name_of_the_policy() -> None:
    engine, _ = make_engine("stall_free")
    with pytest.raises(PluginError, match="a plugin and a policy are both named 'stall_free'"):
        engine.scheduler.register(Says("stall_free", None, []))


def test_a_plugin_given_to_an_engine_is_checked_as_well() -> None:
    class Misspelt:
        name = "misspelt"

        @hookimpl
        def step_start(self) -> None:
            """Not a hook."""

    with pytest.raises(PluginError, match=r"plugin 'misspelt' .*hook 'step_start'.*did you mean 'step_started'"):
        make_engine(plugins=[Misspelt()])


def test_a_scheduler_takes_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = load_plugins()
    assert isinstance(installed, Plugins)
    scheduler = Scheduler({"use": "stall_free", "chunk_size": 4}, num_blocks=8, block_size=4)
    assert scheduler.policy.name == "stall_free"
