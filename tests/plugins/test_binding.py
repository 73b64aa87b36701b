"""How hooks become what the scheduler calls: directly, in pluggy's order, through wrappers, from several policies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from batchwright import HOLD, ConfigError, PluginError, Policy, PolicyError, Request, Scheduler, Step, hookimpl
from batchwright.active_policy import ActivePolicy
from batchwright.plugins import Plugins, load_plugins
from batchwright.ranked import Ranked
from batchwright.resolve import resolve_policy
from faulty import PrefillFirst
from toolbox import drain, expected_of, make_engine, make_request, play


def _bound(engine: Any) -> Any:
    return engine.scheduler._hooks


def test_a_single_implementation_is_called_directly() -> None:
    policy = PrefillFirst()
    engine, _ = make_engine(policy)
    hooks = _bound(engine)
    for hook in ("admission", "chunking", "preemption"):
        method = getattr(hooks, hook)
        assert method == getattr(policy, hook) and method.__self__ is policy
    assert hooks.reservation is None and hooks.arrival is None  # the core answers
    assert hooks.who("chunking") == "prefill_first"


def test_without_a_word_it_is_the_default_policy() -> None:
    assert resolve_policy(None).name == "prefill_first"


def test_observers_are_called_directly_too() -> None:
    class Observer:
        name = "observer"

        @hookimpl
        def request_admitted(self, step: Step, request: Request) -> None:
            """Takes both."""

    observer = Observer()
    engine, _ = make_engine(plugins=[observer])
    assert any(call == observer.request_admitted for call, *_ in _bound(engine).request_admitted)


class Says:
    """A plugin that answers ``chunking`` as told, and writes down that it was asked."""

    def __init__(self, name: str, answer: int | None, asked: list[str]) -> None:
        self.name = name
        self._answer = answer
        self._asked = asked

    @hookimpl
    def chunking(self, request: Request) -> int | None:
        self._asked.append(self.name)
        return None if self._answer is None else min(self._answer, request.num_pending)


def test_several_are_asked_in_pluggys_order_until_one_answers() -> None:
    asked: list[str] = []
    plugins = [Says("one", 2, asked), Says("two", None, asked), Says("three", None, asked)]
    engine, tape = make_engine(plugins=plugins)
    engine.add_request(make_request("a", 9, 1))
    engine.step()
    assert asked == ["three", "two", "one"]  # registered last, asked first; the policy is never asked
    assert tape.steps[0].batch == [("a", 2)]
    assert _bound(engine).who("chunking") == "one"


def test_tryfirst_and_trylast() -> None:
    asked: list[str] = []

    class Early(Says):
        @hookimpl(tryfirst=True)
        def chunking(self, request: Request) -> int | None:
            return super().chunking(request)

    class Late(Says):
        @hookimpl(trylast=True)
        def chunking(self, request: Request) -> int | None:
            return super().chunking(request)

    engine, _ = make_engine(plugins=[Early("early", None, asked), Says("plain", None, asked), Late("late", 1, asked)])
    engine.add_request(make_request("a", 9, 1))
    engine.step()
    assert asked == ["early", "plain"]  # then the policy answers, and "late" is not asked


def test_none_falls_through_to_the_policy_and_then_to_the_core() -> None:
    asked: list[str] = []

    class Declines(PrefillFirst):
        @hookimpl
        def chunking(self, step: Step, request: Request) -> int | None:
            asked.append("policy")
            return None

        @hookimpl
        def admission(self, step: Step) -> Any:
            return None

        @hookimpl
        def preemption(self, step: Step, request: Request) -> Any:
            return None

        @hookimpl
        def reservation(self, step: Step, request: Request) -> Any:
            return None

        @hookimpl
        def arrival(self, request: Request) -> Any:
            return None

    engine, tape = make_engine(Declines(), P=16, plugins=[Says("plugin", None, asked)])
    play(engine, [make_request(str(i), 8, 24) for i in range(4)])
    assert asked[:2] == ["plugin", "policy"]
    assert tape.preemptions() == [(9, "3"), (13, "2")]  # as prefill_first
    assert len(tape.reasons) == 4


class Filters:
    """Wraps admission: leaves requests of a client out, as a wrapper of the iterable."""

    name = "filters"

    def __init__(self, client_id: str, until: int) -> None:
        self._client_id, self._until = client_id, until

    @hookimpl(wrapper=True)
    def admission(self, step: Step) -> Any:
        offers = yield
        return self._kept(step, offers)

    def _kept(self, step: Step, offers: Any) -> Iterator[Request]:
        for offer in offers:
            for request in [offer] if isinstance(offer, Request) else offer:
                if request.client_id != self._client_id or step.index >= self._until:
                    yield request


class Reverses:
    """Wraps admission: the waiting in the reverse order."""

    name = "reverses"

    @hookimpl(wrapper=True)
    def admission(self, step: Step) -> Any:
        yield
        return [step.running, *reversed(step.waiting)]


@pytest.mark.parametrize("policy", ["prefill_first", "vllm_v1", "stall_free", Policy])
def test_a_wrapper_filters(policy: Any) -> None:
    engine, tape = make_engine(policy() if isinstance(policy, type) else policy, plugins=[Filters("slow", until=3)])
    play(engine, [make_request("a", 4, 9), make_request("b", 4, 2, client_id="slow")])
    assert tape.token_steps("a")[0] == 0
    assert tape.token_steps("b")[0] == 3


def test_a_wrapper_reorders() -> None:
    engine, tape = make_engine(plugins=[Reverses()])
    play(engine, [make_request(i, 4, 2) for i in "abc"])
    assert [i for i, _ in tape.steps[0].batch] == ["c", "b", "a"]


def test_wrappers_wrap_each_other() -> None:
    engine, tape = make_engine(plugins=[Reverses(), Filters("slow", until=10)])
    play(
        engine,
        [make_request(i, 4, 2, client_id="slow" if i == "b" else None) for i in "abc"] + [make_request("z", 4, 12)],
    )
    assert [i for i, _ in tape.steps[0].batch] == ["z", "c", "a"]
    assert tape.token_steps("b")[0] == 10


def test_an_old_style_wrapper_works_too() -> None:
    seen: list[Any] = []

    class Old:
        name = "old"

        @hookimpl(hookwrapper=True)
        def chunking(self, step: Step, request: Request) -> Any:
            outcome = yield
            seen.append(outcome.get_result())
            outcome.force_result(min(3, outcome.get_result()))

    engine, tape = make_engine(plugins=[Old()])
    play(engine, [make_request("a", 8, 1)])
    assert [s.batch for s in tape.steps] == [[("a", 3)], [("a", 3)], [("a", 2)]]
    assert seen == [8, 5, 2]


def test_a_fault_of_a_wrapper_names_it() -> None:
    class Breaks:
        name = "breaks"

        @hookimpl(wrapper=True)
        def admission(self, step: Step) -> Any:
            yield
            raise ValueError("no idea")

    engine, _ = make_engine(plugins=[Breaks()])
    engine.add_request(make_request("a", 4, 2))
    with pytest.raises(PolicyError, match="raised ValueError: no idea") as caught:
        engine.step()
    assert "breaks" in caught.value.plugin


class Counts(Policy):
    """Writes down what it is asked and told, under a name."""

    def __init__(self, log: list[tuple[str, str]], name: str) -> None:
        super().__init__()
        self._log, self._name = log, name

    def _note(self, hook: str) -> None:
        self._log.append((self._name, hook))

    @hookimpl
    def admission(self, step: Step) -> Any:
        self._note("admission")
        yield step.running
        yield list(step.waiting)

    @hookimpl
    def chunking(self, step: Step, request: Request) -> int:
        self._note("chunking")
        return min(request.num_pending, step.budget)

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Any:
        self._note("preemption")
        return HOLD if request.is_waiting else request

    @hookimpl
    def step_started(self) -> None:
        self._note("step_started")

    @hookimpl
    def policy_attached(self) -> None:
        self._note("policy_attached")


def test_different_policies_in_slots_and_observers_of_all() -> None:
    log: list[tuple[str, str]] = []
    spec = {"admission": Counts(log, "A"), "chunking": Counts(log, "B")}
    engine, tape = make_engine(spec)  # type: ignore[arg-type]
    play(engine, [make_request("a", 9, 2)])
    assert set(log) == {
        ("A", "policy_attached"),
        ("B", "policy_attached"),
        ("A", "step_started"),
        ("B", "step_started"),
        ("A", "admission"),
        ("B", "chunking"),
    }
    assert tape.reasons == {"a": "length"}


def test_the_same_words_in_two_slots_are_one_object() -> None:
    active = resolve_policy(
        {
            "admission": "stall_free:chunk_size=9",
            "chunking": {"use": "stall_free", "chunk_size": 9},
            "preemption": "stall_free:chunk_size=10",
            "reservation": "stall_free",
        }
    )
    slots = active.slots
    assert slots["admission"] is slots["chunking"]
    assert slots["admission"] is not slots["preemption"] is not slots["reservation"]
    assert [p.params.chunk_size for p in slots.values()] == [9, 9, 512, 10]
    assert active.name == ("admission=stall_free chunking=stall_free reservation=stall_free preemption=stall_free")
    assert len(active.parts) == 3


def test_what_a_composite_declares() -> None:
    class Whole(Policy):
        chunks = False
        stationary = True
        budget_counts_decodes = True

    class Other(Policy):
        uses_predict = True
        budget_counts_decodes = False

    def of(**slots: Policy) -> ActivePolicy:
        return ActivePolicy({hook: (type(p).__name__, p) for hook, p in slots.items()})

    composite = of(admission=Whole(), chunking=Other())
    assert (composite.chunks, composite.budget_counts_decodes) == (True, True)
    assert (composite.stationary, composite.uses_predict) == (False, True)
    composite = of(admission=Other(), chunking=Whole())
    assert (composite.chunks, composite.budget_counts_decodes) == (False, False)
    alone = of(admission=Whole())
    assert (alone.chunks, alone.stationary, alone.uses_predict) == (True, True, False)


def test_a_composite_is_steady_as_its_admission_is_and_evicts_as_either_does() -> None:
    class Calm(PrefillFirst):
        """Inherits the declaration, and decides nothing else."""

    class Own(PrefillFirst):
        """Decides for itself, and declares nothing."""

        @hookimpl
        def admission(self, step: Step) -> Any:
            return super().admission(step)

    class Evicts(Policy):
        preemptive = True

    def of(**slots: Policy) -> ActivePolicy:
        return ActivePolicy({hook: (type(p).__name__, p) for hook, p in slots.items()})

    assert of(admission=Calm(), chunking=Policy()).steady
    assert not of(admission=Own()).steady
    assert not of(admission=Calm(decode_interleave=2)).steady
    assert not of(preemption=Calm()).steady
    assert [of(admission=Calm(), **{hook: Evicts()}).preemptive for hook in ("preemption", "chunking")] == [True, False]


class Turns:
    """Decodes in turns: one of them is left out."""

    def residents(self, step: Step) -> Iterator[Any]:
        yield list(step.decodes)[step.index % 2 :: 2]


def test_whoever_offers_residents_room_in_another_way_is_not_steady_unless_it_says_so() -> None:
    class Own(Ranked):
        residents = Turns.residents

    class Mixed(Turns, Ranked):
        pass

    class Calm(Own):
        steady = True

    assert [ActivePolicy.of(kind(), "own").steady for kind in (Ranked, Own, Mixed, Calm)] == [True, False, False, True]


def test_a_composite_from_config_runs() -> None:
    spec = {"admission": "vllm_v1", "chunking": {"use": "stall_free", "chunk_size": 6}, "preemption": "prefill_first"}
    engine, tape = make_engine(spec, P=16)
    play(engine, [make_request(str(i), 8, 24) for i in range(4)])
    assert max(n for s in tape.steps for _, n in s.batch) == 6
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)
    assert engine.policy_name == "admission=vllm_v1 chunking=stall_free preemption=prefill_first"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"admision": "vllm_v1"}, "unknown decision 'admision'; did you mean 'admission'"),
        ({"admission": "vllm"}, "unknown policy 'vllm'"),
        ({"use": "stall_free", "chunk_sise": 4}, "unknown parameter 'chunk_sise'; did you mean 'chunk_size'"),
        ("stall_free:chunk_size=0", "parameter 'chunk_size' is 0: Input should be greater than or equal to 1"),
        ("stall_free:chunk_size", "'chunk_size' is not of the form param=value"),
        ({"use": 5}, "use must name a policy, not 5"),
        ({"admission": {"chunk_size": 5}}, "use"),
        ({"admission": 5}, "admission"),
        ({"admission": None}, "admission"),
        ({}, "empty"),
    ],
)
def test_specs_that_cannot_be(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve_policy(spec)


def test_parameters_without_any() -> None:
    with pytest.raises(ConfigError, match="unknown parameter 'size'; it takes no parameters"):
        Policy(size=4)


def test_each_engine_has_its_own_manager() -> None:
    log: list[tuple[str, str]] = []

    class Observer:
        name = "observer"

        @hookimpl
        def step_started(self, step: Step) -> None:
            log.append(("observer", str(step.index)))

    first, _ = make_engine(plugins=[Observer()])
    second, _ = make_engine("stall_free")
    for engine in (first, second):
        engine.add_request(make_request("a", 4, 3))
        drain(engine)
    assert len(log) == 3
    assert _bound(first)._manager is not _bound(second)._manager
    assert _bound(first).admission.__self__ is not _bound(second).admission.__self__


def test_one_plugin_object_may_serve_two_engines() -> None:
    class Observer:
        name = "observer"
        num_steps = 0

        @hookimpl
        def step_started(self) -> None:
            self.num_steps += 1

    observer = Observer()
    for policy in ("prefill_first", "vllm_v1"):
        engine, _ = make_engine(policy, plugins=[observer])
        play(engine, [make_request("a", 4, 3)])
    assert observer.num_steps == 6


def test_hooks_are_bound_anew_when_a_plugin_comes() -> None:
    asked: list[str] = []
    engine, tape = make_engine()
    engine.add_request(make_request("a", 9, 1))
    engine.scheduler.register(Says("late", 2, asked))
    drain(engine)
    assert tape.steps[0].batch == [("a", 2)] and asked


def test_the_same_object_twice() -> None:
    engine, _ = make_engine()
    plugin = Says("one", None, [])
    engine.scheduler.register(plugin)
    with pytest.raises(PluginError, match="plugin 'other' is registered twice"):
        engine.scheduler.register(plugin, "other")


def test_a_plugin_with_the_name_of_the_policy() -> None:
    engine, _ = make_engine("stall_free")
    with pytest.raises(PluginError, match="a plugin and a policy are both named 'stall_free'"):
        engine.scheduler.register(Says("stall_free", None, []))


def test_a_plugin_given_to_an_engine_is_checked_as_well() -> None:
    class Misspelt:
        name = "misspelt"

        @hookimpl
        def step_start(self) -> None:
            """Not a hook."""

    with pytest.raises(PluginError, match=r"plugin 'misspelt' .*hook 'step_start'.*did you mean 'step_started'"):
        make_engine(plugins=[Misspelt()])


def test_a_policy_need_not_call_the_base_class() -> None:
    class Careless(PrefillFirst):
        def __init__(self) -> None:
            self.params = PrefillFirst.Params()
            self.budget_counts_decodes = False
            self._prompt_steps = 0

    class Bare(Policy):
        def __init__(self) -> None:
            self.state = 0

    for policy in (Careless(), Bare()):
        engine, tape = make_engine(policy)
        play(engine, [make_request("a", 4, 3)])
        assert tape.reasons == {"a": "length"}


def test_a_scheduler_takes_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = load_plugins()
    assert isinstance(installed, Plugins)
    scheduler = Scheduler({"use": "stall_free", "chunk_size": 4}, num_blocks=8, block_size=4)
    assert scheduler.policy.name == "stall_free"


# Wrong kinds of objects ------------------------------------------------------------------------------------------


def test_a_policy_may_be_a_dataclass() -> None:
    @dataclass
    class Sized(Policy):
        size: int = 3

        @hookimpl
        def chunking(self, step: Step, request: Request) -> int:
            return min(self.size, request.num_pending, step.budget)

    engine, tape = make_engine(Sized())
    play(engine, [make_request("a", 6, 1)])
    assert [s.batch for s in tape.steps] == [[("a", 3)], [("a", 3)]]


@pytest.mark.parametrize("policy", [Policy, PrefillFirst, 5, 1.5, b"stall_free"])
def test_what_is_no_policy(policy: Any) -> None:
    with pytest.raises(ConfigError, match="policy"):
        Scheduler(policy, num_blocks=4, block_size=4)


@pytest.mark.parametrize("plugin", [Filters, Policy, "tracer", None, 5, object()])
def test_what_is_no_plugin(plugin: Any) -> None:
    with pytest.raises(PluginError, match="hook"):
        make_engine(plugins=[plugin])


def test_a_parameter_given_twice() -> None:
    with pytest.raises(ConfigError, match="chunk_size"):
        resolve_policy("stall_free:chunk_size=1,chunk_size=2")
