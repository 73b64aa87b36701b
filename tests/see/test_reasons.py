"""Each reason, in the situation that it is for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from batchwright.hookspecs import HOLD, hookimpl
from batchwright.limits import Limits
from batchwright.policy import Policy
from batchwright.prefix_cache import PrefixCache
from batchwright.request import Request
from batchwright.sampling_params import SamplingParams
from batchwright.scheduler import Scheduler
from batchwright.trace import Reason, TracedStep, Tracer
from batchwright.trace.reason import KINDS

Step = Any


class Plain(Policy):
    """Decodes, cut prompts, then waiting ones up to the first that does not fit; the core does the rest."""

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        yield step.running
        for request in step.waiting:
            yield request
            if not request.num_scheduled:
                return


class Stage:
    """A scheduler, stepped and traced."""

    def __init__(
        self,
        policy: Any = None,
        *,
        num_blocks: int = 20,
        plugins: Sequence[Any] = (),
        prefix_cache: PrefixCache | None = None,
        **limits: Any,
    ) -> None:
        self.scheduler = Scheduler(
            policy or Plain(),
            num_blocks=num_blocks,
            block_size=4,
            limits=Limits(**{"max_num_seqs": 4, "max_num_batched_tokens": 16, **limits}),
            prefix_cache=prefix_cache,
            plugins=plugins,
        )
        self.tracer = Tracer(self.scheduler)

    def add(self, name: str, num_prompt: int, max_tokens: int = 8, **fields: Any) -> Request:
        tokens = [sum(name.encode()) % 89 + i for i in range(num_prompt)]
        request = Request(name, tokens, SamplingParams(max_tokens=max_tokens), **fields)
        self.scheduler.add(request)
        return request

    def step(self, *, fail: bool | None = None) -> TracedStep:
        batch = self.scheduler.schedule(0)
        if fail is None:
            self.scheduler.update(batch, [7] * int(batch.samples.sum()), 1)
        else:
            self.scheduler.fail(batch, "it broke", retry=fail, now=1)
        (traced,) = self.tracer.take()
        return traced


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
    stage.scheduler._on_policy_error = "fallback"
    for name in "abcd":
        stage.add(name, 3)
    traced = stage.step()
    assert (traced.how, traced.is_undone) == ("fallback", False)
    assert "rule 'range'" in traced.error
    assert traced.batch == ("a", "b", "c", "d")
    assert {(r.kind, r.by) for r in traced.reasons.values()} == {("prompt", "fallback")}


def test_a_fallback_has_nobodys_wrappers() -> None:
    stage = Stage(Broken(), plugins=[Halver(), Quota()])
    stage.scheduler._on_policy_error = "fallback"
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


# Who decided --------------------------------------------------------------------------------------------------------


class Quota:
    """Lets one request of a client in; a wrapper of admission."""

    name = "quota"

    @hookimpl(wrapper=True)
    def admission(self, step: Step) -> Any:
        offers = yield

        def some() -> Iterator[Any]:
            for offer in offers:
                if isinstance(offer, Request) and offer.client_id == "greedy":
                    continue
                yield offer

        return some()


class Halver:
    """Halves every chunk; a wrapper of chunking."""

    name = "halver"

    @hookimpl(wrapper=True)
    def chunking(self, step: Step, request: Request) -> Any:
        answer = yield
        return answer // 2 if answer > 8 else answer


def test_a_wrapper_that_withholds_an_offer() -> None:
    class All(Plain):
        @hookimpl
        def admission(self, step: Step) -> Iterator[Any]:
            yield step.running
            yield from step.waiting

    stage = Stage(All(), plugins=[Quota()])
    stage.add("a", 3)
    stage.add("b", 3, client_id="greedy")
    stage.add("c", 3)
    traced = stage.step()
    assert traced.batch == ("a", "c")
    assert traced.reasons["b"] == Reason("withheld", "admission", "quota", "all")
    assert str(traced.reasons["b"]) == "all offered it room, and quota, which wraps its admission, left it out"


def test_who_ended_the_offers_where_a_wrapper_is() -> None:
    class Two:
        name = "two"

        @hookimpl(wrapper=True)
        def admission(self, step: Step) -> Any:
            offers = iter((yield))
            return [next(offers), next(offers)]

    stage = Stage(plugins=[Two()])
    for name in "abc":
        stage.add(name, 3)
    reasons = stage.step().reasons
    assert (reasons["a"].kind, reasons["b"].kind, reasons["c"].kind) == ("prompt", "not_offered", "not_offered")
    assert reasons["c"].by == "two"  # the policy would have gone on
    stage = Stage(plugins=[Quota()], max_num_batched_tokens=4)
    for name in "abcd":
        stage.add(name, 3)
    reasons = stage.step().reasons
    assert (reasons["b"].kind, reasons["c"].kind) == ("chunk", "no_budget")
    assert reasons["d"] == Reason("not_offered", "admission", "plain", other="c", other_kind="no_budget")


def test_a_wrapper_that_changes_an_answer_and_one_that_does_not() -> None:
    stage = Stage(plugins=[Halver()])
    stage.add("a", 12)
    stage.add("b", 40)
    reasons = stage.step().reasons
    assert (reasons["a"].num_tokens, reasons["a"].by, reasons["a"].over) == (6, "halver", "the core")
    assert str(reasons["a"]).endswith("cut by chunking of halver, in place of the core")
    stage = Stage(plugins=[Halver()], max_num_batched_tokens=8)
    stage.add("b", 40)
    reasons = stage.step().reasons
    assert (reasons["b"].num_tokens, reasons["b"].by, reasons["b"].over) == (8, "the core", "")


def test_old_wrappers_are_told_apart_as_well() -> None:
    class Old:
        name = "old"

        @hookimpl(hookwrapper=True)
        def chunking(self, step: Step, request: Request) -> Any:
            outcome = yield
            outcome.force_result(2)

    stage = Stage(plugins=[Old()])
    stage.add("a", 12)
    reason = stage.step().reasons["a"]
    assert (reason.num_tokens, reason.by, reason.over) == (2, "old", "the core")


def test_several_plugins_that_may_answer() -> None:
    class Vip:
        name = "vip"

        @hookimpl
        def chunking(self, step: Step, request: Request) -> int | None:
            return 1 if request.priority else None

    stage = Stage(plugins=[Vip()])
    stage.add("a", 4, priority=1)
    stage.add("b", 40)
    reasons = stage.step().reasons
    assert (reasons["a"].by, reasons["a"].num_tokens, reasons["b"].by) == ("vip", 1, "the core")


def test_each_slot_of_a_composite_is_named() -> None:
    spec = {"admission": "vllm_v1", "chunking": {"use": "stall_free", "chunk_size": 5}, "preemption": "cheapest"}
    stage = Stage(spec, num_blocks=5)
    stage.add("a", 7)
    stage.add("b", 7)
    step = stage.step()
    assert (step.reasons["a"].kind, step.reasons["a"].by) == ("chunk", "stall_free")
    assert step.reasons["b"].kind == "chunk_zero" and step.reasons["b"].by == "stall_free"
    seen = [stage.step() for _ in range(12)]
    evicted = [r for s in seen for r in s.reasons.values() if r.kind == "evicted"]
    assert {r.by for r in evicted} == {"cheapest"}
    assert {r.by for s in seen for r in s.reasons.values() if r.kind == "decode"} == {"vllm_v1"}


def test_wrappers_are_as_they_were_when_nobody_listens() -> None:
    stage = Stage(plugins=[Halver()])
    impls = stage.scheduler._hooks._manager.hook.chunking.get_hookimpls()
    before = [impl.function for impl in impls]
    stage.add("a", 12)
    stage.step()
    assert [impl.function for impl in impls] != before
    stage.tracer.close()
    assert [impl.function for impl in impls] == before


# Reasons as data ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_words_and_survives_json(kind: Any) -> None:
    reason = Reason(kind, "admission", "mine", other="r1", num_needed=3, num_tokens=2, num_pending=4, lacking="blocks")
    assert Reason.from_json(reason.to_json()) == reason
    assert str(reason)


@pytest.mark.parametrize(
    ("values", "error"),
    [({}, ValueError), ({"kind": "who knows"}, ValueError), ({"kind": "hold", "num_free": "3"}, TypeError)],
)
def test_what_is_no_reason(values: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Reason.from_json(values)


def test_names_of_later_versions_are_left_out() -> None:
    assert Reason.from_json({"kind": "decode", "mood": "fine"}) == Reason("decode")
