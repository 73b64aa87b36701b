"""The scheduler used alone: its calls, the order of its queues, and what observers are told when."""

from __future__ import annotations

from typing import Any

import pytest

from batchwright import (
    BatchwrightError,
    ConfigError,
    Limits,
    Policy,
    Request,
    Scheduler,
    Step,
    UnknownRequestError,
    hookimpl,
)
from toolbox import check_empty, check_whole, drain, expected_of, make_engine, make_request, play


def _new(**settings: Any) -> Scheduler:
    return Scheduler(**{"num_blocks": 16, "block_size": 4, **settings})


def test_ten_lines_without_a_backend() -> None:
    scheduler = _new()
    requests = [make_request(str(i), 8, 24) for i in range(4)]
    for request in requests:
        scheduler.add(request)
    steps = 0
    while scheduler.has_unfinished():
        batch = scheduler.schedule(now=steps * 10)
        step = scheduler.update(batch, [7] * int(batch.samples.sum()), now=steps * 10 + 9)
        assert (step.now, step.end) == (steps * 10, steps * 10 + 9)
        steps += 1
    assert steps == 39
    assert all(r.output_token_ids == [7] * 24 for r in requests)
    check_empty(scheduler)


def test_times_of_a_request() -> None:
    scheduler = _new(limits=Limits(max_num_batched_tokens=8))
    request = make_request("a", 12, 3)
    scheduler.add(request)
    assert (request.first_scheduled_ns, request.first_token_ns, request.last_token_ns) == (None, None, None)
    for number in range(4):
        batch = scheduler.schedule(now=100 * number)
        scheduler.update(batch, [1] * int(batch.samples.sum()), now=100 * number + 50)
    assert (request.first_scheduled_ns, request.first_token_ns, request.last_token_ns) == (0, 150, 350)


def test_calls_out_of_order() -> None:
    scheduler = _new()
    empty = scheduler.schedule()
    assert len(empty) == 0
    scheduler.update(empty, ())  # nobody was there: nothing to take, and no fault
    scheduler.add(make_request("a", 4, 3))
    batch = scheduler.schedule()
    with pytest.raises(BatchwrightError, match=r"schedule\(\) was called again before update\(\)"):
        scheduler.schedule()
    with pytest.raises(BatchwrightError, match=r"swap_policy\(\) between schedule\(\) and update\(\)"):
        scheduler.swap_policy("stall_free")
    with pytest.raises(BatchwrightError, match=r"update\(\) takes the batch of the last schedule\(\)"):
        scheduler.update(empty, ())
    with pytest.raises(BatchwrightError, match=r"fail\(\) takes the batch of the last schedule\(\)"):
        scheduler.fail(empty, "no", retry=True)
    scheduler.update(batch, [5])
    for late in (lambda: scheduler.update(batch, [5]), lambda: scheduler.fail(batch, "no", retry=False)):
        with pytest.raises(BatchwrightError, match="the last schedule"):
            late()
    check_whole(scheduler)


@pytest.mark.parametrize("tokens", [[], [1, 2], [1.5], ["a"], [None], [-1], [2**31], [1000]])
def test_tokens_that_are_none_touch_nothing(tokens: list[Any]) -> None:
    scheduler = _new(vocab_size=1000)
    request = make_request("a", 4, 3)
    scheduler.add(request)
    for _ in range(2):  # a prompt, then a decode: two ways through the core
        batch = scheduler.schedule()
        before = (request.num_tokens, request.num_computed)
        with pytest.raises(BatchwrightError, match="the backend gave"):
            scheduler.update(batch, tokens)
        assert (request.num_tokens, request.num_computed) == before
        scheduler.update(batch, [5])


def test_get_and_abort() -> None:
    scheduler = _new()
    request = make_request("a", 4, 3)
    scheduler.add(request)
    assert scheduler.get("a") is request and scheduler.get("b") is None
    assert scheduler.abort("a") is request
    assert request.is_finished and request.finish_reason == "abort" and scheduler.get("a") is None
    with pytest.raises(UnknownRequestError) as caught:
        scheduler.abort("a")
    assert isinstance(caught.value, KeyError) and str(caught.value).startswith("unknown request 'a'")


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="on_policy_error must be 'raise' or 'fallback', not 'ignore'"):
        _new(on_policy_error="ignore")
    with pytest.raises(ConfigError, match=r"unknown policy 'prefil_first'; did you mean 'prefill_first'\?"):
        _new(policy="prefil_first")


