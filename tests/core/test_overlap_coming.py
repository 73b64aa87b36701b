"""Overlap while requests come and go: aborts, ids, closing, other policies, streams."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from batchwright import AsyncEngine, InvalidRequestError, Request, RequestOutput
from core.overlapping import Logged, overlapped, stopping
from fake_backend import expected_tokens
from toolbox import check_empty, check_whole, drain, expected_of, make_engine, make_request


def test_an_abort_between_two_calls_drops_the_token_on_its_way() -> None:
    engine, tape = overlapped()
    for name in "ab":
        engine.add_request(make_request(name, 5, 6))
    engine.step()
    engine.step()
    told: list[RequestOutput] = []
    engine.on_abort = told.append
    output = engine.abort("a")
    assert told == [output] and output.outputs[0].token_ids == expected_tokens(
        tape.requests["a"].prompt_token_ids[:], tape.requests["a"]._seed, 1
    )
    assert tape.requests["a"].num_output_tokens == 1
    check_whole(engine.scheduler)
    assert [o.request_id for o in engine.step()] == ["b"]
    drain(engine)
    assert tape.requests["b"].output_token_ids == expected_of(tape.requests["b"])


def test_an_id_is_in_use_until_its_last_output_is_told() -> None:
    engine, _ = overlapped()
    engine.add_request(make_request("a", 5, 1))
    engine.step()
    assert not engine.scheduler.has_unfinished() and engine.has_unfinished()
    with pytest.raises(InvalidRequestError, match="'a' is in use: the last output of that request is still to come"):
        engine.add_request(make_request("a", 5, 1))
    assert engine.step()[0].finished
    engine.add_request(make_request("a", 5, 1))
    drain(engine)


def test_collect_takes_what_is_under_way_and_schedules_nothing() -> None:
    log: list[str] = []
    engine, _ = overlapped(log)
    assert engine.collect() == []
    engine.add_request(make_request("a", 5, 3))
    engine.step()
    log.clear()
    assert [len(o.new_token_ids) for o in engine.collect()] == [1]
    assert log == ["collect"] and engine.collect() == []
    assert [len(o.new_token_ids) for o in (*engine.step(), *engine.step(), *engine.step())] == [1, 1]


@pytest.mark.parametrize("lose_at", [(), (1,)])
def test_closing_waits_for_the_step_under_way(lose_at: Sequence[int]) -> None:
    log: list[str] = []
    engine, tape = overlapped(log, lose_at=lose_at)
    engine.add_request(make_request("a", 5, 9))
    engine.add_request(make_request("b", 5, 2))
    engine.step()
    engine.step()
    log.clear()
    engine.close()
    assert log[0] == "collect" and engine.backend.num_closed == 1  # type: ignore[attr-defined]
    assert tape.reasons["a"] == ("error" if lose_at else "abort")
    check_empty(engine.scheduler)


def test_a_policy_is_swapped_while_a_step_is_under_way() -> None:
    engine, tape = overlapped()
    for i in range(5):
        engine.add_request(make_request(str(i), 7, 6))
    for name in ("vtc", "stall_free", "mlfq"):
        engine.step()
        engine.swap_policy(name)
        check_whole(engine.scheduler)
    drain(engine)
    assert all(r.output_token_ids == expected_of(r) for r in tape.requests.values())


def test_streams_of_many_callers() -> None:
    async def body() -> None:
        engine, tape = make_engine("stall_free", T=16, backend=Logged([], num_blocks=40), overlap=True)
        async with AsyncEngine(engine) as serving:
            requests = [stopping(str(i), 5 + i % 7, after=1 + i % 3) for i in range(20)]
            requests += [make_request(str(i), 5 + i % 7, 3 + i % 9) for i in range(20, 40)]

            async def stream(request: Request) -> list[RequestOutput]:
                return [o async for o in serving.generate(request)]

            streams = await asyncio.gather(*map(stream, requests))
            async for _ in serving.generate(make_request("gone", 5, 50)):
                break
        for request, outputs in zip(requests, streams, strict=True):
            assert [t for o in outputs for t in o.new_token_ids] == expected_of(request)
            assert [o.finished for o in outputs] == [False] * (len(outputs) - 1) + [True]
        assert tape.reasons["gone"] == "abort"
        check_empty(engine.scheduler)

    asyncio.run(asyncio.wait_for(body(), 10))
