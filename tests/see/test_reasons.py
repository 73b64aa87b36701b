"""Each reason, in the situation that it is for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from batchwright.hookspecs import HOLD, hookimpl
from batchwright.policy import Policy
from batchwright.prefix_cache import PrefixCache
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright.trace import Reason
from see.stage import Halver, Plain, Quota, Stage

Step = Any


def test_prompt_then_decode() -> None:
    stage = Stage()
    stage.add("a", 6)
    first, second = stage.step(), stage.step()
    assert first.reasons == {
        "a": Reason("prompt", "admission", "plain", is_admitted=True, num_tokens=6, num_pending=6, budget=16)
    }
    assert str(first.reasons["a"]) == "6 tokens, all that was pending; offered by plain"
    assert second.reasons == {"a": Reason("decode", "admission", "plain", num_tokens=1)}
    assert str(second.reasons["a"]) == "decode, 1 token; offered by plain"
    assert (first.how, second.how) == ("policy", "policy")


def test_a_prefix_hit_is_told_and_marked() -> None:
    stage = Stage()
    one = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    stage.scheduler.add(Request("a", one, SamplingParams(max_tokens=8)))
    stage.step()
    stage.scheduler.add(Request("b", [*one[:8], 8, 9], SamplingParams(max_tokens=8)))
    traced = stage.step()
    b = traced.by_id["b"]
    assert (b.reason.num_cached, b.num_cached, b.num_computed, b.num_scheduled) == (8, 8, 8, 2)
    assert b.block_table[:2] == traced.by_id["a"].block_table[:2]
    assert str(b.reason) == "2 tokens, all that was pending beside 8 cached; offered by plain"
    assert [bool(traced.cached[block]) for block in b.block_table] == [True, True, False]


def test_a_cut_says_who_cut_it() -> None:
    class Half(Plain):
        @hookimpl
        def chunking(self, step: Step, request: Request) -> int | None:
            return None if request.request_id == "b" else min(request.num_pending, 5)

    stage = Stage(Half())
    stage.add("a", 9)
    stage.add("b", 30)
    reasons = stage.step().reasons
    assert reasons["a"] == Reason("chunk", "chunking", "half", is_admitted=True, num_tokens=5, num_pending=9, budget=16)
    assert str(reasons["a"]) == "5 of 9 pending tokens; cut by chunking of half"
    assert reasons["b"].by == "the core"
    expected = "11 of 30 pending tokens, all that was left of the budget; cut by chunking of the core"
    assert str(reasons["b"]) == expected


def test_no_budget_and_not_offered() -> None:
    stage = Stage(max_num_batched_tokens=8)
    stage.add("a", 8)
    stage.add("b", 4)
    stage.add("c", 4)
    reasons = stage.step().reasons
    assert reasons["b"] == Reason("no_budget", num_pending=4)
    assert str(reasons["b"]) == "offered room when no token of the budget was left"
    assert reasons["c"] == Reason("not_offered", "admission", "plain", other="b", other_kind="no_budget")
    assert str(reasons["c"]) == "not offered room; admission of plain ended after b, which found no budget left"


def test_chunk_zero() -> None:
    class Whole(Plain):
        @hookimpl
        def chunking(self, step: Step, request: Request) -> int:
            return request.num_pending if request.num_pending <= step.budget else 0

    stage = Stage(Whole())
    stage.add("a", 10)
    stage.add("b", 9)
    reason = stage.step().reasons["b"]
    assert reason == Reason("chunk_zero", "chunking", "whole", num_pending=9, budget=6)
    assert str(reason) == "chunking of whole gave it 0 of 9 pending tokens, with 6 left in the budget"


@pytest.mark.parametrize("as_sequence", [False, True])
def test_batch_full(as_sequence: bool) -> None:
    class All(Policy):
        @hookimpl
        def admission(self, step: Step) -> Iterator[Any]:
            yield step.running
            if as_sequence:
                yield list(step.waiting)
            else:
                yield from step.waiting

    stage = Stage(All(), max_num_seqs=2)
    for name in "abcd":
        stage.add(name, 3)
    reasons = stage.step().reasons
    assert reasons["c"] == reasons["d"] == Reason("batch_full", num_needed=2)
    assert str(reasons["c"]) == "offered room when the batch was full (2 requests: max_num_seqs)"


def test_hold_for_a_seat() -> None:
    stage = Stage(max_num_residents=1)
    stage.add("a", 3)
    stage.add("b", 3)
    reason = stage.step().reasons["b"]
    assert reason == Reason("hold", "preemption", "the core", lacking="seats", num_needed=1)
    assert str(reason) == "no seat was free (max_num_residents); preemption of the core evicted nobody for it"


def test_hold_for_blocks_counts_what_is_needed_and_free() -> None:
    class Hold(Plain):
        @hookimpl
        def preemption(self, step: Step, request: Request) -> Any:
            return HOLD

    stage = Stage(Hold(), num_blocks=4)
    stage.add("a", 9, 4)
    stage.add("b", 7, 4)
    reason = stage.step().reasons["b"]
    assert reason == Reason("hold", "preemption", "hold", lacking="blocks", num_needed=2, num_free=1)
    assert str(reason) == "it needed 2 blocks, 1 free; preemption of hold evicted nobody for it"


def test_hold_of_a_resident_that_rides_with_others() -> None:
    class Hold(Plain):
        @hookimpl
        def preemption(self, step: Step, request: Request) -> Any:
            return HOLD

    stage = Stage(Hold(), num_blocks=2, max_num_batched_tokens=64)
    stage.add("a", 3, 2)
    stage.add("b", 4, 2)
    stage.step()
    reasons = stage.step().reasons
    assert reasons["b"] == Reason("hold", "preemption", "hold", lacking="blocks", num_needed=1)
    assert reasons["a"].kind == "decode"


def test_evicted_for_another_and_by_itself() -> None:
    stage = Stage(num_blocks=4)
    stage.add("a", 8, 8)
    stage.add("b", 8, 8)
    stage.step()
    traced = stage.step()
    assert traced.preempted == ("b",)
    assert traced.reasons["b"] == Reason("evicted", "preemption", "the core", lacking="blocks", other="a")
    assert str(traced.reasons["b"]) == "evicted for a, which lacked blocks: preemption of the core named it"
    assert traced.by_id["b"].block_table == ()

    class Itself(Plain):
        @hookimpl
        def preemption(self, step: Step, request: Request) -> Any:
            return request if request.is_resident else HOLD

    stage = Stage(Itself(), num_blocks=4)
    stage.add("a", 8, 8)
    stage.add("b", 8, 8)
    stage.step()
    reason = stage.step().reasons["a"]
    assert reason == Reason("evicted", "preemption", "itself", lacking="blocks")
    assert str(reason) == "evicted, as it lacked blocks itself: preemption of itself named it"


def test_who_shares_an_unfilled_block_goes_along() -> None:
    class First(Policy):
        @hookimpl
        def admission(self, step: Step) -> Iterator[Any]:
            yield from step.waiting

        @hookimpl
        def preemption(self, step: Step, request: Request) -> Any:
            return step.batch[0] if step.batch else HOLD

    stage = Stage(First(), num_blocks=5, prefix_cache=PrefixCache(visible="scheduled"), max_num_batched_tokens=64)
    for name in "ab":
        stage.scheduler.add(Request(name, list(range(9)), SamplingParams(max_tokens=4)))
    stage.add("c", 12)
    traced = stage.step()
    assert traced.preempted == ("b", "a") and traced.batch == ("c",)
    assert traced.reasons["a"] == Reason("evicted", "preemption", "first", lacking="blocks", other="c")
    assert traced.reasons["b"] == Reason("went_along", "preemption", "first", other="a")
    assert str(traced.reasons["b"]) == "evicted along with a, since it shared a block which that one was to fill"


def test_a_victim_that_is_offered_again_stays_a_victim() -> None:
    class Again(Plain):
        @hookimpl
        def admission(self, step: Step) -> Iterator[Any]:
            yield from list(step.running)
            yield from list(step.running)[1:] if step.preempted else ()
            yield from step.waiting

    stage = Stage(Again(), num_blocks=4)
    stage.add("a", 8, 8)
    stage.add("b", 8, 8)
    stage.step()
    assert stage.step().reasons["b"].kind == "evicted"


def test_retried_when_the_backend_fails() -> None:
    stage = Stage()
    stage.add("a", 6)
    traced = stage.step(fail=True)
    assert traced.reasons == {"a": Reason("retried")}
    assert str(traced.reasons["a"]) == "evicted, since the backend failed; it is computed again"
    assert traced.preempted == ("a",)
    assert stage.step().reasons["a"].kind == "prompt"


class Broken(Plain):
    """Wrong about its third request."""

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        return 99 if request.request_id == "c" else request.num_pending


def test_undone_when_the_policy_breaks_a_rule() -> None:
    stage = Stage(Broken())
    for name in "abcd":
        stage.add(name, 3)
    with pytest.raises(Exception, match="rule 'range'"):
        stage.step()
    (traced,) = stage.tracer.take()
    assert traced.is_undone and traced.end is None and traced.batch == ()
    assert "rule 'range'" in traced.error
    for name in "abcd":
        reason = traced.reasons[name]
        assert (reason.kind, reason.hook, reason.by) == ("undone", "chunking", "broken")
        assert str(reason).startswith("the step was undone: policy 'broken', hook 'chunking'")
    assert [r.num_scheduled for r in traced.requests] == [0] * 4


def test_a_fallback_decides_in_its_own_name() -> None:
    stage = Stage(Broken())
    stage.scheduler._in_force.on_error = "fallback"
    for name in "abcd":
        stage.add(name, 3)
    traced = stage.step()
    assert (traced.how, traced.is_undone) == ("fallback", False)
    assert "rule 'range'" in traced.error
    assert traced.batch == ("a", "b", "c", "d")
    assert {(r.kind, r.by) for r in traced.reasons.values()} == {("prompt", "fallback")}


def test_a_fallback_has_nobodys_wrappers() -> None:
    stage = Stage(Broken(), plugins=[Halver(), Quota()])
    stage.scheduler._in_force.on_error = "fallback"
    stage.add("a", 12)
    stage.add("c", 3)
    stage.add("d", 12)
    reasons = stage.step().reasons
    assert [(r.kind, r.by, r.over) for r in reasons.values()] == [
        ("prompt", "fallback", ""),
        ("prompt", "fallback", ""),
        ("chunk_zero", "fallback", ""),
    ]


def test_a_stationary_policy_is_not_asked_again_and_that_is_said() -> None:
    class Steady(Plain):
        stationary = True

        @hookimpl
        def admission(self, step: Step) -> Iterator[Any]:
            yield step.running
            yield from step.waiting

    stage = Stage(Steady())
    stage.add("a", 3)
    steps = [stage.step() for _ in range(8)]
    assert steps[-1].how == "repeat"
    reason = steps[-1].reasons["a"]
    assert reason == Reason("decode", "admission", "steady", is_repeated=True, num_tokens=1)
    assert str(reason) == "decode, 1 token; repeated: steady is stationary, and was not asked again"
