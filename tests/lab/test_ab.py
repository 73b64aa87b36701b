"""A/B on the simulator, through the public interface."""

from __future__ import annotations

import inspect
import json
import signal
import subprocess
import sys
from typing import Any

import pytest

import batchwright.lab
from batchwright.config import EngineConfig
from batchwright.errors import ComparisonError
from batchwright.hookspecs import hookimpl
from batchwright.lab import METRICS, ab, format_report, load_workload

SPEC = "synthetic:rate=12,n=150,prompt=lognormal(900,0.8),output=uniform(16,128),seed=2"


def config(policy: str, **values: Any) -> EngineConfig:
    return EngineConfig(policy=policy, max_num_batched_tokens=2048, **values)


def test_a_policy_against_itself_shows_no_difference(tmp_path) -> None:
    """Scenario B1."""
    found = ab({"a": config("prefill_first"), "b": config("prefill_first")}, load_workload(SPEC))
    assert {v.words for v in found.verdicts} == {"no difference"}
    assert {v.metric for v in found.verdicts} == set(METRICS)
    assert found.decisions_differ == {"b": 0}
    assert found.closing[-1].startswith("decisions differ in 0.0% of steps; ")
    assert found.closing[-1].endswith(": the arms have the same policy and settings")
    assert "better" not in format_report(found)
    assert "worse" not in format_report(found)
    found.write_json(tmp_path / "ab.json")
    value = json.loads((tmp_path / "ab.json").read_text())
    assert value["runs"][0]["requests"] == value["runs"][1]["requests"]


def test_stall_free_wins_gaps_and_loses_first_tokens() -> None:
    arms = {"prefill_first": config("prefill_first"), "stall_free": config("stall_free:chunk_size=512")}
    found = ab(arms, load_workload(SPEC))
    assert found.verdict("p99_itl_ms").words == "better"
    assert found.verdict("p99_itl_ms").base > 3 * found.verdict("p99_itl_ms").value
    assert found.verdict("mean_ttft_ms").words == "worse"
    assert found.decisions_differ["stall_free"] > 0.5
    assert "cannot separate" not in found.closing[-1]
    assert found.summaries["stall_free"]["completed"] == 150


def test_arms_that_never_part_are_told_to_come_under_load() -> None:
    """One request at a time, each prompt in one step: no policy has anything to decide."""
    load = load_workload("synthetic:rate=0.05,n=80,prompt=lognormal(900,0.5),output=uniform(20,100),burstiness=9")
    arms = {"a": config("prefill_first"), "b": config("vllm_v1")}
    found = ab(arms, load)
    before, _, speedup = found.closing[-1].rpartition("; try --speedup ")
    shares = "decisions differ in 0.0% of steps; somebody waited in 0.0%; KV full in 0.0%"
    assert before == f"{shares}: this load cannot separate the arms"
    assert {v.words for v in found.verdicts if v.metric.endswith("_ms")} == {"no difference"}
    # What is suggested does separate them, and is no overload.
    again = ab(arms, load.faster(float(speedup)))
    assert again.decisions_differ["b"] > 0.3
    assert not any(load.overloaded for load in again.loads.values())
    assert 0.5 < again.loads["b"].utilization < 1.2


def test_arms_on_models_of_other_vocabularies_are_refused() -> None:
    """Scenario B2: their prompts differ."""
    arms = {"a": config("prefill_first"), "b": config("prefill_first", backend="sim:qwen3-8b@h100")}
    with pytest.raises(ComparisonError, match="prompts follow the vocabulary: compare arms on one model"):
        ab(arms, load_workload("synthetic:n=5,prompt=20,output=4"))


def test_an_arm_that_cuts_outputs_is_refused() -> None:
    """Scenario B2: a request finished in both with different lengths."""
    arms = {"a": config("prefill_first"), "b": config("prefill_first", max_model_len=30)}
    with pytest.raises(ComparisonError, match=r"finished in both with different lengths: r000000 \(20 and 10 output"):
        ab(arms, load_workload("synthetic:n=5,prompt=20,output=20"), declared=64)


def test_an_interrupt_ends_the_comparison_with_what_is_there() -> None:
    class Interrupt:
        @hookimpl
        def step_finished(self, step: Any) -> None:
            if step.index == 20:
                signal.raise_signal(signal.SIGINT)

    arms = {"a": config("prefill_first"), "b": config("stall_free")}
    found = ab(arms, load_workload(SPEC), plugins=[Interrupt()])
    assert [r.arm for r in found.runs] == ["a"]
    assert found.closing[0].startswith("a was interrupted after ")
    assert "a was interrupted" in format_report(found)


def test_options_go_to_every_arm() -> None:
    told: list[str] = []
    found = ab(
        {"a": config("prefill_first"), "b": config("stall_free")},
        load_workload("synthetic:n=5,prompt=20,output=4"),
        declared=77,
        progress=lambda arm, done, total: told.append(arm),
    )
    assert {o.max_tokens for r in found.runs for o in r.offered} == {77}
    assert {r.declared_max_tokens for r in found.runs} == {"77 tokens"}
    assert set(told) == {"a", "b"}


def test_what_would_be_the_same_for_every_arm_is_no_option() -> None:
    with pytest.raises(TypeError, match="takes no 'policy'"):
        ab({"a": config("prefill_first")}, load_workload("synthetic:n=1"), policy=None)
    with pytest.raises(ComparisonError, match="no arm to run"):
        ab({}, load_workload("synthetic:n=1"))


def test_the_public_names_exist_and_are_documented() -> None:
    for name in batchwright.lab.__all__:
        value = getattr(batchwright.lab, name)
        assert not inspect.isroutine(value) or value.__doc__, name
        assert not inspect.isclass(value) or value.__doc__, name


def test_the_lab_loads_nothing_heavy() -> None:
    code = (
        "import sys, batchwright.lab\n"
        "heavy = {'torch', 'transformers', 'pandas', 'pyarrow', 'matplotlib'}\n"
        "ours = {'batchwright_policies', 'batchwright_backends'}\n"
        "print(sorted((heavy | ours) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
