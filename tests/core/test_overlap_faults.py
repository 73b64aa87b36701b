"""Overlap under faults of the backend and of the policy."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright import PolicyError, StepResult
from core.overlapping import Logged, overlapped, run_all
from faulty import FAULTS, Culprit
from toolbox import check_empty, expected_of, make_engine, make_request, prompt_of


@pytest.mark.parametrize("visible", ["computed", "scheduled"])
def test_what_a_failed_row_wrote_is_not_given_to_the_step_ahead(visible: str) -> None:
    """The prompt of b begins with that of a, whose blocks are shared when b is scheduled; then a turns out to fail."""
    log: list[str] = []
    engine, tape = overlapped(log, poison=["a"], infects=True, T=12, prefix_cache={"visible": visible})
    prompt = prompt_of("a", 12)
    engine.add_request(make_request("a", prompt, 5))
    engine.add_request(make_request("b", [*prompt, 7], 5))
    engine.step()
    log.clear()
    (output,) = engine.step()
    assert (output.request_id, output.error, output.new_token_ids) == ("a", "logits are not finite", [])
    assert log == ["start 1", "collect", "a: error", "finish 1"]  # b waits again: nothing is submitted
    assert tape.admitted == [(0, "a"), (1, "b")] and tape.requests["b"].num_preemptions == 1
    streams = run_all(engine)
    assert streams["b"][-1].outputs[0].token_ids == expected_of(tape.requests["b"])
    assert tape.admitted[2:] == [(2, "b")] and tape.requests["b"].num_cached == 0
    assert not engine.scheduler.num_observer_faults
    check_empty(engine.scheduler)


@pytest.mark.parametrize("retry", [False, True])
@pytest.mark.parametrize("visible", ["computed", "scheduled"])
def test_the_results_of_a_step_are_lost(visible: str, retry: bool) -> None:
    """Requests of that step fail, or are computed again; what was built on it is undone."""
    log: list[str] = []
    engine, tape = overlapped(
        log, lose_at=[1], T=30, on_backend_error="retry" if retry else "fail", prefix_cache={"visible": visible}
    )
    prompt = prompt_of("a", 12)
    for name in "ab":
        engine.add_request(make_request(name, 6, 6))
    engine.step()
    engine.add_request(make_request("c", prompt, 4))
    engine.step()  # step 1 runs c alone: prompts come first
    engine.add_request(make_request("d", [*prompt, 7], 4))  # and step 2 d, which finds what c is to write
    streams = run_all(engine)
    assert len(tape.events("backend_fault")) == 1
    assert tape.events("backend_fault")[0]["retried"] == retry
    assert not engine.scheduler.num_observer_faults
    for request_id, outputs in streams.items():
        request, completion = tape.requests[request_id], outputs[-1].outputs[0]
        assert completion.token_ids == expected_of(request)
        failed = not retry and request_id == "c"
        assert completion.finish_reason == ("error" if failed else "length")
        assert len(completion.token_ids) == (0 if failed else request.max_tokens)
    assert tape.requests["d"].num_preemptions == 1 and tape.requests["a"].num_preemptions == 0
    check_empty(engine.scheduler)


@pytest.mark.parametrize("retry", [False, True])
def test_the_last_token_of_a_request_is_lost(retry: bool) -> None:
    log: list[str] = []
    engine, tape = overlapped(log, lose_at=[1], on_backend_error="retry" if retry else "fail")
    engine.add_request(make_request("a", 6, 2))
    engine.add_request(make_request("b", 6, 6))
    engine.step()
    engine.step()
    assert tape.reasons == {"a": "length"}
    streams = run_all(engine)
    completion = streams["a"][-1].outputs[0]
    if retry:
        assert completion.token_ids == expected_of(tape.requests["a"]) and len(completion.token_ids) == 2
        assert tape.reasons == {"a": "length", "b": "length"}
        assert [len(o.new_token_ids) for o in streams["a"]] == [1]  # the first came before
    else:
        assert (completion.finish_reason, len(completion.token_ids)) == ("error", 1)
        assert streams["a"][-1].error == "the backend failed: RuntimeError: the results of execution 1 are lost"
        assert streams["b"][-1].outputs[0].finish_reason == "error"
    check_empty(engine.scheduler)


def test_a_backend_that_cannot_submit_fails_that_step_alone() -> None:
    engine, tape = overlapped(fail_at=[2])
    engine.add_request(make_request("a", 5, 9))
    outputs = [engine.step() for _ in range(3)]
    assert [[len(o.new_token_ids) for o in some] for some in outputs] == [[], [1], [1, 0]]
    assert outputs[2][0].outputs[0].finish_reason is None and outputs[2][1].outputs[0].finish_reason == "error"
    assert not engine.has_unfinished() and tape.reasons == {"a": "error"}


@pytest.mark.parametrize(
    ("ids", "message"), [([], "gave 0 tokens for a batch with 1 rows that sample"), ([5000], "allowed is"), ("x", "")]
)
def test_what_is_no_result_is_a_fault(ids: Any, message: str) -> None:
    class Odd(Logged):
        def collect(self, handle: StepResult) -> StepResult:
            return StepResult(ids, 5)

    engine, _ = make_engine(backend=Odd([]), overlap=True)
    engine.add_request(make_request("a", 5, 3))
    (output,) = run_all(engine)["a"]
    assert message in str(output.error) and output.outputs[0].token_ids == []


def test_a_fault_of_the_policy_leaves_the_step_under_way() -> None:
    log: list[str] = []
    engine, tape = overlapped(log, policy=Culprit(FAULTS["chunking raises"], every=1, most=1))
    engine.add_request(make_request("a", [5], 4))  # one token is never cut
    engine.step()
    engine.add_request(make_request("b", 5, 4))
    with pytest.raises(PolicyError):
        engine.step()
    assert engine.has_unfinished() and log[-1] == "start 1"
    streams = run_all(engine)
    for request_id in "ab":
        assert [t for o in streams[request_id] for t in o.new_token_ids] == expected_of(tape.requests[request_id])
    check_empty(engine.scheduler)
