"""Scenarios A1 to A3: abort at any moment, policies that break a rule, backends that raise."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright import HOLD, PolicyError, Request, Step, UnknownRequestError, hookimpl
from faulty import FAULTS, Culprit, PrefillFirst
from toolbox import (
    CHUNKING,
    EVICTING,
    SHIPPED,
    Tape,
    check_whole,
    drain,
    expected_of,
    make_engine,
    make_request,
    play,
    prompt_of,
)

shipped = pytest.mark.parametrize("policy", SHIPPED)
chunking = pytest.mark.parametrize("policy", CHUNKING)
evicting = pytest.mark.parametrize("policy", EVICTING)


def _all_whole(tape: Tape) -> None:
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


@shipped
def test_a1_abort_of_a_waiting_one(policy: str) -> None:
    engine, tape = make_engine(policy)
    engine.add_request(make_request("a", 9, 4))
    output = engine.abort("a")
    assert (output.finished, output.outputs[0].finish_reason, output.outputs[0].token_ids) == (True, "abort", [])
    assert tape.reasons == {"a": "abort"}
    assert not engine.has_unfinished() and engine.step() == []


@chunking
def test_a1_abort_of_a_half_prefilled_one(policy: str) -> None:
    engine, tape = make_engine(policy, T=8)
    engine.add_request(make_request("a", 30, 4))
    engine.add_request(make_request("b", 30, 4))
    engine.step()
    assert tape.requests["a"].is_prefilling and tape.requests["a"].block_table
    engine.abort("a")
    check_whole(engine.scheduler)
    assert tape.requests["a"].block_table == [] and engine.scheduler.blocks.num_free == 256
    drain(engine)
    assert tape.reasons == {"a": "abort", "b": "length"}
    _all_whole(tape)


@evicting  # others hold the blocks of the whole answer
def test_a1_abort_of_a_running_one_leaves_shared_blocks_to_others(policy: str) -> None:
    engine, tape = make_engine(policy)
    prompt = prompt_of("shared", 12)
    play(engine, [make_request("first", [*prompt, 1], 1)])
    engine.add_request(make_request("a", [*prompt, 2, 3], 20))
    engine.add_request(make_request("b", [*prompt, 4, 5], 20))
    engine.step()
    engine.step()
    a, b = tape.requests["a"], tape.requests["b"]
    assert a.block_table[:3] == b.block_table[:3]
    output = engine.abort("a")
    assert output.outputs[0].token_ids == expected_of(a) and len(expected_of(a)) == 2
    assert len(b.block_table) == 4 and engine.scheduler.blocks.num_free == 256 - 4
    check_whole(engine.scheduler)
    drain(engine)
    # What it computed stays reusable.
    play(engine, [make_request("c", [*prompt, 2, 3, *expected_of(a), 9], 2)])
    assert tape.requests["c"].num_cached == 12
    assert tape.reasons == {"first": "length", "a": "abort", "b": "length", "c": "length"}
    _all_whole(tape)


@evicting
def test_a1_abort_of_one_that_was_just_preempted(policy: str) -> None:
    engine, tape = make_engine(policy, P=16)
    for i in range(4):
        engine.add_request(make_request(str(i), 8, 24))
    while not tape.preemptions():
        engine.step()
    victim = tape.preemptions()[0][1]
    assert tape.requests[victim].is_waiting
    engine.abort(victim)
    check_whole(engine.scheduler)
    drain(engine)
    assert tape.reasons == {str(i): "abort" if str(i) == victim else "length" for i in range(4)}
    _all_whole(tape)


@shipped
def test_a1_abort_of_a_finished_or_unknown_one_or_twice(policy: str) -> None:
    engine, tape = make_engine(policy)
    play(engine, [make_request("done", 4, 2)])
    engine.add_request(make_request("a", 4, 9))
    engine.step()
    engine.abort("a")
    for unknown in ("done", "a", "never", ""):
        with pytest.raises(UnknownRequestError, match=f"unknown request '{unknown}'"):
            engine.abort(unknown)
    assert tape.reasons == {"done": "length", "a": "abort"}
    assert engine.scheduler.blocks.num_free == 256


@pytest.mark.parametrize("visible", ["computed", "scheduled"])
@shipped
def test_a1_abort_between_schedule_and_update(policy: str, visible: str) -> None:
    engine, tape = make_engine(policy, prefix_cache={"visible": visible})
    prompt = prompt_of("shared", 12)
    engine.add_request(make_request("a", [*prompt, 1], 5))
    engine.add_request(make_request("b", [*prompt, 2], 5))
    for number in range(3):
        batch = engine.scheduler.schedule()
        assert len(batch) == 2 if not number else 1
        result = engine.backend.execute(batch)
        if not number:
            engine.abort("a")
        engine.scheduler.update(batch, result.token_ids)
        check_whole(engine.scheduler)
    assert tape.requests["a"].num_output_tokens == 0
    drain(engine)
    assert tape.reasons == {"a": "abort", "b": "length"}
    _all_whole(tape)


def _a2_requests() -> list[Any]:
    # Two short ones that finish before blocks run out, and four that then evict each other.
    return [make_request(f"s{i}", 3, 2) for i in range(2)] + [make_request(str(i), 8, 24) for i in range(4)]


@pytest.mark.parametrize("name", FAULTS)
def test_a2_a_broken_rule_is_named_and_the_engine_goes_on(name: str) -> None:
    fault = FAULTS[name]
    policy = Culprit(fault)
    engine, tape = make_engine(policy, P=18, T=24)
    for request in _a2_requests():
        engine.add_request(request)
    errors = []
    for _ in range(400):
        if not engine.has_unfinished():
            break
        index = engine.scheduler._num_steps
        try:
            engine.step()
        except PolicyError as error:
            errors.append(error)
            assert (error.plugin, error.hook, error.step) == ("culprit", fault.hook, index)
            assert error.rule in (fault.rule, "raised") if not fault.says else error.rule == fault.rule
            assert fault.says in str(error)
            assert str(error).startswith(f"policy 'culprit', hook {fault.hook!r}, step {index}, rule {error.rule!r}: ")
            assert fault.value is None or fault.value(error.value), error.value
        check_whole(engine.scheduler)
    assert errors, "the fault was never met"
    assert len(tape.reasons) == 6 and set(tape.reasons.values()) == {"length"}
    _all_whole(tape)


@pytest.mark.parametrize("name", FAULTS)
def test_a2_the_default_policy_ends_the_step(name: str) -> None:
    policy = Culprit(FAULTS[name])
    engine, tape = make_engine(policy, P=18, T=24, on_policy_error="fallback")
    play(engine, _a2_requests(), max_steps=400)
    assert engine.scheduler.num_policy_faults == policy.num_broken > 0
    events = tape.events("policy_fault")
    assert len(events) == policy.num_broken
    assert all(e["plugin"] == "culprit" and e["hook"] == FAULTS[name].hook and e["error"] for e in events)
    assert set(tape.reasons.values()) == {"length"} and len(tape.reasons) == 6
    _all_whole(tape)


def test_a2_nothing_although_a_resident_could_run_says_the_usual_cause() -> None:
    policy = Culprit(FAULTS["admission yields nothing"], every=3)
    engine, _ = make_engine(policy)
    engine.add_request(make_request("a", 4, 4))
    with pytest.raises(PolicyError, match=r"1 waiting, 0 resident.*left out all that wait"):
        engine.step()
    engine.step()
    with pytest.raises(
        PolicyError, match=r"0 waiting, 1 resident.*your admission left out the residents, though they could run"
    ):
        engine.step()


class Stubborn(PrefillFirst):
    """The default policy, but it never evicts anybody."""

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Any:
        return HOLD


def test_a2_nothing_since_no_block_is_free_says_so() -> None:
    engine, _ = make_engine(Stubborn(), P=4)
    for i in range(2):
        engine.add_request(make_request(str(i), 7, 6))
    with pytest.raises(PolicyError, match="no block is free and your preemption evicted nobody"):
        drain(engine)


@shipped
@pytest.mark.parametrize("visible", ["computed", "scheduled"])
def test_a3_the_batch_fails_and_the_others_go_on(policy: str, visible: str) -> None:
    engine, tape = make_engine(
        policy, T=12, settings={"fail_at": [2]}, on_backend_error="fail", prefix_cache={"visible": visible}
    )
    for i in range(6):
        engine.add_request(make_request(str(i), 7, 4))
    for _ in range(2):
        engine.step()
    outputs = engine.step()
    failed = {o.request_id for o in outputs if o.outputs[0].finish_reason == "error"}
    assert failed == {i for i, _ in tape.steps[-1].batch} and 0 < len(failed) < 6
    assert all("RuntimeError: execution 2 broke" in (o.error or "") for o in outputs)
    assert all(not tape.requests[i].block_table for i in failed)
    check_whole(engine.scheduler)
    assert len(tape.events("backend_fault")) == 1
    drain(engine)
    assert {i for i, reason in tape.reasons.items() if reason == "error"} == failed
    assert {i for i, reason in tape.reasons.items() if reason == "length"} == set("012345") - failed
    _all_whole(tape)


@chunking
@pytest.mark.parametrize("visible", ["computed", "scheduled"])
def test_a3_the_batch_is_retried_and_no_token_changes(policy: str, visible: str) -> None:
    engine, tape = make_engine(
        policy,
        T=12,
        settings={"fail_at": [0, 2, 3, 7, 9, 10, 11]},
        on_backend_error="retry",
        prefix_cache={"visible": visible},
    )
    play(engine, [make_request(str(i), [*prompt_of("same", 7), i], 6) for i in range(6)])
    assert tape.reasons == {str(i): "length" for i in range(6)}
    assert len(tape.events("backend_fault")) == 7
    assert all(e["retried"] for e in tape.events("backend_fault"))
    _all_whole(tape)


def test_a3_a_backend_that_never_works_fails_its_requests_in_the_end() -> None:
    engine, tape = make_engine(settings={"fail_at": lambda batch: True}, on_backend_error="retry")
    play(engine, [make_request("a", 7, 4)], max_steps=20)
    assert tape.reasons == {"a": "error"}
    assert [e["retried"] for e in tape.events("backend_fault")] == [True, True, True, False]


@chunking
@pytest.mark.parametrize("visible", ["computed", "scheduled"])
@pytest.mark.parametrize("budget", [8, 64])
def test_a3_one_poisoned_row_does_not_take_the_others_along(policy: str, visible: str, budget: int) -> None:
    engine, tape = make_engine(policy, T=budget, settings={"poison": ["bad"]}, prefix_cache={"visible": visible})
    shared = prompt_of("shared", 12)
    bad, good, other = (make_request(i, [*shared, n], 5) for n, i in enumerate(("bad", "good", "other")))
    play(engine, {0: [bad, other], 1: [good]})
    assert tape.reasons["bad"] == "error" and bad.error == "logits are not finite"
    assert bad.num_output_tokens == 0 and not bad.block_table
    assert tape.reasons["good"] == tape.reasons["other"] == "length"
    # What a poisoned row wrote is not given to anybody who comes later.
    play(engine, [make_request("later", [*shared, 0], 5)])
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


@chunking
def test_a3_nor_does_what_it_wrote_stay_in_the_cache(policy: str) -> None:
    engine, tape = make_engine(policy, T=8, settings={"poison": ["bad"]}, prefix_cache={"visible": "scheduled"})
    shared = prompt_of("shared", 12)
    play(engine, [make_request("bad", [*shared, 1], 5)])
    play(engine, [make_request("later", [*shared, 1], 5)])
    assert tape.requests["later"].num_cached == 0
