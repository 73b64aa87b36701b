"""Which plugin, wrapper or slot a decision is of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from batchwright.hookspecs import hookimpl
from batchwright.request import Request
from batchwright.trace import Reason
from see.stage import Halver, Plain, Quota, Stage

Step = Any


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
