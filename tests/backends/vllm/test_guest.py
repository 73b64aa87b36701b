"""A policy as a guest in vLLM's own scheduler: it decides what can be expressed there, and nothing is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # pyright: ignore[reportMissingImports]
from vllm.v1.core.sched.scheduler import Scheduler  # pyright: ignore[reportMissingImports]
from vllm.v1.request import RequestStatus  # pyright: ignore[reportMissingImports]

from backends.vllm.guest_policies import Blind, Cuts, Hangs, Idle, Late, Noted, Offers, Raises, Slow
from backends.vllm.runs import Run, answer, check_answers, load, offer, stock
from batchwright import Policy, hookimpl
from batchwright.errors import ConfigError
from batchwright.request import Request
from batchwright.step import Step
from batchwright_backends.vllm.guest import GuestMixin
from batchwright_backends.vllm.guest_making import make_scheduler
from batchwright_backends.vllm.guest_request import Guest
from batchwright_backends.vllm.guest_step import GuestStep
from batchwright_backends.vllm.surfaces import Surface
from peers_vllm import Vllm

POLICIES = ("vllm_v1", "prefill_first", "stall_free:chunk_size=24", "vtc", "priority", "sjf", "mlfq", "lpm")


class GuestOfVllm(Vllm):
    """A guest in vLLM's scheduler."""

    additional_config: ClassVar[dict[str, Any]] = {}

    def _class(self) -> Any:
        return make_scheduler


def guest(policy: Any, num_blocks: int, seats: int, budget: int, **settings: Any) -> Run:
    section = {"policy": policy, **settings}
    made = type("AsGuest", (GuestOfVllm,), {"additional_config": {"batchwright": section}})
    return Run(made(num_blocks, 16, seats, budget))


def own(
    policy: type[Policy], monkeypatch: pytest.MonkeyPatch, num_blocks: int = 200, **settings: Any
) -> tuple[Run, Any]:
    """A run under a policy of this file, and the policy."""
    import batchwright_backends.vllm.guest as module
    from batchwright.active_policy import ActivePolicy

    made = policy()
    monkeypatch.setattr(module, "resolve_policy", lambda *_: ActivePolicy.of(made))
    return guest("vllm_v1", num_blocks, 5, 40, **settings), made


def finish_all(run: Run, seed: int = 3) -> list[Any]:
    rows = load(seed, 9)
    for row in rows:
        offer(run, row)
        run.step()
    run.finish()
    check_answers(run, rows)
    return rows


def shadow_is_true(run: Run) -> None:
    """What the policy sees is what there is."""
    core: Any = run.core
    shadow = core._shadow
    assert [g.request_id for g in shadow.waiting] == [r.request_id for r in core.waiting]
    assert [g.request_id for g in shadow.residents] == [r.request_id for r in core.running]
    assert all(g.is_resident for g in shadow.residents) and all(g.is_waiting for g in shadow.waiting)
    assert {g.request_id for g in shadow.prefilling} == {r.request_id for r in core.running if r.is_prefill_chunk}
    assert set(shadow.guests) == set(core.requests)


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


@pytest.mark.parametrize(("prompt", "params"), [([5, 7], {"stop_token_ids": [-1]}), ([-3, 5], {}), ([2**31, 5], {})])
def test_what_cannot_be_shown_to_a_policy_is_served_all_the_same(prompt: list[int], params: dict[str, Any]) -> None:
    """vLLM has taken it already: an error would end its engine."""
    run = guest("vtc", 60, 4, 40)
    run.add("shown", range(3, 20), 4)
    run.add("not shown", prompt, 4, **params)
    run.finish()
    assert run.ends.keys() == {"shown", "not shown"} and len(run.told["not shown"]) <= 4
    assert run.core.num_fallbacks == {"fields": 2} and not run.core._shadow.strange


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


class Ahead(Vllm):
    """vLLM's own scheduler, asynchronous."""

    def _class(self) -> Any:
        def make(config: Any, *args: Any, **kwargs: Any) -> Any:
            config.scheduler_config.async_scheduling = True
            return make_scheduler(config, *args, **kwargs)

        return make


def run_ahead(run: Run, rows: Sequence[Any]) -> None:
    """A step is scheduled before the last one's tokens are known, as vLLM's engine does."""
    left, under_way = list(rows), deque[Any]()

    def update() -> None:
        for outputs in run.core.update_from_output(*under_way.popleft()).values():
            for one in outputs.outputs:
                run.told.setdefault(one.request_id, []).extend(one.new_token_ids)
                if one.finish_reason is not None:
                    run.ends[one.request_id] = one.finish_reason

    for _ in range(5000):
        if left:
            offer(run, left.pop(0))
        if not run.core.has_requests():
            break
        told = run.core.schedule()
        under_way.append((told, run.workers.execute(told)))
        if len(under_way) > 1:
            update()
    while under_way:
        update()


