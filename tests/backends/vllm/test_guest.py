"""A policy as a guest in vLLM's own scheduler: it decides what can be expressed there, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.scheduler import Scheduler  # pyright: ignore[reportMissingImports]
from vllm.v1.request import RequestStatus  # pyright: ignore[reportMissingImports]

from backends.vllm.guest_policies import Blind, Cuts, Hangs, Idle, Noted, Offers, Raises, Slow
from backends.vllm.guests import POLICIES, finish_all, guest, own, shadow_is_true
from backends.vllm.runs import check_answers, load, offer, stock
from batchwright import Policy
from batchwright.errors import ConfigError
from batchwright.request import Request
from batchwright.step import Step
from batchwright_backends.vllm.guest import GuestMixin
from batchwright_backends.vllm.guest_request import Guest
from batchwright_backends.vllm.guest_step import GuestStep
from batchwright_backends.vllm.surfaces import Surface


@pytest.mark.parametrize("num_blocks", [14, 200])
@pytest.mark.parametrize("policy", POLICIES)
def test_everybody_gets_his_tokens(policy: str, num_blocks: int) -> None:
    run = guest(policy, num_blocks, 6, 48)
    rows = load(1)
    for i, row in enumerate(rows):
        offer(run, row)
        if i % 3:
            run.step()
            shadow_is_true(run)
    run.finish()
    check_answers(run, rows)
    core: Any = run.core
    shadow = core._shadow
    assert not shadow.guests and not len(shadow.waiting) and not len(shadow.residents)
    assert core.num_faults == 0 and "raised" not in core.num_fallbacks


@settings(max_examples=30, phases=(Phase.generate,))
@given(st.integers(0, 10_000), st.integers(13, 120), st.integers(1, 8), st.integers(8, 80))
def test_vllm_v1_decides_as_stock(seed: int, num_blocks: int, seats: int, budget: int) -> None:
    """The same requests with the same tokens in every step until somebody is evicted, and the same answers always.

    An eviction that is not vLLM's own comes a moment before it, and other content may then be cached.
    """
    runs = stock(num_blocks, seats, budget), guest("vllm_v1", num_blocks, seats, budget)
    rows = load(seed, 8)
    num_same = None
    while rows or any(run.core.has_requests() for run in runs):
        row = rows.pop(0) if rows else None
        for run in runs:
            if row is not None:
                offer(run, row)
            if run.core.has_requests():
                run.step()
        shadow_is_true(runs[1])
        if num_same is None and any(r.num_preemptions for run in runs for r in run.core.requests.values()):
            num_same = len(runs[0].workers.steps)
    one, other = runs
    assert other.workers.steps[:num_same] == one.workers.steps[:num_same]
    assert (one.told, one.ends, one.stops) == (other.told, other.ends, other.stops)
    # Where an eviction gives tokens back in the middle of a step vLLM's own order is what it wants.
    assert set(other.core.num_fallbacks) <= ({"inexpressible"} if num_same else set())


@settings(max_examples=30, phases=(Phase.generate,))
@given(st.integers(0, 10_000), st.sampled_from(POLICIES), st.integers(13, 60), st.data())
def test_aborts_lose_nothing(seed: int, policy: str, num_blocks: int, data: st.DataObject) -> None:
    run = guest(policy, num_blocks, 5, 40)
    rows = load(seed, 8)
    gone = set()

    def abort() -> None:
        here = sorted(run.core.requests)
        if here and data.draw(st.booleans()):
            name = data.draw(st.sampled_from(here))
            run.core.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            gone.add(name)

    for row in rows:
        offer(run, row)
        abort()
        run.step(between=abort)
        shadow_is_true(run)
    run.finish()
    check_answers(run, [row for row in rows if row[0] not in gone])
    assert run.core.num_faults == 0


@pytest.mark.parametrize("num_blocks", [14, 200])
def test_observers_are_told_what_happens(monkeypatch: pytest.MonkeyPatch, num_blocks: int) -> None:
    run, policy = own(Noted, monkeypatch, num_blocks)
    rows = finish_all(run)
    run.core.schedule()  # the last step's end is told with the next
    steps = [value for kind, value in policy.calls if kind == "step"]
    assert [step for step in steps if step] == [step for step in run.workers.steps if step]
    where: dict[str, str] = {}
    for kind, value in policy.calls:
        if kind == "step":
            assert all(where[name] in ("admitted", "finished") for name in value)
            continue
        name, before = (value[0] if kind == "finished" else value), {"arrived": None, "admitted": "arrived"}.get(kind)
        assert where.get(name) in (before, "preempted" if kind == "admitted" else "admitted")
        where[name] = kind
    assert set(where) == {row[0] for row in rows} and set(where.values()) == {"finished"}
    reasons = {value[0]: value[1] for kind, value in policy.calls if kind == "finished"}
    assert reasons == {name: str(reason) for name, reason in run.ends.items()}
    assert ("preempted" in {kind for kind, _ in policy.calls}) == (num_blocks == 14)


@pytest.mark.parametrize(
    ("policy", "cause"),
    [(Raises, "raised"), (Offers, "raised"), (Slow, "late"), (Hangs, "late"), (Idle, "idle"), (Cuts, "inexpressible")],
)
def test_a_policy_that_fails_costs_its_step_and_nothing_else(
    policy: type[Policy], cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = own(policy, monkeypatch, **({"max_policy_ms": 20.0} if cause == "late" else {}))
    finish_all(run)
    assert cause in run.core.num_fallbacks and set(run.core.num_fallbacks) <= {cause, "idle"}


def test_a_policy_without_an_answer_is_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = own(Policy, monkeypatch)
    finish_all(run)
    assert not run.core.num_fallbacks and run.core.num_steps > run.core.num_unasked


def test_faults_of_observers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = own(Blind, monkeypatch)
    finish_all(run)
    assert run.core.num_faults > 10 and not run.core.num_fallbacks


def test_policies_that_cannot_be_expressed_are_refused() -> None:
    for policy, words in (
        ("no_evict", "reservation beyond the present length"),
        ("slo_chunk", "predict_s"),
        ("orca", "prompts that are never cut"),
    ):
        with pytest.raises(ConfigError, match=f"{policy}.*cannot be expressed.*{words}.*HostScheduler"):
            guest(policy, 30, 4, 40)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"strict": True}, "strict says something of Batchwright's own scheduler"),
        ({"overlap": True}, "overlap says nothing inside vLLM"),
        ({"max_num_seqs": 3}, "vLLM gives it"),
        ({"polcy": "vtc"}, "polcy"),
    ],
)
def test_settings_that_are_none(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        guest("vllm_v1", 30, 4, 40, **settings)


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(guest("vtc", 30, 4, 40).core, GuestMixin)
    monkeypatch.setenv("BATCHWRIGHT_VLLM", "off")
    assert type(guest("vtc", 30, 4, 40).core) is Scheduler


def test_what_a_policy_sees_has_every_name_of_ours() -> None:
    """Of a request and of a step: attributes and properties that hooks may read."""
    run = guest("vllm_v1", 200, 4, 40)
    offer(run, load(1)[0])
    run.step()
    core: Any = run.core
    for ours, theirs in ((Request, next(iter(core._shadow.guests.values()))), (Step, core._step)):
        names = [name for name in dir(ours) if not name.startswith("_")]
        assert [name for name in names if not hasattr(theirs, name)] == []
    assert isinstance(core._step, GuestStep) and isinstance(next(iter(core._shadow.guests.values())), Guest)


def test_what_is_used_of_vllm_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Surface(("guest",), "vllm.v1.core.sched.scheduler", "Scheduler", ("waiting", "no_such_thing(request)"))
    monkeypatch.setattr("batchwright_backends.vllm.lacking.SURFACES", (lacking,))
    with pytest.raises(ConfigError, match=r"guest needs of its scheduler: Scheduler.no_such_thing; it was run with"):
        guest("vllm_v1", 30, 4, 40)
