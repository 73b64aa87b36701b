"""What holds for every policy of the suite: cards, tests that can fail, scenarios L4, L6, P4, P5 and P10."""

from __future__ import annotations

import inspect
import random
import re
from pathlib import Path
from typing import Any

import pytest

from batchwright import Policy
from batchwright.card import EVIDENCE, Card
from batchwright.errors import PluginError
from batchwright_policies.prefill_first import PrefillFirst
from batchwright_policies.stall_free import StallFree
from policies.drive import Job, Outcome, run
from policies.suite import SUITE, WHOLE

every = pytest.mark.parametrize("name", SUITE)
every_whole = pytest.mark.parametrize("name", WHOLE)


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


@every_whole
def test_l4_who_is_blocked_is_overtaken_by_nobody_behind_it(name: str) -> None:
    outcome = l4(WHOLE[name]())
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
