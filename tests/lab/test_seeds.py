"""Arms over several seeds: what varies, what is paired, and what is said of them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from batchwright import ComparisonError, ConfigError, EngineConfig, ExperimentError
from batchwright.hookspecs import hookimpl
from batchwright.lab import Comparison, RunRecord, ab, compare, format_report, load_workload
from batchwright.lab.closing import Failure
from batchwright.lab.executors import Task
from batchwright.lab.executors.serial import Serial
from batchwright.lab.experiment import run_tasks
from batchwright.lab.repetition import parse_seeds, repeated, seeds_of
from lab.hand import request, run

LOAD = "synthetic:rate=60,n=20,prompt=lognormal(128,0.6),output=uniform(4,12)"


def config(arm: int = 0, policy: str = "vllm_v1", **values: Any) -> EngineConfig:
    noise = {"noise": 0.05, "noise_seed": arm}
    given = {"policy": policy, "num_blocks": 600, "max_model_len": 2048, "backend_options": noise, **values}
    return EngineConfig.parse(given)


def three() -> Comparison:
    return ab({"a": config(0), "b": config(1)}, load_workload(LOAD), seeds=3)


def arrivals(of: RunRecord) -> list[int]:
    return [o.arrival_ns for o in of.offered]


def step_times(of: RunRecord) -> list[int]:
    return [s.end_ns - s.start_ns for s in of.steps]


# What a seed varies ------------------------------------------------------------------------------------------------


def test_arms_are_paired_within_a_seed_and_seeds_differ() -> None:
    found = three()
    assert (found.arms, found.seeds) == (("a", "b"), (0, 1, 2))
    assert [(r.arm, r.seed) for r in found.runs] == [(arm, seed) for arm in "ab" for seed in range(3)]
    a, b = found.of("a"), found.of("b")
    for seed in range(3):
        assert a[seed].offered == b[seed].offered
        assert step_times(a[seed]) != step_times(b[seed])
        assert a[seed].settings["seed"] == b[seed].settings["seed"] == seed
    for one, two in ((0, 1), (1, 2), (0, 2)):
        assert arrivals(a[one]) != arrivals(a[two])
        assert a[one].offered[0].prompt_hash != a[two].offered[0].prompt_hash
    with pytest.raises(ComparisonError, match="there is no arm 'c'; arms: a, b"):
        found.of("c")


def test_without_resampling_noise_and_prompts_vary_and_arrivals_stay() -> None:
    found = ab({"a": config(), "b": config(1)}, load_workload(LOAD), seeds=[4, 9], resample=False)
    one, two = found.of("a").values()
    assert (one.seed, two.seed) == (4, 9) and (one.settings["seed"], two.settings["seed"]) == (4, 9)
    assert arrivals(one) == arrivals(two) and one.workload["hash"] == two.workload["hash"]
    assert one.offered[0].prompt_hash != two.offered[0].prompt_hash
    assert step_times(one) != step_times(two)


def test_the_first_seed_of_n_is_the_run_of_one() -> None:
    load = load_workload(LOAD)
    alone = ab({"a": config()}, load, seed=5)
    many = ab({"a": config()}, load, seed=5, seeds=2, resample=False)
    assert many.seeds == (5, 6) and many.of("a")[5] == alone.runs[0]
    assert ab({"a": config()}, load, seeds=1).runs[0] == ab({"a": config()}, load).runs[0]


def test_a_trace_is_resampled_for_all_arms_alike(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [{"arrival_s": 0.02 * i, "num_prompt_tokens": 50 + i, "num_output_tokens": 4} for i in range(60)]
    path.write_text("\n".join(map(json.dumps, rows)))
    found = ab({"a": config(), "b": config(1)}, load_workload(path), seeds=2)
    hashes = [{found.of(arm)[seed].workload["hash"] for arm in "ab"} for seed in (0, 1)]
    assert all(len(h) == 1 for h in hashes) and hashes[0] != hashes[1]
    assert "drawn anew for each seed" in format_report(found)


def test_arms_take_turns_in_being_first() -> None:
    load = load_workload(LOAD)
    tasks = [Task(arm, config(), load) for arm in ("a", "b", "c")]
    found = [(task.arm, task.seed) for task in repeated(tasks, [0, 1, 2])]
    assert found == [(arm, seed) for seed, arms in enumerate(("abc", "cba", "abc")) for arm in arms]
    shared = {seed: {id(task.workload) for task in repeated(tasks, [0, 1]) if task.seed == seed} for seed in (0, 1)}
    assert all(len(one) == 1 for one in shared.values())


def test_runs_are_the_same_bytes_over_processes() -> None:
    load = load_workload(LOAD)
    arms = {"a": config(0), "b": config(1)}
    here, there = (json.dumps(ab(arms, load, seeds=2, jobs=jobs).to_json()) for jobs in (1, 2))
    assert here == there


@pytest.mark.parametrize(("text", "seeds"), [(None, [2]), ("1", [2]), ("3", [2, 3, 4]), ("5, 1", [5, 1]), ("7,", [7])])
def test_seeds_of_a_command_line(text: str | None, seeds: list[int]) -> None:
    assert parse_seeds(text, 2) == seeds


@pytest.mark.parametrize(
    ("text", "says"),
    [("0", "at least 1"), ("x", "expected how many"), ("", "expected how many"), ("-3", "how many"), ("4,4", "twice")],
)
def test_what_are_no_seeds(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_seeds(text)


@pytest.mark.parametrize("seeds", [0, True, [], [1, 1], [-1], [1.5]])
def test_what_are_no_seeds_in_python(seeds: Any) -> None:
    with pytest.raises(ConfigError, match="seed"):
        seeds_of(seeds)


# What is said of them ----------------------------------------------------------------------------------------------


def test_summaries_are_means_and_the_values_of_each_seed_stand_beside() -> None:
    found = three()
    for arm in found.arms:
        alone = [compare([one]) for one in found.of(arm).values()]
        values = found.spread[arm]["mean_itl_ms"]
        assert values == [one.summaries[arm]["mean_itl_ms"] for one in alone]
        assert len(values) == len(set(values)) == 3
        assert found.summaries[arm]["mean_itl_ms"] == pytest.approx(fmean(v for v in values if v is not None))
        assert found.loads[arm].waited == pytest.approx(fmean(one.loads[arm].waited for one in alone))
    assert found.decisions_differ["b"] == pytest.approx(
        fmean(compare([found.of("a")[s], found.of("b")[s]]).decisions_differ["b"] for s in range(3))
    )


def test_one_number_metrics_have_intervals_and_verdicts() -> None:
    """25 requests a second of 40 tokens each: one arm may run four at a time, and takes longer for all."""
    load = load_workload("synthetic:rate=200,n=30,prompt=64,output=40")
    found = ab({"a": config(), "b": config(1, max_num_seqs=4)}, load, seeds=6)
    verdict = found.verdict("output_throughput")
    assert verdict.words == "worse" and verdict.num_seeds == 6
    assert verdict.interval is not None and verdict.difference is not None and verdict.base is not None
    assert verdict.interval.low < verdict.difference < verdict.interval.high < 0
    assert verdict.interval.relative_high == pytest.approx(verdict.interval.high / verdict.base)
    text = format_report(found)
    assert max(map(len, text.splitlines())) <= 80
    plain = " ".join(text.split())
    assert "seeds 6 (0 to 5); figures are means over them" in plain
    assert "Intervals by Student's t over 6 seeds and blocks of requests; all together hold with 95%" in plain
    assert "on average over the seeds" in plain
    (line,) = [line for line in text.splitlines() if line.startswith("Output tokens/s *")]
    assert line.rstrip().endswith("worse")


def test_few_seeds_are_said_to_be_few() -> None:
    assert any(line.startswith("3 seeds say little") for line in three().closing)


def test_seeds_that_change_nothing_count_once() -> None:
    """Nothing is drawn: all runs are alike, and tell no more than one."""
    load = load_workload("synthetic:rate=inf,n=20,prompt=64,output=12")
    arms = {"a": EngineConfig(policy="vllm_v1"), "b": EngineConfig(policy="vllm_v1", max_num_seqs=4)}
    one, found = ab(arms, load), ab(arms, load, seeds=5, resample=False)
    assert [v.words for v in found.verdicts] == [v.words for v in one.verdicts]
    assert {v.num_seeds for v in found.verdicts} == {1}
    assert found.verdict("mean_e2el_ms").interval == one.verdict("mean_e2el_ms").interval
    assert any(line.startswith("4 of 5 seeds gave the very runs of another seed") for line in found.closing)


def test_a_metric_that_is_undefined_in_some_seeds_is_of_the_others() -> None:
    def one(arm: str, seed: int, tokens: int) -> RunRecord:
        gap = 10 + seed + (arm == "b")
        times = [[20 * i + 5 + gap * k for k in range(tokens)] for i in range(12)]
        requests = [request(i, arrival_ms=20 * i, times_ms=times[i]) for i in range(12)]
        return run(requests, arm=arm, seed=seed)

    runs = [one(arm, seed, 1 if seed == 1 else 3) for arm in "ab" for seed in range(3)]
    found = compare(runs)
    verdict = found.verdict("mean_tpot_ms")
    assert (verdict.base, verdict.value, verdict.num_seeds) == (11, 12, 2)
    assert found.spread["a"]["mean_tpot_ms"] == [10, None, 12] and found.summaries["a"]["mean_tpot_ms"] == 11
    assert found.verdict("num_refused").words == "no difference"


# What is missing ---------------------------------------------------------------------------------------------------

FAILS = """
from batchwright import hookimpl
from batchwright_policies.vllm_v1 import VllmV1

