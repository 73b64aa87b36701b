"""Ctrl-C may come in any plugin: it reaches the caller, and the engine can go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batchwright import hookimpl
from batchwright.hookspecs import OBSERVERS
from toolbox import check_empty, check_whole, expected_of, make_engine, make_request


def _interrupts(hook: str, at: int) -> Any:
    """A plugin whose hook is interrupted in one call."""
    num_calls = 0

    def interrupted(self: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == at:
            raise KeyboardInterrupt

    return type("Interrupts", (), {"name": "interrupts", hook: hookimpl(interrupted)})()


def _attempt(action: Callable[[], Any]) -> int:
    try:
        action()
    except KeyboardInterrupt:
        return 1
    return 0


@pytest.mark.parametrize("visible", ["computed", "scheduled"])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("hook", [h for h in OBSERVERS if h != "policy_attached"])
def test_an_interrupted_observer(hook: str, at: int, visible: str) -> None:
    engine, tape = make_engine(P=16, plugins=[_interrupts(hook, at)], prefix_cache={"visible": visible})
    interrupts = 0
    for i in range(4):
        interrupts += _attempt(lambda i=i: engine.add_request(make_request(str(i), 8, 24)))  # type: ignore[misc]
    for _ in range(80):
        interrupts += _attempt(engine.step)
        check_whole(engine.scheduler)
        if not engine.has_unfinished():
            break
    assert interrupts == 1
    check_empty(engine.scheduler)
    requests = list(tape.requests.values())
    assert len(requests) >= 3  # one may have been interrupted before the tape was told
    for request in requests:
        assert request.output_token_ids == expected_of(request) and request.num_output_tokens == 24


@pytest.mark.parametrize("hook", ["admission", "chunking", "reservation", "preemption"])
@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupted_decision(hook: str, at: int) -> None:
    num_calls = 0

    def interrupted(self: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == at:
            raise KeyboardInterrupt

    plugin = type("Interrupts", (), {"name": "interrupts", hook: hookimpl(interrupted)})()
    engine, tape = make_engine(P=16, plugins=[plugin])
    for i in range(4):
        engine.add_request(make_request(str(i), 8, 24))
    interrupts = 0
    for _ in range(80):
        interrupts += _attempt(engine.step)
        check_whole(engine.scheduler)
    assert interrupts == 1 and tape.reasons == {str(i): "length" for i in range(4)}
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)
