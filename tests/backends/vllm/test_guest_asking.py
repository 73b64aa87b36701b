"""When a guest is asked: not where what it declares says what it would decide."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from backends.vllm.guest_policies import Noted
from backends.vllm.guests import POLICIES, Ahead, GuestOfVllm, finish_all, guest, own, run_ahead, shadow_is_true
from backends.vllm.runs import Run, answer, check_answers, load, offer, stock
from batchwright import hookimpl
from batchwright.step import Step


def asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each step for which the policy is asked."""
    steps: list[int] = []
    ask = run.core.decisions.admission

    def admission(step: Any) -> Any:
        steps.append(step.index)
        return ask(step)

    monkeypatch.setattr(run.core.decisions, "admission", admission)
    return steps


@pytest.mark.parametrize(("num_blocks", "seats"), [(200, 3), (20, 6)])
@pytest.mark.parametrize("policy", ["vllm_v1", "prefill_first", "stall_free", "sjf"])
def test_a_stationary_policy_is_asked_only_where_something_changed(
    policy: str, num_blocks: int, seats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decodes, while others wait for a seat, or for blocks, and then alone."""
    run = guest(policy, num_blocks, seats, 400)
    steps = asked(run, monkeypatch)
    rows = six()
    for row in rows:
        offer(run, row)
    run.finish()
    check_answers(run, rows)
    core: Any = run.core
    assert len(steps) + core.num_unasked == sum(bool(step) for step in run.workers.steps)
    assert core.num_unasked > core.num_steps / 3
    shadow_is_true(run)


def six() -> list[Any]:
    return [(f"r{i}", [i + 1] * 70, 30, 0, True) for i in range(6)]


@pytest.mark.parametrize("policy", ["vtc", "dlpm", "lpm", "mlfq", "srpt"])
def test_a_steady_policy_is_asked_only_where_somebody_could_come_in(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that let newcomers pass are asked while somebody waits for a seat, and the others are not."""
    run = guest(policy, 200, 3, 400)
    steps, rows = asked(run, monkeypatch), six()
    for row in rows:
        offer(run, row)
    waited = 0
    while run.core.has_requests():
        run.step()
        waited += bool(run.core.waiting) and run.core.num_unasked > 0
    check_answers(run, rows)
    core: Any = run.core
    assert len(steps) + core.num_unasked == sum(bool(step) for step in run.workers.steps)
    assert core.num_unasked > (0 if core.decisions.policy.preemptive else 20)
    assert (waited > 20) == (not core.decisions.policy.preemptive)


def test_who_declares_nothing_is_asked_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = own(Noted, monkeypatch)
    steps, rows = asked(run, monkeypatch), six()
    for row in rows:
        offer(run, row)
    run.finish()
    check_answers(run, rows)
    assert run.core.num_unasked == 0 and len(steps) == sum(bool(step) for step in run.workers.steps)


class Always:
    """No step goes unasked."""

    def __init__(self, *_: Any) -> None:
        self.still = self.failed = self.tells = False

    def holds(self, _: Any) -> bool:
        return False


@settings(max_examples=40, phases=(Phase.generate,))
@given(
    st.integers(0, 10_000),
    st.sampled_from((*POLICIES, "dlpm", "srpt", "max_utilization")),  # none looks at the clock
    st.integers(13, 60),
    st.booleans(),
)
def test_who_is_not_asked_would_have_decided_the_same(seed: int, policy: str, num_blocks: int, ahead: bool) -> None:
    """The same requests with the same tokens in every step, as if the policy were asked in each."""
    rows, runs = load(seed, 10), []
    for always in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if always:
                patch.setattr("batchwright_backends.vllm.guest.Unasked", Always)
            section = {"batchwright": {"policy": policy, "trust_requests": True}}
            kind = type("AsGuest", (Ahead if ahead else GuestOfVllm,), {"additional_config": section})
            run = Run(kind(num_blocks, 16, 4, 48))
        for i, (name, prompt, most, priority, ignore_eos) in enumerate(rows):
            said = {"batchwright_client_id": f"c{i % 3}", "batchwright_weight": 1 + i % 2}
            run.add(name, prompt, most, priority, ignore_eos=ignore_eos, extra_args=said)
            if not ahead:
                run.step()
        if ahead:
            run_ahead(run, ())
        else:
            run.finish()
        runs.append(run)
    one, other = runs
    assert one.workers.steps == other.workers.steps
    assert one.core.num_fallbacks == other.core.num_fallbacks
    assert other.core.num_unasked == 0 and one.core.num_faults == other.core.num_faults == 0


class Calm(Noted):
    """It declares that it need not be asked."""

    steady = True

    @hookimpl
    def admission(self, step: Step) -> Any:
        return super().admission(step)

    @hookimpl
    def step_started(self, step: Step) -> None:
        self.calls.append(("started", [r.request_id for r in step.running]))


@pytest.mark.parametrize("num_blocks", [14, 200])
def test_a_steady_policy_is_told_of_every_step(monkeypatch: pytest.MonkeyPatch, num_blocks: int) -> None:
    """Of the steps in which it is not asked what it would have been told if it were."""
    told = []
    for always in (False, True):
        if always:
            monkeypatch.setattr("batchwright_backends.vllm.guest.Unasked", Always)
        run, policy = own(Calm, monkeypatch, num_blocks)
        finish_all(run)
        run.core.schedule()
        told.append(policy.calls)
        assert (run.core.num_unasked > 0) == (not always)
    assert told[0] == told[1]


def test_a_block_that_a_decode_fills_lets_in_who_waits_for_it() -> None:
    """In that very step, as in stock: the decode takes another block in the next one, and evicts it."""
    runs = stock(8, 4, 400), guest("vllm_v1", 8, 4, 400)
    for run in runs:
        first = [3] * 60
        run.add("a", first, 40, ignore_eos=True)
        run.step()
        coming = answer(first, 40, ignore_eos=True)
        run.add("b", [*first, *coming[:4], *[5] * 49], 3, ignore_eos=True)
        for _ in range(8):
            run.step()
    one, other = runs
    assert other.workers.steps == one.workers.steps
    assert [i for i, step in enumerate(other.workers.steps) if "b" in step] == [4]
    assert other.core.num_unasked > 0