def test_end_of_sequence_and_stop_tokens_end_a_request_in_batch_order() -> None:
    scheduler = _new(eos_token_ids=[9])
    ended: list[tuple[str, str]] = []

    class Ended:
        @hookimpl
        def request_finished(self, request: Request, reason: str) -> None:
            ended.append((request.request_id, reason))

    scheduler.register(Ended())
    given = [
        make_request("length", 4, 2),
        make_request("eos", 4, 9, ignore_eos=False),
        make_request("ignores", 4, 3),
        make_request("stop", 4, 9, stop_token_ids=[8]),
    ]
    for request in given:
        scheduler.add(request)
    scheduler.update(scheduler.schedule(), [1, 1, 1, 1])
    step = scheduler.update(scheduler.schedule(), [1, 9, 9, 8])
    assert ended == [("length", "length"), ("eos", "stop"), ("stop", "stop")]
    assert [r.request_id for r in step.finished] == ["length", "eos", "stop"]
    assert given[1].output_token_ids == [1, 9]  # the end-of-sequence token is a token of the output
    scheduler.update(scheduler.schedule(), [9])
    assert ended[-1] == ("ignores", "length")


class Everything:
    """Writes down all that observers are told, and what the queues looked like then."""

    name = "everything"

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    @hookimpl
    def step_started(self, step: Step) -> None:
        self.told.append(("started", step.index, [r.request_id for r in step.waiting]))

    @hookimpl
    def step_finished(self, step: Step, result: Any) -> None:
        self.told.append(("ended", step.index, [(r.request_id, r.num_scheduled) for r in step.batch], result.token_ids))

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        self.told.append(("arrived", request.request_id, request.arrival_index, request.is_waiting))

    @hookimpl
    def request_admitted(self, step: Step, request: Request) -> None:
        self.told.append(("admitted", request.request_id, step.index))

    @hookimpl
    def request_preempted(self, step: Step, victim: Request, request: Request | None) -> None:
        self.told.append(("preempted", victim.request_id, request and request.request_id, victim.block_table[:]))

    @hookimpl
    def request_finished(self, request: Request, reason: str) -> None:
        self.told.append(("finished", request.request_id, reason, request.num_scheduled, request.block_table[:]))


def test_what_observers_are_told_and_when() -> None:
    scheduler, observer = _new(), Everything()
    scheduler.register(observer)
    for i in "ab":
        scheduler.add(make_request(i, 4, 2))
    scheduler.update(scheduler.schedule(), [5, 6])
    scheduler.abort("b")
    scheduler.update(scheduler.schedule(), [7])
    assert observer.told == [
        ("arrived", "a", 0, True),
        ("arrived", "b", 1, True),
        ("started", 0, ["a", "b"]),
        ("admitted", "a", 0),
        ("admitted", "b", 0),
        ("ended", 0, [("a", 4), ("b", 4)], [5, 6]),
        ("finished", "b", "abort", 0, []),
        ("started", 1, []),
        ("finished", "a", "length", 1, []),
        ("ended", 1, [("a", 1)], [7]),
    ]


class EvictsFromTheBatch(Policy):
    """Admits who waits, then lets the last of the queue evict everybody before it."""

    @hookimpl
    def admission(self, step: Step) -> Any:
        yield list(step.waiting)
        yield step.running

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Any:
        return step.batch[0]


def test_one_admitted_and_evicted_in_the_same_step_is_told_so_in_that_order() -> None:
    scheduler, observer = _new(policy=EvictsFromTheBatch(), num_blocks=4), Everything()
    scheduler.register(observer)
    for i, length in enumerate([8, 7, 6]):
        scheduler.add(make_request(str(i), length, 2))
    batch = scheduler.schedule()
    check_moves = [(t[0], t[1]) for t in observer.told if t[0] in ("admitted", "preempted")]
    assert check_moves == [("admitted", "0"), ("preempted", "0"), ("admitted", "1"), ("admitted", "2")]
    assert [r.request_id for r in scheduler.waiting] == ["0"]
    assert [r.request_id for r in scheduler.running] == ["1", "2"]
    assert batch.request_ids == ["1", "2"]
    assert scheduler.get("0").num_preemptions == 1  # type: ignore[union-attr]


def test_victims_wait_at_the_head_the_last_evicted_first() -> None:
    engine, tape = make_engine(P=16)
    play(engine, [make_request(str(i), 8, 24) for i in range(4)] + [make_request("late", 5, 1)])
    for step in tape.steps:
        if step.preempted:
            assert step.waiting[: len(step.preempted)] == step.preempted[::-1]