@pytest.mark.parametrize("num_blocks", [14, 200])
@pytest.mark.parametrize("policy", POLICIES)
def test_asynchronous_scheduling(policy: str, num_blocks: int) -> None:
    """The base is vLLM's asynchronous scheduler where the configuration asks for it, and everybody gets his tokens."""
    made = type("AheadGuest", (Ahead,), {"additional_config": {"batchwright": {"policy": policy}}})
    run = Run(made(num_blocks, 16, 6, 48))
    assert isinstance(run.core, GuestMixin) and isinstance(run.core, AsyncScheduler)
    rows = load(1)
    run_ahead(run, rows)
    check_answers(run, rows)
    core: Any = run.core
    assert not core._shadow.guests and core.num_faults == 0 and "raised" not in core.num_fallbacks


def with_options(policy: str, options: dict[str, Any], num_blocks: int = 60, seats: int = 5) -> Run:
    """A guest where vLLM's scheduler has further options."""
    section = {"batchwright": {"policy": policy}}
    made = type("AsGuest", (GuestOfVllm,), {"additional_config": section, "options": options})
    return Run(made(num_blocks, 16, seats, 48))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "priority"}, "vLLM's own priorities: leave --scheduling-policy out"),
        ({"long_prefill_token_threshold": 8}, "vLLM's own cap on long prompts: leave --long-prefill-token-threshold"),
    ],
)
def test_what_vllm_would_decide_itself_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        with_options("vllm_v1", options)


@pytest.mark.parametrize("options", [{"watermark": 0.3}, {"max_num_active_seqs": 2}])
@pytest.mark.parametrize("policy", POLICIES)
def test_bounds_of_vllms_own_are_kept_to(policy: str, options: dict[str, Any]) -> None:
    """Plans know them, so that vLLM never does something else than was planned."""
    run = with_options(policy, options)
    rows = load(1)
    most = 0
    for row in rows:
        offer(run, row)
        run.step()
        most = max(most, len(run.core.running))
    run.finish()
    check_answers(run, rows)
    assert "otherwise" not in run.core.num_fallbacks
    assert most <= options.get("max_num_active_seqs", 5)


def test_what_vllm_does_otherwise_is_counted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A bound of vLLM's own that no plan knows of, such as that on adapters."""
    run = guest("vllm_v1", 200, 5, 400)
    run.core.max_num_active_reqs = 1
    rows = load(2)[:4]
    for row in rows:
        offer(run, row)
    with caplog.at_level("WARNING", "vllm.batchwright"):
        run.step()
    assert run.core.num_fallbacks == {"otherwise": 1}
    assert "r1 runs 0 tokens, not " in caplog.text
    run.finish()
    check_answers(run, rows)


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


def test_what_a_request_cannot_say_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    """vLLM has taken it before anybody looks, so it is served all the same, and nobody falls."""
    run = guest("vtc", 200, 4, 40, trust_requests=True)
    rows = [("r0", [3] * 20, 5, 0, True), ("r1", [4] * 20, 5, 0, True), ("r2", [5] * 20, 5, 0, True)]
    for row, said in zip(rows, ({"weight": -1}, {"wait": 3}, {"deadline_s": "soon"}), strict=True):
        name, prompt, most, _, _ = row
        extra = {f"batchwright_{key}": value for key, value in said.items()}
        run.add(name, prompt, most, ignore_eos=True, extra_args=extra)
    assert run.core.num_fallbacks == {"fields": 3}
    assert "what request 'r1' says for the policy is not heard" in caplog.text
    run.finish()
    check_answers(run, rows)


def test_prompts_that_are_embeddings_are_not_shown_to_the_policy() -> None:
    import torch
    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]

    run = guest("vtc", 200, 4, 40)
    params = run.add("tokens", [3] * 20, 5, ignore_eos=True).sampling_params
    run.core.add_request(VllmRequest("embeddings", None, params, None, prompt_embeds=torch.zeros(9, 64)))
    assert list(run.core._shadow.strange) == ["embeddings"] and list(run.core._shadow.guests) == ["tokens"]
    run.core.finish_requests("embeddings", RequestStatus.FINISHED_ABORTED)
    assert not run.core._shadow.strange
    run.finish()
    check_answers(run, [("tokens", [3] * 20, 5, 0, True)])


def test_who_wants_every_step_is_told_of_it_whenever_he_came() -> None:
    """And the policy is asked no more often for it."""
    run = guest("vllm_v1", 200, 4, 400)
    offer(run, ("r0", [3] * 20, 30, 0, True))
    for _ in range(5):
        run.step()
    before, late = run.core.num_unasked, Late()
    assert before > 0
    run.core.decisions.register(late, "late")
    run.finish()
    assert run.core.num_unasked == before + 25 and late.steps == 25
