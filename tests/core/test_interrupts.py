"""Ctrl-C may come in any plugin: it reaches the caller, and the engine can go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from batchwright import hookimpl
from batchwright.hookspecs import OBSERVERS
from fake_backend import HandClock
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


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("visible", ["computed", "scheduled"])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("hook", [h for h in OBSERVERS if h not in ("policy_attached", "steps_leapt")])
def test_an_interrupted_observer(hook: str, at: int, visible: str, overlap: bool) -> None:
    settings = {"clock": HandClock()}
    cache = {"visible": visible}
    engine, tape = make_engine(
        P=16, plugins=[_interrupts(hook, at)], settings=settings, overlap=overlap, prefix_cache=cache
    )
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


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("hook", ["admission", "chunking", "reservation", "preemption"])
@pytest.mark.parametrize("at", [1, 2])
def test_an_interrupted_decision(hook: str, at: int, overlap: bool) -> None:
    num_calls = 0

    def interrupted(self: Any) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == at:
            raise KeyboardInterrupt

    plugin = type("Interrupts", (), {"name": "interrupts", hook: hookimpl(interrupted)})()
    engine, tape = make_engine(P=16, plugins=[plugin], settings={"clock": HandClock()}, overlap=overlap)
    for i in range(4):
        engine.add_request(make_request(str(i), 8, 24))
    interrupts = 0
    for _ in range(80):
        interrupts += _attempt(engine.step)
        check_whole(engine.scheduler)
    assert interrupts == 1 and tape.reasons == {str(i): "length" for i in range(4)}
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("at", [0, 1, 5, 17])
@pytest.mark.parametrize("call", ["submit", "collect"])
def test_an_interrupted_backend(call: str, at: int, overlap: bool) -> None:
    """The step that was interrupted is computed again, with whom it ended; the others go on."""
    engine, tape = make_engine(P=16, settings={"clock": HandClock()}, overlap=overlap)
    usual, num_calls = getattr(engine.backend, call), 0

    def interrupted(argument: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == at + 1:
            raise KeyboardInterrupt
        return usual(argument)

    setattr(engine.backend, call, interrupted)
    for i in range(4):
        engine.add_request(make_request(str(i), 8, 1 + 6 * i))
    interrupts = 0
    while engine.has_unfinished():
        interrupts += _attempt(engine.step)
        check_whole(engine.scheduler)
    check_empty(engine.scheduler)
    assert interrupts == 1 and tape.reasons == {str(i): "length" for i in range(4)}
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request) and request.num_output_tokens == request.max_tokens
    # What was scheduled ahead of the step is computed again with it.
    assert 1 <= len(tape.events("backend_fault")) <= (2 if overlap and call == "collect" else 1)
