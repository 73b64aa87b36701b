"""Wrappers of hooks: what they change, in which order, and whose their faults are."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright import Policy, PolicyError, Request, Step, hookimpl
from plugins.wrapping import Filters, Reverses
from toolbox import make_engine, make_request, play


@pytest.mark.parametrize("policy", ["prefill_first", "vllm_v1", "stall_free", Policy])
def test_a_wrapper_filters(policy: Any) -> None:
    engine, tape = make_engine(policy() if isinstance(policy, type) else policy, plugins=[Filters("slow", until=3)])
    play(engine, [make_request("a", 4, 9), make_request("b", 4, 2, client_id="slow")])
    assert tape.token_steps("a")[0] == 0
    assert tape.token_steps("b")[0] == 3


def test_a_wrapper_reorders() -> None:
    engine, tape = make_engine(plugins=[Reverses()])
    play(engine, [make_request(i, 4, 2) for i in "abc"])
    assert [i for i, _ in tape.steps[0].batch] == ["c", "b", "a"]


def test_wrappers_wrap_each_other() -> None:
    engine, tape = make_engine(plugins=[Reverses(), Filters("slow", until=10)])
    play(
        engine,
        [make_request(i, 4, 2, client_id="slow" if i == "b" else None) for i in "abc"] + [make_request("z", 4, 12)],
    )
    assert [i for i, _ in tape.steps[0].batch] == ["z", "c", "a"]
    assert tape.token_steps("b")[0] == 10


def test_an_old_style_wrapper_works_too() -> None:
    seen: list[Any] = []

    class Old:
        name = "old"

        @hookimpl(hookwrapper=True)
        def chunking(self, step: Step, request: Request) -> Any:
            outcome = yield
            seen.append(outcome.get_result())
            outcome.force_result(min(3, outcome.get_result()))

    engine, tape = make_engine(plugins=[Old()])
    play(engine, [make_request("a", 8, 1)])
    assert [s.batch for s in tape.steps] == [[("a", 3)], [("a", 3)], [("a", 2)]]
    assert seen == [8, 5, 2]


def test_a_fault_of_a_wrapper_names_it() -> None:
    class Breaks:
        name = "breaks"

        @hookimpl(wrapper=True)
        def admission(self, step: Step) -> Any:
            yield
            raise ValueError("no idea")

    engine, _ = make_engine(plugins=[Breaks()])
    engine.add_request(make_request("a", 4, 2))
    with pytest.raises(PolicyError, match="raised ValueError: no idea") as caught:
        engine.step()
    assert "breaks" in caught.value.plugin
