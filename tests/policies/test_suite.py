"""What holds for all policies of the suite: cards, tests that can fail, scenarios L4, L6, P3, P4, P5, P7, P10, A2."""

from __future__ import annotations

import inspect
import random
import re
from pathlib import Path
from typing import Any

import pytest

from batchwright import Policy, PolicyError, Step, hookimpl
from batchwright.card import EVIDENCE, Card
from batchwright.config import DetectorConfig
from batchwright.detectors import Detectors
from batchwright.errors import PluginError
from batchwright_policies.prefill_first import PrefillFirst
from batchwright_policies.stall_free import StallFree
from batchwright_policies.vllm_v1 import VllmV1
from policies.drive import Job, Outcome, run
from policies.suite import SUITE, VICTIMS, WHOLE
from policies.test_victims import p7, tax
from toolbox import check_whole, expected_of, make_engine, make_request

every = pytest.mark.parametrize("name", SUITE)
every_whole = pytest.mark.parametrize("name", WHOLE)
ALL: dict[str, type[Policy]] = {**WHOLE, "prefill_first": PrefillFirst, "stall_free": StallFree, "vllm_v1": VllmV1}
"""Every shipped policy that admits."""


# Cards -----------------------------------------------------------------------------------------------------------


@every
def test_each_has_a_card_that_leads_to_its_code(name: str) -> None:
    policy: Any = SUITE[name]
    card = policy.card
    assert isinstance(card, Card) and card.evidence
    for rule, where in card.rules.items():
        names = [*dir(policy), *(f"Params.{field}" for field in policy.Params.model_fields)]
        assert where in names, f"{rule}: there is no {where}"


@every
def test_each_says_its_source_and_its_cost(name: str) -> None:
    text = inspect.getdoc(SUITE[name]) or ""
    assert "\n\nSource: " in text
    assert re.search(r"\b[Cc]osts\b.*\bO\(", text, re.S)


def test_a_card_without_source_or_with_unknown_evidence_is_refused() -> None:
    with pytest.raises(PluginError, match="names its source"):
        Card(source="", rules={"a": "admission"})
    with pytest.raises(PluginError, match="at least one rule"):
        Card(source="a paper", rules={})
    with pytest.raises(PluginError, match=r"unknown evidence 'hearsay'.*property tested"):
        Card(source="a paper", rules={"a": "admission"}, evidence={"hearsay": "all"})
    assert Card(source="a paper", rules={"a": "admission"}, evidence=dict.fromkeys(EVIDENCE, "all")).deviations == ()


def test_each_has_a_test_of_what_defines_it() -> None:
    """``@defines`` runs it with FIFO in the policy's place too, where it must fail."""
    files = Path(__file__).parent.glob("test_*.py")
    defined = {name for file in files for name in re.findall(r"^@defines\((\w+)[,)]", file.read_text("utf-8"), re.M)}
    assert defined == {policy.__name__ for policy in SUITE.values()}


# Scenarios -------------------------------------------------------------------------------------------------------


def job(name: str, prompt: int, output: int, at: float = 0.0, **fields: Any) -> Job:
    return Job(name, prompt, output, at, fields=fields)


def first_step(outcome: Outcome, name: str) -> int:
    return next(index for index, rows in enumerate(outcome.batches) if name in dict(rows))


def l4(policy: Policy, more: list[Job] | None = None) -> Outcome:
    lengths = (("first", 22, 8), ("second", 16, 2), ("third", 3, 2))
    jobs = [job(name, prompt, output, predicted_output_tokens=output) for name, prompt, output in lengths]
    return run(policy, [*jobs, *(more or [])], bs=4, P=8, T=64, S=64)


@pytest.mark.parametrize("name", ALL)
def test_l4_who_is_blocked_is_overtaken_by_nobody_behind_it(name: str) -> None:
    outcome = l4(ALL[name]())
    if name in ("sjf", "srpt", "hrrn"):  # they put the short ones first, and offer room in that order
        assert first_step(outcome, "third") <= 1
    else:
        assert first_step(outcome, "third") == first_step(outcome, "second") == 8


@pytest.mark.parametrize("name", ["sjf", "srpt", "hrrn"])
def test_l4_who_is_passed_is_passed_a_bounded_number_of_times(name: str) -> None:
    """A stream of short ones without end: ageing brings the long one in while they still come."""
    stream = [job(f"s{k}", 3, 2, 0.005 * k, predicted_output_tokens=2) for k in range(1200)]
    params: dict[str, Any] = {} if name == "hrrn" else {"ageing": 5.0}
    outcome = l4(WHOLE[name](**params), stream)
    passes = [n for _, n in outcome.admissions].index("first")
    assert passes < 600
    if name != "hrrn":
        assert l4(WHOLE[name](ageing=0.0), stream).admissions[-1][1] == "first"