class Fails(VllmV1):
    @hookimpl
    def chunking(self, step, request):
        return -1 if {when} else super().chunking(step, request)
"""


def fails(tmp_path: Path, when: str) -> EngineConfig:
    path = tmp_path / "fails.py"
    path.write_text(FAILS.format(when=when))
    return config(1, f"{path}:Fails")


def test_an_arm_that_fails_is_said_to_have_failed_and_the_rest_is_compared(tmp_path: Path) -> None:
    arms = {"a": config(), "bad": fails(tmp_path, "True"), "b": config(1)}
    with pytest.raises(ExperimentError, match="2 of 6 runs failed: arm bad, seed 0: PolicyError"):
        ab(arms, load_workload(LOAD), seeds=2)
    found = ab(arms, load_workload(LOAD), seeds=2, keep_failed=True)
    assert found.arms == ("a", "b") and {v.arm for v in found.verdicts} == {"b"}
    assert [(f.arm, f.seed) for f in found.failures] == [("bad", 0), ("bad", 1)]
    assert found.closing[0].startswith("bad failed and is not compared: PolicyError: ")
    assert "bad failed and is not compared" in format_report(found)
    assert found.to_json()["failures"][0]["arm"] == "bad"


def test_an_arm_that_fails_in_one_seed_is_compared_in_the_others(tmp_path: Path) -> None:
    found = ab(
        {"a": config(), "b": fails(tmp_path, "step.rng.random() and request.arrival_ns == WHEN".replace("WHEN", "-1"))},
        load_workload(LOAD),
        seeds=3,
    )
    runs = [r for r in found.runs if (r.arm, r.seed) != ("b", 1)]
    again = compare(runs, failures=[Failure("b", 1, "BackendError: it went away")])
    assert again.verdict("mean_itl_ms").num_seeds == 2
    assert again.closing[0] == "b failed in seed 1; its other seeds count: BackendError: it went away"


def test_all_runs_that_fail_raise() -> None:
    with pytest.raises(ConfigError):
        ab({"a": config(max_model_len=10**9)}, load_workload(LOAD), seeds=2, keep_failed=True)


def test_a_seed_that_was_cut_short_is_left_out_of_verdicts() -> None:
    class Interrupt:
        """Presses Ctrl-C in the fourth run."""

        def __init__(self) -> None:
            self.runs = 0

        @hookimpl
        def step_started(self, step: Any) -> None:
            self.runs += step.index == 0
            if self.runs == 4 and step.index == 5:
                raise KeyboardInterrupt

    # Seed 0: a, b; seed 1: b, then a, which is cut short.
    found = ab({"a": config(), "b": config(1)}, load_workload(LOAD), seeds=3, plugins=[Interrupt()])
    assert [(r.arm, r.seed, r.stopped) for r in found.runs if r.stopped] == [("a", 1, "interrupted")]
    assert found.verdict("mean_itl_ms").num_seeds == 1
    assert "a was interrupted in seed 1, which verdicts leave out where there are others" in found.closing


def test_arms_without_a_seed_in_common_are_refused() -> None:
    found = three()
    runs = [found.of("a")[0], found.of("b")[1]]
    with pytest.raises(ComparisonError, match="they have no seed in common, but 0 and 1; run both with the same seeds"):
        compare(runs)


def test_other_requests_in_one_seed_are_found() -> None:
    found = three()
    other = run_tasks([Task("b", config(1), load_workload(LOAD), 2)], Serial()).runs[0]
    runs = [other if (r.arm, r.seed) == ("b", 2) else r for r in found.runs]
    with pytest.raises(ComparisonError, match="arms 'a' and 'b' cannot be compared in seed 2: 20 of 20"):
        compare(runs)


def test_one_run_a_seed() -> None:
    found = three()
    with pytest.raises(ComparisonError, match="two arms are called 'a', and have runs of seed 0"):
        compare([*found.runs, found.runs[0]])
