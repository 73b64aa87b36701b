"""Strict mode: a policy that writes to what it is shown is told what it wrote; one that does not decides the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import Field

from batchwright import (
    EngineConfig,
    Limits,
    Policy,
    PolicyError,
    Refusal,
    Request,
    SamplingParams,
    Scheduler,
    Step,
    StepResult,
    hookimpl,
)
from batchwright.engine import Engine
from batchwright.plugins import load_plugins
from batchwright.queues import QueueView
from batchwright_policies.plugin import register_policies
from batchwright_policies.prefill_first import PrefillFirst, PrefillFirstParams
from fake_backend import FakeBackend
from toolbox import check_whole, expected_of, make_engine, make_request, play

POLICIES = register_policies()
INSTALLED = load_plugins()


def decisions(policy: Any, *, strict: bool, seed: int, plugins: Any = ()) -> tuple[list[Any], Scheduler]:
    """What is decided of a random workload on a small pool, with aborts."""
    rng = random.Random(seed)
    seqs = rng.randint(2, 6)
    limits = Limits(seqs, rng.choice([8, 16, 40]), rng.choice([None, seqs]))
    scheduler = Scheduler(
        policy, num_blocks=14, block_size=4, limits=limits, strict=strict, plugins=plugins, predict_s=lambda batch: 0.01
    )
    told: list[Any] = []
    to_come = 14
    now = 0
    while to_come or scheduler.has_unfinished():
        while to_come and rng.random() < 0.6:
            to_come -= 1
            request = Request(
                f"r{to_come}",
                [rng.randrange(3) for _ in range(rng.randint(1, 20))],
                SamplingParams(max_tokens=rng.randint(1, 12), ignore_eos=True),
                arrival_ns=now,
                priority=rng.randrange(3),
                client_id=rng.choice("ab"),
                program_id=rng.choice("pq"),
                deadline_s=rng.random(),
                predicted_output_tokens=rng.choice([None, 5]),
                extra={"tenant": {"name": "t"}},
            )
            try:
                scheduler.add(request)
            except ValueError as error:  # some policies never cut prompts
                told.append(str(error))
        if rng.random() < 0.05 and scheduler.running:
            scheduler.abort(scheduler.running[-1].request_id)
        now += 20_000_000
        batch = scheduler.schedule(now)
        step = scheduler.step
        told.append([(r.request_id, r.num_scheduled) for r in step.batch] + [r.request_id for r in step.preempted])
        scheduler.update(batch, [7] * sum(batch.samples.tolist()), now)
        check_whole(scheduler)
    assert scheduler.num_observer_faults == 0, scheduler.take_events()
    return told, scheduler


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_decides_the_same_behind_glass(name: str) -> None:
    for seed in range(4):
        fast, _ = decisions(POLICIES[name](), strict=False, seed=seed)
        strict, _ = decisions(POLICIES[name](), strict=True, seed=seed)
        assert strict == fast


def test_a_composite_a_wrapper_and_an_observer_decide_the_same_behind_glass() -> None:
    from batchwright.resolve import resolve_policy

    class OneNewcomer:
        seen = 0

        @hookimpl(wrapper=True)
        def admission(self, step: Step) -> Any:
            offers = yield
            return self._few(step, offers)

        def _few(self, step: Step, offers: Any) -> Any:
            admitted = False
            for offer in offers:
                for request in [offer] if isinstance(offer, Request) else offer:
                    if request.is_waiting and admitted:
                        continue
                    waits = request.is_waiting
                    yield request
                    admitted |= waits and request.num_scheduled > 0

        @hookimpl
        def step_finished(self, step: Step, result: StepResult) -> None:
            self.seen += len(result.token_ids) + len(step.sampled)

    spec = {"admission": "vtc", "chunking": {"use": "stall_free", "chunk_size": 9}, "preemption": "cheapest"}
    for seed in range(3):
        runs = []
        for strict in (False, True):
            plugin = OneNewcomer()
            runs.append(
                (decisions(resolve_policy(spec, INSTALLED), strict=strict, seed=seed, plugins=[plugin])[0], plugin.seen)
            )
        assert runs[0] == runs[1] and runs[0][1] > 10


# Attempts -------------------------------------------------------------------------------------------------------


class NumbersParams(PrefillFirstParams):
    numbers: list[int] = Field(default_factory=lambda: [1], description="To be altered.")
    size: int = 3


class Attempts(PrefillFirst):
    """The default policy, which tries something once in a hook."""

    Params = NumbersParams

    def __init__(self, hook: str, attempt: Callable[..., Any], *, hides: bool = False) -> None:
        super().__init__(NumbersParams())
        self._hook, self._attempt, self._hides = hook, attempt, hides
        self.num_tried = 0

    def _try(self, hook: str, *args: Any) -> None:
        if hook == self._hook and not self.num_tried:
            self.num_tried += 1
            try:
                self._attempt(self, *args)
            except Exception:
                if not self._hides:
                    raise

    @hookimpl
    def admission(self, step: Step) -> Any:
        self._try("admission", step)
        yield step.prefilling
        for request in step.waiting:
            yield request
            if not request.num_scheduled:
                break
            self._try("within admission", step)
        if not step.batch:
            yield step.running

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        self._try("chunking", step, request)
        return min(request.num_pending, step.budget)

    @hookimpl
    def arrival(self, request: Request) -> bool | Refusal:
        self._try("arrival", request)
        return True

    @hookimpl
    def predict_output(self, request: Request) -> int | None:
        self._try("predict_output", request)
        return None

    @hookimpl
    def step_finished(self, step: Step, result: StepResult) -> None:
        self._try("step_finished", step, result)

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        self._try("request_arrived", request)


def a_scheduler(policy: Policy, **settings: Any) -> Scheduler:
    return Scheduler(policy, num_blocks=64, block_size=4, strict=True, **settings)


def drive(scheduler: Scheduler) -> None:
    for name in "ab":
        scheduler.add(make_request(name, 6, 3, extra={"list": [1]}))
    while scheduler.has_unfinished():
        batch = scheduler.schedule()
        scheduler.update(batch, [7] * sum(batch.samples.tolist()))


WRITES: list[tuple[str, Callable[..., Any], str]] = [
    ("admission", lambda p, step: setattr(step, "budget", 9), "set step.budget to 9"),
    ("admission", lambda p, step: step.batch.append(step.waiting[0]), r"called step.batch.append\(\)"),
    ("within admission", lambda p, step: step.batch.clear(), r"called step.batch.clear\(\)"),
    ("within admission", lambda p, step: step.batch.__setitem__(0, None), r"wrote to step.batch\[0\]"),
    ("within admission", lambda p, step: step.batch.__delitem__(0), r"deleted step.batch\[0\]"),
    ("within admission", lambda p, step: step.batch.__iadd__([1]), "extended step.batch"),
    ("admission", lambda p, step: step.preempted.append(1), r"called step.preempted.append\(\)"),
    ("admission", lambda p, step: step.events.append({}), r"called step.events.append\(\)"),
    ("admission", lambda p, step: setattr(step.limits, "max_num_seqs", 9), "set step.limits.max_num_seqs to 9"),
    ("admission", lambda p, step: step._state.queue.clear(), "reached for step._state, which is private"),
    ("admission", lambda p, step: step.waiting._order.clear(), "reached for step.waiting._order, which is private"),
    ("admission", lambda p, step: delattr(step, "batch"), "deleted step.batch"),
    ("admission", lambda p, step: setattr(step.waiting[0], "priority", 9), "set request 'a'.priority to 9"),
    ("admission", lambda p, step: step.waiting[0]._known.append(1), "reached for request 'a'._known"),
    ("admission", lambda p, step: setattr(step.waiting[0], "_state", 4), "set request 'a'._state to 4"),
    ("admission", lambda p, step: step.waiting[0].block_table.append(1), r"called request 'a'.block_table.append\(\)"),
    ("admission", lambda p, step: step.waiting[0].extra.__setitem__("x", 1), r"wrote to request 'a'.extra\['x'\]"),
    ("admission", lambda p, step: step.waiting[0].extra.__delitem__("list"), r"deleted request 'a'.extra\['list'\]"),
    ("admission", lambda p, step: step.waiting[0].extra["list"].append(2), r"'a'.extra\['list'\].append\(\)"),
    ("admission", lambda p, step: step.waiting[0].prompt_token_ids._tokens.append(1), "prompt_token_ids._tokens"),
    ("chunking", lambda p, step, request: setattr(request, "num_computed", 9), "set request 'a'.num_computed to 9"),
    ("chunking", lambda p, step, request: setattr(p.params, "size", 9), "set params.size to 9"),
    ("chunking", lambda p, step, request: p.params.numbers.append(2), "changed the parameters of 'attempts'"),
    ("chunking", lambda p, step, request: setattr(p, "params", NumbersParams(size=5)), "changed the parameters of"),
    ("arrival", lambda p, request: setattr(request, "max_tokens", 1), "set request 'a'.max_tokens to 1"),
    ("predict_output", lambda p, request: setattr(request, "weight", 2), "set request 'a'.weight to 2"),
]


@pytest.mark.parametrize(("hook", "attempt", "said"), WRITES, ids=[said for _, _, said in WRITES])
@pytest.mark.parametrize("hides", [False, True], ids=["", "and hides it"])
def test_a_write_is_an_error_that_says_who_and_what(
    hook: str, attempt: Callable[..., Any], said: str, hides: bool
) -> None:
    if hides and "params.size" in said:
        pytest.skip("parameters are frozen: that changed nothing")
    scheduler = a_scheduler(policy := Attempts(hook, attempt, hides=hides))
    with pytest.raises(PolicyError, match=f"it .*{said}.*read-only") as caught:
        drive(scheduler)
    assert caught.value.rule == "write" and caught.value.plugin == "attempts"
    assert caught.value.hook == hook.removeprefix("within ") and policy.num_tried == 1
    assert isinstance(caught.value.value, str)
    assert policy.params == NumbersParams()
    for request in (*scheduler.waiting, *scheduler.running):
        scheduler.abort(request.request_id)
    drive(scheduler)  # it is whole, and goes on
    check_whole(scheduler)


OBSERVED: list[tuple[str, Callable[..., Any], str]] = [
    ("step_finished", lambda p, step, result: result.token_ids.clear(), r"called result.token_ids.clear\(\)"),
    ("step_finished", lambda p, step, result: setattr(result, "elapsed_ns", 1), "set result.elapsed_ns to 1"),
    ("step_finished", lambda p, step, result: step.sampled.append(1), r"called step.sampled.append\(\)"),
    ("request_arrived", lambda p, request: setattr(request, "priority", -9), "set request 'a'.priority to -9"),
]


@pytest.mark.parametrize(("hook", "attempt", "said"), OBSERVED, ids=[said for _, _, said in OBSERVED])
def test_a_write_of_an_observer_is_raised_with_the_next_step(hook: str, attempt: Callable[..., Any], said: str) -> None:
    scheduler = a_scheduler(Attempts(hook, attempt))
    with pytest.raises(PolicyError, match=said) as caught:
        drive(scheduler)
    assert (caught.value.rule, caught.value.hook, caught.value.plugin) == ("write", hook, "attempts")
    while scheduler.has_unfinished():  # nothing was lost, and it is told once
        batch = scheduler.schedule()
        scheduler.update(batch, [7] * sum(batch.samples.tolist()))
    assert scheduler.num_observer_faults == 1


def test_with_fallback_a_write_is_counted_and_the_default_policy_goes_on() -> None:
    for hook, attempt, _ in (*WRITES[:3], *OBSERVED[:1]):
        scheduler = a_scheduler(Attempts(hook, attempt), on_policy_error="fallback")
        drive(scheduler)
        assert scheduler.num_policy_faults + scheduler.num_observer_faults == 1


def test_fast_mode_shows_the_objects_themselves() -> None:
    seen: list[Any] = []

    class Looks(Policy):
        @hookimpl
        def step_started(self, step: Step) -> None:
            seen.append((type(step), type(step.waiting), type(step.limits)))

    for strict in (False, True):
        drive(Scheduler(Looks(), num_blocks=64, block_size=4, strict=strict))
    assert seen[0] == (Step, QueueView, Limits)
    assert not {*seen[-1]} & {*seen[0]}


def test_images_are_equal_to_what_they_show() -> None:
    class Looks(PrefillFirst):
        def __init__(self) -> None:
            super().__init__()
            self.known: dict[Request, int] = {}
            self.num_checks = 0

        @hookimpl
        def request_arrived(self, request: Request) -> None:
            self.known[request] = len(self.known)

        @hookimpl
        def step_started(self, step: Step) -> None:
            for place, request in enumerate(step.waiting):
                assert isinstance(request, Request) and isinstance(step, Step)
                assert self.known[request] == place and any(request is r for r in self.known)
                assert request in step.waiting and request not in step.batch
                assert step.waiting[place] is request and step.waiting[-1] is next(reversed(step.waiting))
                assert request.prompt_token_ids[:2] == list(request.prompt_token_ids)[:2]
                assert request.prompt_token_ids == list(request.prompt_token_ids)
                assert request.extra["list"][0] == 1 and dict(request.extra) == {"list": [1]} == request.extra
                assert len(request.extra) == 1 and request.extra.get("none") is None
                assert step.blocks_needed(request, 6) == 2 and step.num_cached(request) == 0
            assert step.waiting == list(step.waiting) and step.waiting != [1]
            assert step.batch + [1] == [1] == [1] + step.batch  # noqa: RUF005
            assert step.decodes is step.running and step.preempted == []
            assert bool(step.evictable) == bool(step.running) == bool(len(step.evictable))
            assert step.limits == Limits() and hash(step.limits) == hash(Limits())
            assert repr(step.waiting) == f"[{', '.join(r.request_id for r in step.waiting)}]"
            assert 0 <= step.rng.random() < 1
            self.num_checks += 1

    looks = Looks()
    drive(scheduler := a_scheduler(looks))
    assert scheduler.num_observer_faults == 0, scheduler.step.events
    assert looks.num_checks == 3


def test_images_of_requests_that_are_gone_are_dropped() -> None:
    scheduler = a_scheduler(PrefillFirst())
    for k in range(400):
        scheduler.add(make_request(f"r{k}", 2, 1))
        scheduler.update(scheduler.schedule(), [7])
    glass = scheduler._hooks.admission.__closure__[-1].cell_contents  # type: ignore[union-attr,attr-defined]
    assert len(glass._requests) < 140


def test_an_observer_beside_the_policy_is_trusted() -> None:
    class Notes:
        @hookimpl
        def step_finished(self, step: Step) -> None:
            step.events.append({"kind": "note"})

    engine, tape = make_engine(plugins=[Notes()], strict=True)
    play(engine, [make_request("a", 4, 3)])
    assert engine.scheduler.num_observer_faults == 0 and len(tape.events("note")) == 3


def test_strict_by_config_changes_no_token() -> None:
    engine = Engine(EngineConfig(strict=True, policy="vtc"), backend=FakeBackend(num_blocks=16))
    requests = [make_request(str(i), 8, 24) for i in range(4)]
    for request in requests:
        engine.add_request(request)
    while engine.has_unfinished():
        engine.step()
    for request in requests:
        assert request.num_output_tokens == 24 and request.output_token_ids == expected_of(request)