def test_l6_stall_free_keeps_its_static_chunk_and_says_so() -> None:
    outcome = run(StallFree(chunk_size=4096), [job("long", 9000, 2)], T=16_384)
    assert outcome.batches[:3] == [[("long", 4096)], [("long", 4096)], [("long", 808)]]
    assert "a lone prompt is cut to it" in (StallFree.Params.model_fields["chunk_size"].description or "")


@pytest.mark.parametrize("name", ALL)
def test_p3_who_reserves_the_prompt_computes_each_token_once(name: str) -> None:
    policy = ALL[name](**({"quantum": 100} if name in ("mlfq", "plas") else {}))  # long enough to pass nobody
    budget = 64 if policy.chunks else 512
    thrash: list[Any] = []

    def watch(outcome: Outcome, now: float) -> None:
        thrash.extend(e for e in outcome.scheduler.step.events if e["kind"] == "thrash")

    jobs = [job(f"j{k}", 399, 30) for k in range(4)] + [job("last", 400, 2)]
    outcome = run(policy, jobs, bs=16, P=110, T=budget, S=64, watch=watch, plugins=[Detectors(DetectorConfig())])
    assert outcome.num_prefill_tokens == 1996 and outcome.evictions == [] and thrash == []


BETTER = {
    "priority": ({"priority": 9}, {"priority": 0}),
    "edf": ({"deadline_s": 9.0}, {"deadline_s": 1.0}),
    "srpt": ({"predicted_output_tokens": 90}, {"predicted_output_tokens": 6}),
    "mlfq": ({}, {}),
    "plas": ({"program_id": "old"}, {"program_id": "new"}),
}
"""Fields of a request, and of one that ranks before it when both are there."""
TUNED: dict[str, dict[str, Any]] = {"mlfq": {"quantum": 2}, "plas": {"quantum": 2}, "srpt": {"ageing": 0}}


def make(name: str) -> Policy:
    return WHOLE[name](**TUNED.get(name, {}))


@pytest.mark.parametrize("name", BETTER)
def test_p4_a_victim_in_the_batch_is_taken_out_whole(name: str) -> None:
    worse, better = BETTER[name]
    jobs = [job("C", 5, 11, **worse), job("A", 8, 4, 0.021, **better)]
    seen: list[int] = []

    def watch(outcome: Outcome, now: float) -> None:
        step = outcome.scheduler.step
        if step.preempted and not seen:
            low = outcome.requests["C"]
            assert step.preempted == [low] and not low.block_table and low.num_scheduled == 0
            assert [r.request_id for r in step.batch] == ["A"]
            seen.append(step.budget)

    outcome = run(make(name), jobs, P=4, bs=4, T=8, watch=watch)
    assert seen in ([7], [0]), "A's token or its prompt was charged, C's token was given back"
    assert outcome.requests["C"].num_preemptions >= 1 and outcome.requests["A"].num_preemptions == 0


@pytest.mark.parametrize("name", BETTER)
def test_p5_one_seat_is_taken_for_one_better_newcomer(name: str) -> None:
    worse, better = BETTER[name]
    jobs = [job("a", 4, 30, **worse), job("b", 4, 30, **worse), job("new", 4, 2, 0.1, **better)]
    outcome = run(make(name), jobs, residents=2)
    assert [victim for _, victim in outcome.evictions] == ["b"]
    assert outcome.first_token("new") < 0.03


@every_whole
def test_p5_equals_never_evict_each_other(name: str) -> None:
    alike = {"priority": 3, "deadline_s": 5.0, "predicted_output_tokens": 12, "client_id": "c"}
    jobs = [job(f"j{k}", 4, 12, 0.02 * k, **alike) for k in range(12)]
    params = {"quantum": 100} if name in ("mlfq", "plas") else {}
    params |= {"ageing": 0} if name in ("srpt", "sjf") else {}
    outcome = run(WHOLE[name](**params), jobs, residents=2)
    assert outcome.evictions == []
    assert [who for _, who in outcome.admissions] == [f"j{k}" for k in range(12)]


P7 = {"cheapest": ("c16", 16), "newest": ("c240", 240), "lowest_priority": ("c240", 240), "most_blocks": ("c240", 240)}


