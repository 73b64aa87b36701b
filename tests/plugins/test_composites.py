"""Policies put together from several: what they declare, and specifications that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from batchwright import HOLD, ConfigError, Policy, Request, Step, hookimpl
from batchwright.active_policy import ActivePolicy
from batchwright.ranked import Ranked
from batchwright.resolve import resolve_policy
from faulty import PrefillFirst
from toolbox import expected_of, make_engine, make_request, play


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


def test_a_parameter_given_twice() -> None:
    with pytest.raises(ConfigError, match="chunk_size"):
        resolve_policy("stall_free:chunk_size=1,chunk_size=2")
