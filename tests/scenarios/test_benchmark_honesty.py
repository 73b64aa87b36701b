"""Scenarios B1 to B4: what a comparison may say, and must not."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from batchwright import ComparisonError, EngineConfig, Policy, Step, hookimpl
from batchwright.lab import METRICS, ab, compare, format_report, load_workload, summarize
from batchwright.lab.run_record import RunRecord
from batchwright.request import SLO

LOAD = "synthetic:rate=60,n=40,prompt=lognormal(128,0.6),output=uniform(4,12),seed=1"


def config(policy: str = "vllm_v1", **values: Any) -> EngineConfig:
    return EngineConfig.parse({"policy": policy, "num_blocks": 600, "max_model_len": 2048, **values})


def noisy(arm: int) -> EngineConfig:
    return config(backend_options={"noise": 0.05, "noise_seed": arm})


def test_b1_a_policy_against_itself_shows_no_difference() -> None:
    found = ab({"a": config(), "b": config()}, load_workload(LOAD), seeds=3)
    assert {v.words for v in found.verdicts} == {"no difference"}
    assert {v.metric for v in found.verdicts} == set(METRICS)
    text = format_report(found)
    assert "better" not in text and "worse" not in text
    assert "the arms have the same policy and settings" in " ".join(text.split())


def test_b1_with_noise_of_their_own_no_difference_is_reported_beyond_chance() -> None:
    """Ten pairs over five seeds: false words in two of them come once in ten times. ``benchmarks/aa.py`` has 200."""
    wrong = 0
    for pair in range(10):
        arms = {name: noisy(2 * pair + place) for place, name in enumerate("ab")}
        found = ab(arms, load_workload(LOAD), seeds=5, seed=100 * pair)
        one, two = found.of("a"), found.of("b")
        assert all(one[seed].requests != two[seed].requests for seed in one)
        assert all(one[seed].offered == two[seed].offered for seed in one)
        wrong += any(v.words in ("better", "worse") for v in found.verdicts)
    assert wrong <= 1


def pair() -> list[RunRecord]:
    found = ab({"a": config(), "b": config("stall_free")}, load_workload(LOAD), seeds=2)
    return list(found.runs)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"arrival_ns": 10**15}, "arrival "),
        ({"prompt_hash": "another"}, "prompt "),
        ({"num_output_tokens": 999}, "asked output length "),
    ],
)
def test_b2_arms_with_different_requests_are_refused_and_the_requests_named(change: dict[str, Any], says: str) -> None:
    runs = pair()
    assert compare(runs).arms == ("a", "b")
    last = runs[-1]
    last.offered = [replace(o, **change) if place in (3, 7) else o for place, o in enumerate(last.offered)]
    with pytest.raises(ComparisonError) as caught:
        compare(runs)
    words = str(caught.value)
    assert words.startswith("arms 'a' and 'b' cannot be compared in seed 1: 2 of 40 offered requests differ: ")
    assert f"r000003 ({says}" in words and "r000007" in words and "r000004" not in words


def test_b2_a_request_that_finished_with_other_lengths_is_refused_and_named() -> None:
    runs = pair()
    cut = runs[-1].requests[5]
    assert cut.status == "finished" and cut.num_output_tokens > 1
    runs[-1].requests[5] = replace(
        cut, num_output_tokens=cut.num_output_tokens - 1, token_times_ns=cut.token_times_ns[:-1]
    )
    with pytest.raises(ComparisonError, match=r"in seed 1: 1 requests finished in both .*: r000005"):
        compare(runs)


class Choosy(Policy):
    """Takes no prompt of more than 150 tokens."""

    @hookimpl
    def admission(self, step: Step):
        yield step.running
        yield from [request for request in step.waiting if request.num_prompt_tokens <= 150]


def test_b3_a_policy_that_leaves_requests_unfinished_misses_them_in_goodput() -> None:
    load = load_workload(LOAD, slo=SLO(ttft_s=100.0))  # whoever is served meets it
    arms = {"all": config("vllm_v1"), "few": config("vllm_v1", max_num_batched_tokens=2048)}
    found = ab(arms, load, max_seconds=0.45)
    for arm in ("all", "few"):
        run = found.of(arm)[0]
        missed = sum(r.status != "finished" for r in run.requests)
        assert missed
        summary = found.summaries[arm]
        assert summary["request_goodput"] == pytest.approx((len(run.requests) - missed) / run.duration_s)
        assert summary["slo_attainment"] == pytest.approx(1 - missed / len(run.requests))
    rows = [line[:18].strip(" *") for line in format_report(found).splitlines()]
    at = rows.index("Goodput (req/s)")
    beside = rows[at + 1 : at + 6]
    assert {"Refused", "Unfinished", "Failed"} <= set(beside)


def test_b3_refused_requests_count_as_missed() -> None:
    load = load_workload(LOAD, slo=SLO(ttft_s=100.0))
    found = ab({"wide": config(), "narrow": config(num_blocks=12)}, load, declared="exact")
    refused = found.summaries["narrow"]["num_refused"]
    assert refused and found.summaries["wide"]["num_refused"] == 0
    assert found.summaries["narrow"]["slo_attainment"] == pytest.approx(1 - refused / 40)
    assert found.summaries["wide"]["slo_attainment"] == 1
    line = next(line for line in found.closing if line.startswith("narrow: "))
    assert f"{refused} refused of 40 requests; its latencies are of the others only" in line
    verdict = found.verdict("request_goodput")
    assert verdict.words in ("worse", "no difference shown")
    assert verdict.difference is not None and verdict.difference < 0


def test_b4_a_request_of_one_token_has_no_tpot_and_is_counted() -> None:
    found = ab({"a": config()}, load_workload("synthetic:rate=60,n=20,prompt=50,output=1"))
    summary = found.summaries["a"]
    assert summary["mean_tpot_ms"] is None and summary["num_tpot_undefined"] == 20
    run = next(iter(found.runs))
    mixed = ab({"a": config()}, load_workload("synthetic:rate=60,n=20,prompt=50,output=uniform(1,3)")).runs[0]
    some = sum(r.num_output_tokens == 1 for r in mixed.requests)
    assert 0 < some < 20 and summarize(mixed)["num_tpot_undefined"] == some
    kept = [
        (r.token_times_ns[-1] - r.token_times_ns[0]) / (len(r.token_times_ns) - 1) / 1e6
        for r in mixed.requests
        if len(r.token_times_ns) > 1
    ]
    assert summarize(mixed)["mean_tpot_ms"] == pytest.approx(sum(kept) / len(kept))
    assert all(isinstance(r.token_times_ns, array) and len(r.token_times_ns) == 1 for r in run.requests)