@pytest.mark.parametrize("hook", ["request_preempted", "request_admitted"])
@pytest.mark.parametrize("what", ["abort", "add"])
def test_queues_are_frozen_while_a_step_is_built(hook: str, what: str) -> None:
    messages: list[str] = []

    class Meddles:
        name = "meddles"

        def act(self, step: Step, request: Request) -> None:
            try:
                engine.abort(request.request_id) if what == "abort" else engine.add_request(make_request("new", 4, 4))
            except BatchwrightError as error:
                messages.append(str(error))
                raise

    def told(self: Meddles, step: Step, request: Request) -> None:
        self.act(step, request)

    setattr(Meddles, hook, hookimpl(told))
    engine, tape = make_engine(P=16, plugins=[Meddles()])
    play(engine, [make_request(str(i), 8, 24) for i in range(4)])
    assert messages and all("while" in m for m in messages)
    assert engine.scheduler.num_observer_faults == len(messages)
    assert set(tape.reasons.values()) == {"length"} and len(tape.reasons) == 4
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


@pytest.mark.parametrize("hook", ["step_started", "step_finished", "request_finished"])
def test_observers_may_abort_and_add_between_steps(hook: str) -> None:
    class Replaces:
        """For every request that is there at the third step or ends, another comes; the last resident is aborted."""

        name = "replaces"
        num_added = 0

        def act(self) -> None:
            if self.num_added < 3 and engine.scheduler.running:
                engine.abort(engine.scheduler.running[-1].request_id)
                self.num_added += 1
                engine.add_request(make_request(f"new{self.num_added}", 5, 4))

    def with_step(self: Replaces, step: Step) -> None:
        self.act()

    def with_request(self: Replaces, request: Request) -> None:
        if request.finish_reason != "abort":
            self.act()

    setattr(Replaces, hook, hookimpl(with_request if hook == "request_finished" else with_step))
    plugin = Replaces()
    engine, tape = make_engine(P=16, plugins=[plugin])
    play(engine, [make_request(str(i), 8, 4 + i) for i in range(4)])
    assert engine.scheduler.num_observer_faults == 0
    assert plugin.num_added == 3
    assert sorted(tape.reasons.values()) == ["abort"] * 3 + ["length"] * 4
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)


@pytest.mark.parametrize("policy", ["prefill_first", "vllm_v1", "stall_free"])
def test_the_last_request_aborted_as_a_step_starts_is_no_fault_of_the_policy(policy: str) -> None:
    class Deadline:
        name = "deadline"

        @hookimpl
        def step_started(self, step: Step) -> None:
            for request in [*step.running, *step.waiting]:
                if step.now_s >= (request.deadline_s or 0):
                    engine.abort(request.request_id)

    engine, tape = make_engine(policy, plugins=[Deadline()], settings={"step_ns": 1_000_000_000})
    engine.add_request(make_request("a", 4, 50, deadline_s=3.0))
    drain(engine)
    assert tape.reasons == {"a": "abort"}
    assert tape.requests["a"].num_output_tokens == 3
    engine.add_request(make_request("b", 4, 2, deadline_s=100.0))
    drain(engine)
    assert tape.reasons["b"] == "length"


def test_a_fault_in_an_observer_is_counted_and_undoes_nothing() -> None:
    class Faulty:
        name = "faulty"

        def _fail(self, hook: str) -> None:
            raise ValueError(hook)

        @hookimpl
        def request_arrived(self) -> None:
            self._fail("arrived")

        @hookimpl
        def request_admitted(self) -> None:
            self._fail("admitted")

        @hookimpl
        def request_preempted(self) -> None:
            self._fail("preempted")

        @hookimpl
        def request_finished(self) -> None:
            self._fail("finished")

        @hookimpl
        def step_started(self) -> None:
            self._fail("started")

        @hookimpl
        def step_finished(self) -> None:
            self._fail("ended")

        @hookimpl
        def policy_attached(self) -> None:
            self._fail("attached")

    def run(plugins: list[object]) -> Any:
        engine, tape = make_engine(P=16, plugins=plugins)
        play(engine, [make_request(str(i), 8, 24) for i in range(4)])
        found = [(e["plugin"], e["hook"]) for e in tape.events("observer_fault")]
        for step in tape.steps:
            step.events.clear()
        return tape.steps, found, engine.scheduler.num_observer_faults

    steps, found, count = run([Faulty()])
    assert steps == run([])[0]
    # One attached, four arrived, six admitted (two of them again), two preempted, four finished, 39 steps.
    assert count == 1 + 4 + 6 + 2 + 4 + 39 * 2
    assert {plugin for plugin, _ in found} == {"faulty"}
    assert len(found) == count - 1  # what the last step_finished raised has no later step to be told in
    assert {hook for _, hook in found} == {
        "policy_attached",
        "request_arrived",
        "request_admitted",
        "request_preempted",
        "request_finished",
        "step_started",
        "step_finished",
    }
