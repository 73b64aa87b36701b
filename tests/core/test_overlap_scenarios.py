"""Overlap, case by case: what happens when, and what becomes of late rows."""

from __future__ import annotations

import pytest

from batchwright import BatchwrightError, ConfigError, Engine, EngineConfig, Scheduler, StepResult
from core.overlapping import overlapped, run_all, stopping
from fake_backend import FakeTokenizer, say
from toolbox import check_empty, check_whole, drain, expected_of, make_engine, make_request


def test_a_step_is_scheduled_before_the_last_one_is_collected() -> None:
    log: list[str] = []
    engine, _ = overlapped(log)
    engine.add_request(make_request("a", 5, 2))
    engine.add_request(make_request("b", 5, 3))
    calls = []
    while engine.has_unfinished():
        calls.append([(o.request_id, o.finished) for o in engine.step()])
        log.append("--")
    assert log == [
        *["start 0", "submit 0: a b", "finish 0", "--"],
        # By its length a ends with step 1, whatever its token is, so step 2 is scheduled without it.
        *["start 1", "collect", "submit 1: a b", "a: length", "finish 1", "--"],
        *["start 2", "collect", "submit 2: b", "b: length", "finish 2", "--"],
        *["collect", "--"],
    ]
    assert calls == [[], [("a", False), ("b", False)], [("a", True), ("b", False)], [("b", True)]]
    check_empty(engine.scheduler)


def test_a_late_row_is_dropped_with_all_it_was_given() -> None:
    log: list[str] = []
    engine, tape = overlapped(log, num_blocks=16)
    engine.add_request(stopping("a", 8, after=2))  # its row of step 2 needs a third block for its tenth token
    engine.add_request(make_request("b", 8, 5))
    for _ in range(2):
        engine.step()
    log.clear()
    before = engine.scheduler.blocks.num_free
    outputs = engine.step()
    assert log == ["start 2", "collect", "a: stop", "submit 2: b", "finish 2"]
    assert [(o.request_id, o.finished, o.outputs[0].finish_reason) for o in outputs] == [
        ("a", True, "stop"),
        ("b", False, None),
    ]
    assert outputs[0].outputs[0].token_ids == expected_of(tape.requests["a"]) and len(outputs[0].new_token_ids) == 1
    step = engine.scheduler.step
    assert step.batch == [tape.requests["b"]] and (step.num_decodes, step.num_prefill_tokens) == (1, 0)
    assert step.num_residents == 1
    assert engine.scheduler.blocks.num_free == before + 3  # the third one was given back too
    check_whole(engine.scheduler)
    drain(engine)
    check_empty(engine.scheduler)
    assert tape.steps[1].finished == [] and tape.steps[2].batch == [("b", 1)]


def test_its_tokens_go_back_to_the_budget() -> None:
    budgets = []
    engine, _ = overlapped(policy="stall_free", T=16, before=lambda batch: budgets.append(engine.scheduler.step.budget))
    engine.add_request(stopping("a", 4, after=2))
    engine.add_request(make_request("b", 4, 6))
    while engine.has_unfinished():
        engine.step()
    assert budgets == [8, 14, 15, 15, 15, 15]


def test_all_rows_were_late() -> None:
    log: list[str] = []
    engine, tape = overlapped(log)
    for name in "ab":
        engine.add_request(stopping(name, 8, after=1))
    engine.add_request(make_request("c", 60, 2))  # for its prompt no budget is left in the first step
    engine.step()
    del log[:]
    engine.step()
    assert log == ["start 1", "collect", "a: stop", "b: stop", "submit 1: c", "finish 1"]
    drain(engine)
    engine.add_request(stopping("d", 3, after=1))
    streams = run_all(engine)
    assert streams["d"][-1].outputs[0].finish_reason == "stop"
    assert [s.batch for s in tape.steps if not s.batch] == [[]]  # d was alone in its last step, and late
    check_empty(engine.scheduler)


def test_a_stop_string_ends_late_as_well() -> None:
    engine, _ = overlapped(tokenizer=FakeTokenizer(), script={"a": say("one END more"), "b": say("to the end")})
    engine.add_request(make_request("a", 4, 12, stop=["END"]))
    engine.add_request(make_request("b", 4, 10))
    streams = run_all(engine)
    assert streams["a"][-1].outputs[0].text == "one " and streams["a"][-1].outputs[0].finish_reason == "stop"
    assert [len(streams[i][-1].outputs[0].token_ids) for i in "ab"] == [7, 10]
    assert "".join(o.new_text for o in streams["b"]) == "to the end"


@pytest.mark.parametrize("end", ["stop_token_ids", "stop"])
def test_a_stop_with_the_last_token_is_a_stop(end: str) -> None:
    """Observers were told of its length, since the token was not known; its caller is told what it was."""
    engine, tape = overlapped(tokenizer=FakeTokenizer(), script={"a": say("abc")})
    engine.add_request(make_request("a", 4, 3, **{end: [ord("c")] if end == "stop_token_ids" else "c"}))
    (*_, last) = run_all(engine)["a"]
    assert last.outputs[0].finish_reason == "stop" == tape.requests["a"].finish_reason
    assert last.outputs[0].text == "ab" and tape.reasons == {"a": "length"}


# Where it is not ---------------------------------------------------------------------------------------------------


def test_a_virtual_clock_has_nothing_to_hide() -> None:
    with pytest.raises(ConfigError, match="fake has a virtual clock, on which the host's work takes no time"):
        make_engine(overlap=True)
    with pytest.raises(ConfigError, match="leave overlap off"):
        Engine(EngineConfig.parse({"overlap": True, "backend": "sim:llama-3.1-8b@h100"}))


def test_a_scheduler_says_what_it_was_not_made_for() -> None:
    scheduler = Scheduler(num_blocks=8, block_size=4)
    scheduler.add(make_request("a", 5, 3))
    batch = scheduler.schedule()
    with pytest.raises(BatchwrightError, match="of a scheduler with overlap"):
        scheduler.expect(batch, lambda: StepResult([5], 1), lambda: 0)
    with pytest.raises(BatchwrightError, match="of a batch that was expected"):
        scheduler.settle()