@pytest.mark.parametrize("name", VICTIMS)
def test_p7_the_recompute_tax_of_each_victim(name: str) -> None:
    victim, wasted = P7[name]  # with equal priorities the latest arrival goes
    outcome = p7(VICTIMS[name]())
    assert [who for _, who in outcome.evictions] == [victim]
    assert tax(outcome) == wasted / 300


@every_whole
def test_p10_residents_go_on_whatever_becomes_of_newcomers(name: str) -> None:
    """With room in the batch for all, every decode runs in every step, or is evicted."""
    for seed in range(6):
        rng = random.Random(seed)
        jobs = [
            job(
                f"j{k}",
                rng.randint(2, 30),
                rng.randint(2, 14),
                0.015 * k,
                priority=rng.randrange(4),
                predicted_output_tokens=rng.randint(1, 14),
                deadline_s=rng.random(),
                client_id=rng.choice("ab"),
                program_id=rng.choice("pqr"),
            )
            for k in range(25)
        ]
        decoding: list[Any] = []

        def watch(outcome: Outcome, now: float, decoding: list[Any] = decoding) -> None:
            step = outcome.scheduler.step
            ran = {name for name, _ in outcome.batches[-1]}
            assert all(r.request_id in ran or r in step.preempted for r in decoding)
            decoding[:] = [r for r in outcome.scheduler.running if r.is_decode]

        params: dict[str, Any] = {"quantum": 2} if name in ("mlfq", "plas") else {}
        outcome = run(WHOLE[name](**params), jobs, P=12, bs=4, T=200, S=20, watch=watch)
        assert len(outcome.admissions) >= 25


def test_p10_would_show_in_fifo() -> None:
    """As a control: prefill_first lets decodes wait for prompts."""
    with pytest.raises(AssertionError):
        WHOLE["fifo"] = PrefillFirst
        try:
            test_p10_residents_go_on_whatever_becomes_of_newcomers("fifo")
        finally:
            del WHOLE["fifo"]


# A2: whoever breaks a rule beside whatever policy ---------------------------------------------------------------------


class Breaks:
    """A wrapper that spoils every fourth answer of one decision."""

    name = "breaks"

    def __init__(self, hook: str, answer: Any) -> None:
        self.num_calls = self.num_broken = 0

        def spoil(step: Step) -> Any:
            given = yield
            self.num_calls += 1
            if self.num_calls % 4:
                return given
            self.num_broken += 1
            return answer

        setattr(self, hook, hookimpl(wrapper=True)(spoil))


SPOILT = {
    "no iterable": ("admission", 5),
    "no request": ("admission", [7]),
    "nothing": ("admission", ()),
    "no number": ("chunking", "all"),
    "below 0": ("chunking", -1),
    "above what is pending": ("chunking", 10**6),
    "blocks below 0": ("reservation", -1),
    "no victim": ("preemption", "you"),
}


def a2(name: str, fault: str, on_policy_error: str) -> tuple[Breaks, list[PolicyError], Any]:
    hook, answer = SPOILT[fault]
    plugin = Breaks(hook, answer)
    engine, tape = make_engine(ALL[name](), P=18, T=24, plugins=[plugin], on_policy_error=on_policy_error)
    for k in range(6):
        engine.add_request(make_request(str(k), 8, 14, priority=k % 3))
    errors = []
    for _ in range(600):
        if not engine.has_unfinished():
            break
        try:
            engine.step()
        except PolicyError as error:
            errors.append(error)
        check_whole(engine.scheduler)
    assert set(tape.reasons) == set("012345") and set(tape.reasons.values()) == {"length"}
    for request in tape.requests.values():
        assert request.output_token_ids == expected_of(request)
    return plugin, errors, (engine, tape)


@pytest.mark.parametrize("fault", SPOILT)
@pytest.mark.parametrize("name", ALL)
def test_a2_a_broken_rule_beside_any_policy_is_named_and_changes_no_token(name: str, fault: str) -> None:
    plugin, errors, _ = a2(name, fault, "raise")
    assert len(errors) == plugin.num_broken
    assert all("breaks" in e.plugin and e.hook == SPOILT[fault][0] for e in errors)


@pytest.mark.parametrize("fault", SPOILT)
@pytest.mark.parametrize("name", ALL)
def test_a2_in_a_fallback_the_default_policy_ends_the_step(name: str, fault: str) -> None:
    plugin, errors, (engine, tape) = a2(name, fault, "fallback")
    assert errors == [] and engine.scheduler.num_policy_faults == len(tape.events("policy_fault")) == plugin.num_broken
