"""Arms at every point of a grid."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchwright import EngineConfig
from batchwright.errors import ConfigError, ExperimentError, WorkloadError
from batchwright.lab import METRICS, Workload, WorkloadRow, load_workload
from batchwright.lab.designs.axis import Axis, in_words, make_axes, points_of
from batchwright.lab.designs.changed_load import synthetic_with, with_load
from batchwright.lab.designs.setup import Setup
from batchwright.lab.designs.sweep import Sweep, sweep
from batchwright.lab.designs.sweep_report import format_sweep
from batchwright.lab.executors import Task
from batchwright.lab.files.folder import Folder
from batchwright.lab.saved_runs import SavedRuns
from batchwright.request import SLO

from .made_up import MadeUp, rate_of

SPEC = "synthetic:rate=20,n=16,prompt=uniform(100,900),output=uniform(2,12),seed=3"
LOAD = load_workload(SPEC)
TTFT = [METRICS["mean_ttft_ms"]]


def arms(*policies: str, **values: Any) -> dict[str, EngineConfig]:
    return {policy.partition(":")[0]: EngineConfig(policy=policy, **values) for policy in policies}


# What is varied ----------------------------------------------------------------------------------------------------


def test_axes_are_read() -> None:
    assert Axis.parse("max_num_batched_tokens=512, 2048,8192") == Axis("max_num_batched_tokens", (512, 2048, 8192))
    assert Axis.parse("prompt=lognormal(512,0.8),uniform(1,9),64").values == ("lognormal(512,0.8)", "uniform(1,9)", 64)
    assert Axis.parse("policy={use: sjf, ageing: 0},vllm_v1").values == ({"use": "sjf", "ageing": 0}, "vllm_v1")
    assert Axis.parse("prefix_cache.enabled=true,false").values == (True, False)
    points = list(points_of(make_axes({"a": [1, 2], "b": ["x", "y"]})))
    assert points == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]
    assert in_words({"rate": 8.0, "policy": "sjf", "x": None, "y": True}) == "rate=8, policy=sjf, x=none, y=true"


@pytest.mark.parametrize(
    ("over", "words"),
    [
        (["max_num_seqs"], "--over max_num_seqs: write it as setting=value,value,..., as in --over max_num_batched"),
        (["max_num_seqs="], "a value is empty"),
        (["max_num_seqs=1,,2"], "a value is empty"),
        (["max_num_seqs=1,2,1"], "has the value 1 twice"),
        (["max_num_seqs=1", "max_num_seqs=2"], "there are two axes 'max_num_seqs'"),
        ([], "there is nothing to vary"),
        ({"max_num_seqs": []}, "has no values"),
    ],
)
def test_axes_that_cannot_be_read_are_refused(over: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_axes(over)


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"max_num_seq": 1}, "axis 'max_num_seq': there is no such setting; did you mean 'max_num_seqs'"),
        ({"promt": 1}, "axis 'promt': there is no such setting; did you mean 'prompt'"),
        ({"seed": 1}, "run several with --seeds"),
        ({"max_num_seqs": "many"}, "point max_num_seqs=many: max_num_seqs is 'many'"),
        ({"max_num_seqs": 0}, "point max_num_seqs=0: max_num_seqs is 0"),
        ({"policy.chunk": 64}, "point policy.chunk=64, arm prefill_first: policy PrefillFirst: unknown parameter"),
        ({"policy.chunk_size": 64}, "arm prefill_first: policy PrefillFirst: unknown parameter 'chunk_size'"),
        ({"C.max_num_seqs": 4}, "axis 'C.max_num_seqs': there is no such setting"),
        ({"B.max_seqs": 4}, "axis 'B.max_seqs': unknown setting 'max_seqs'; did you mean 'max_num_seqs'"),
        ({"policy": "vllm_v2"}, "unknown policy 'vllm_v2'"),
        ({"rate": "fast"}, "rate is 'fast'; expected a number"),
        ({"rate": 0}, "rate must be a finite number above 0, not 0"),
        ({"prompt": "long"}, "prompt of a synthetic workload is 'long'"),
        ({"limit": 0}, "limit must be a whole number of at least 1"),
    ],
)  # fmt: skip
def test_settings_that_there_are_not_are_refused_before_anything_runs(point: dict[str, Any], words: str) -> None:
    executor = MadeUp(lambda task: 1.0)
    with pytest.raises((ConfigError, WorkloadError)) as caught:
        sweep(arms("prefill_first", "stall_free"), LOAD, {k: [v] for k, v in point.items()}, executor=executor)
    assert words in str(caught.value)
    assert not executor.tasks


def test_a_setting_is_changed_of_all_arms_or_of_one() -> None:
    setup = Setup(arms("vllm_v1", "stall_free:chunk_size=64", max_num_seqs=32), LOAD)
    both = setup.at({"max_num_batched_tokens": 1024, "prefix_cache.enabled": False})
    assert [c.max_num_batched_tokens for c in both.configs.values()] == [1024, 1024]
    assert not any(c.prefix_cache.enabled for c in both.configs.values())
    assert all(c.max_num_seqs == 32 for c in both.configs.values())
    for name in ("B.policy.chunk_size", "stall_free.policy.chunk_size"):
        one = setup.at({name: 256})
        assert one.configs["stall_free"].policy == {"use": "stall_free", "chunk_size": 256}
        assert one.configs["vllm_v1"] == setup.configs["vllm_v1"]
    # What the config leaves unset stays unset: policies have defaults of their own for it.
    assert "max_num_residents" not in both.configs["vllm_v1"].model_fields_set
    assert setup.effective("stall_free", "policy.chunk_size") == 64
    assert setup.effective("vllm_v1", "max_num_residents") == 32
    assert Setup({"a": EngineConfig()}, LOAD).at({"policy.decode_interleave": 3}).configs["a"].policy == {
        "use": "prefill_first",
        "decode_interleave": 3,
    }


def test_the_workload_is_changed() -> None:
    slo = SLO(ttft_s=1.0)
    load = load_workload(SPEC, slo=slo, speedup=2)
    assert with_load(load, {"speedup": 4}).rows == load_workload(SPEC, slo=slo, speedup=4).rows
    assert (
        with_load(load, {"prompt": 64}).rows
        == load_workload(synthetic_with(SPEC, {"prompt": 64}), slo=slo, speedup=2).rows
    )
    assert with_load(load, {"rate": 5}).rate == pytest.approx(5)
    assert len(with_load(load, {"limit": 7})) == 7
    assert len(with_load(load.first(9), {"prompt": 64})) == 9
    assert len(with_load(load.first(9), {"n": 12})) == 12
    assert with_load(load, {"concurrency": 3}).concurrency == 3
    both = with_load(load, {"rate": 5, "burstiness": 0.5})
    assert both.rate == pytest.approx(5) and both.source.endswith("burstiness=0.5")
    assert Setup(arms("vllm_v1"), load).at({"workload.rate": 5}).workload.rate == pytest.approx(5)
    cut = load.from_row(3)
    assert with_load(cut, {"rate": 5}).rate == pytest.approx(5)
    with pytest.raises(ConfigError, match="is no synthetic one as it was drawn; of others there are speedup, rate"):
        with_load(cut, {"prompt": 64})
    trace = Workload("trace.csv", load.rows, "trace.csv")
    with pytest.raises(ConfigError, match=r"'prompt' is a key of synthetic workloads, and trace\.csv is none"):
        Setup(arms("vllm_v1"), trace).at({"prompt": 64})


# The sweep ----------------------------------------------------------------------------------------------------------


def mixed(n: int) -> Workload:
    """All at once: short requests and long ones; their lengths are foretold."""
    rows = [
        WorkloadRow(0, prompt, output, predicted_output_tokens=prompt)
        for prompt, output in [(32, 8), (512, 32)] * (n // 2)
    ]
    return Workload("mixed", tuple(rows[i * 7 % n] for i in range(n)), "mixed")


def test_b5_the_gain_of_shortest_first_shrinks_as_the_budget_grows() -> None:
    """Scenario B5: a queue that the token budget builds."""
    configs = {
        "fifo": EngineConfig(policy="vllm_v1", max_num_seqs=300),
        "sjf": EngineConfig(policy="sjf:ageing=0", max_num_seqs=300),
    }
    budgets = [2048, 8192, 65_536]
    found = sweep(configs, mixed(100), {"max_num_batched_tokens": budgets}, seeds=2, primary=["mean_ttft_ms"])
    verdicts = [found.point(max_num_batched_tokens=b).verdict("mean_ttft_ms", "sjf") for b in budgets]
    gains = [-(v.relative or 0) for v in verdicts if v is not None]
    assert verdicts[0] is not None and verdicts[0].words == "better"
    assert gains[0] > 0.25
    assert gains[0] > gains[1] > gains[2] and gains[2] < 0.05
    text = format_sweep(found, TTFT, 200)
    assert "as max_num_batched_tokens goes from 2048 to 65536, sjf's difference in Mean TTFT (ms) shrinks: -" in text
    assert [line.split()[0] for line in text.splitlines()[2:5]] == ["2048", "8192", "65536"]


def test_at_each_point_the_arms_get_the_same_requests_and_take_turns() -> None:
    executor = MadeUp(lambda task: 1.0)
    found = sweep(arms("vllm_v1", "stall_free"), LOAD, {"rate": [5, 10]}, seeds=2, executor=executor)
    assert [(t.arm, t.seed, t.point) for t in executor.tasks] == [
        (arm, seed, point)
        for point in ("rate=5", "rate=10")
        for seed, order in ((0, ("vllm_v1", "stall_free")), (1, ("stall_free", "vllm_v1")))
        for arm in order
    ]
    for first, second in zip(executor.tasks[::2], executor.tasks[1::2], strict=True):
        assert first.workload is second.workload
    assert [rate_of(t) for t in executor.tasks] == pytest.approx([5] * 4 + [10] * 4)
    assert [len(p.comparison.runs) for p in found.points if p.comparison is not None] == [4, 4]
    assert found.seeds == (0, 1) and found.arms == ("vllm_v1", "stall_free")


def test_all_intervals_of_all_points_hold_together() -> None:
    found = sweep(arms("vllm_v1", "stall_free"), LOAD, {"rate": [5, 10, 15, 20]}, executor=MadeUp(lambda task: 1.0))
    (level,) = {p.comparison.family.level for p in found.points if p.comparison is not None}
    assert level == pytest.approx(1 - 0.05 / 4)


def test_it_is_the_same_as_an_ab_at_each_point() -> None:
    from batchwright.lab import ab

    found = sweep(arms("vllm_v1", "stall_free"), LOAD, {"max_num_batched_tokens": [256]}, level=0.9)
    alone = ab(arms("vllm_v1", "stall_free", max_num_batched_tokens=256), LOAD, level=0.9)
    point = found.point(max_num_batched_tokens=256)
    assert point.comparison is not None and point.comparison.to_json() == alone.to_json()


def test_records_are_dropped_where_nobody_wants_them() -> None:
    kept = sweep(arms("vllm_v1", "stall_free"), LOAD, {"rate": [5, 10]})
    light = sweep(arms("vllm_v1", "stall_free"), LOAD, {"rate": [5, 10]}, keep_records=False)
    assert light.to_json() == kept.to_json()
    for point in light.points:
        assert point.comparison is not None
        assert not any(run.requests or len(run.steps) for run in point.comparison.runs)
    assert all(run.requests for p in kept.points if p.comparison for run in p.comparison.runs)


def test_a_run_that_fails_leaves_the_other_points() -> None:
    def ttft(task: Task) -> float:
        if task.arm == "stall_free" and rate_of(task) > 7:
            raise ConfigError("dear me")
        return 1.0

    found = sweep(arms("vllm_v1", "stall_free"), LOAD, {"rate": [5, 10]}, seeds=2, executor=MadeUp(ttft))
    error = found.error()
    assert isinstance(error, ExperimentError)
    assert str(error).startswith("2 runs of the sweep failed: arm stall_free, seed 0, rate=10: ConfigError: dear me; ")
    assert found.point(rate=10).value("mean_ttft_ms", "stall_free") is None
    assert found.point(rate=10).value("mean_ttft_ms", "vllm_v1") == pytest.approx(1000)
    assert found.point(rate=5).verdict("mean_ttft_ms", "stall_free") is not None
    text = format_sweep(found, TTFT, 200)
    assert re.search(r"10 +1,000\.00 +failed", text) and "failed: arm stall_free, seed 0, rate=10: ConfigError" in text
    base = sweep(arms("stall_free", "vllm_v1"), LOAD, {"rate": [5, 10]}, executor=MadeUp(ttft))
    assert base.point(rate=10).comparison is None
    assert "failed" in format_sweep(base, TTFT)


def test_where_all_fail_alike_the_error_is_raised_as_it_is() -> None:
    def ttft(task: Task) -> float:
        raise ConfigError("dear me")

    found = sweep(arms("vllm_v1"), LOAD, {"rate": [5, 10]}, executor=MadeUp(ttft))
    assert isinstance(found.error(), ConfigError) and str(found.error()) == "dear me"


def test_interrupted_it_holds_what_was_done() -> None:
    found = sweep(arms("vllm_v1", "sjf"), LOAD, {"rate": [5, 10, 15]}, executor=MadeUp(lambda task: 1.0, most=5))
    assert found.was_interrupted and [p.label for p in found.points] == ["rate=5", "rate=10"]
    assert found.missing == ({"rate": 15},)
    assert "* interrupted: 2 of 3 points are done" in format_sweep(found)
    with pytest.raises(KeyboardInterrupt):
        sweep(arms("vllm_v1", "sjf"), LOAD, {"rate": [5, 10]}, executor=MadeUp(lambda task: 1.0, most=0))


def test_it_goes_on_where_it_stopped_with_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    from batchwright.lab.executors.serial import Serial

    class Interrupted(Serial):
        def run(self, tasks: Any, progress: Any = None, keep: Any = None) -> Any:
            return super().run(tasks[:5], progress, keep)

    def run(saved: SavedRuns | None = None, executor: Any = None) -> Sweep:
        over = {"max_num_batched_tokens": [256, 2048]}
        return sweep(arms("vllm_v1", "stall_free"), LOAD, over, seeds=2, saved=saved, executor=executor)

    whole = run()
    part = run(SavedRuns(Folder(tmp_path)), Interrupted())
    assert part.was_interrupted and len(part.points) == 1
    again = run(SavedRuns(Folder(tmp_path), resume=True))
    assert json.dumps(again.to_json()) == json.dumps(whole.to_json())
    assert again.num_found == 5


def test_points_run_beside_each_other_give_the_same_bytes() -> None:
    def run(jobs: int | None) -> str:
        return json.dumps(sweep(arms("vllm_v1", "stall_free"), LOAD, {"rate": [10, 40]}, jobs=jobs).to_json())

    assert run(2) == run(None)


# What is said ---------------------------------------------------------------------------------------------------------


def test_three_arms_have_their_differences_in_their_cells() -> None:
    values = {"a": 1.0, "b": 0.5, "c": 1.0}
    configs = dict.fromkeys(values, EngineConfig())
    found = sweep(configs, LOAD, {"rate": [5]}, executor=MadeUp(lambda task: values[task.arm]))
    lines = format_sweep(found, TTFT).splitlines()
    assert lines[0] == "Mean TTFT (ms)" and lines[1].split() == ["rate", "a", "b", "c"]
    assert lines[2].split() == ["5", "1,000.00", "500.00", "1,000.00"] and lines[3].split() == ["-50.0%", "better"]


def test_one_arm_alone_has_its_figures() -> None:
    found = sweep({"a": EngineConfig()}, LOAD, {"rate": [5]}, executor=MadeUp(lambda task: 1.0))
    text = format_sweep(found)
    assert "Goodput" not in text and "Differences" not in text and "1,000.00" in text


def test_points_at_which_a_load_says_little_are_named() -> None:
    text = format_sweep(sweep(dict.fromkeys("ab", EngineConfig()), LOAD, {"rate": [5, 4000]}), width=300)
    assert "a and b decide alike at rate=5; rate=4000: the load there cannot separate them" in text
    assert "goes from" not in text
    refused = dict.fromkeys("ab", EngineConfig(num_blocks=40))
    text = format_sweep(sweep(refused, LOAD, {"rate": [5]}), width=300)
    assert re.search(r"a: \d+ refused at rate=5: latencies are of the others only", text)


def test_what_is_said_of_every_point_is_said_once() -> None:
    """Seeds that give the same runs, say: this workload has nothing to draw."""
    load = load_workload("synthetic:rate=inf,n=12,prompt=40,output=3")
    found = sweep(arms("vllm_v1", "sjf"), load, {"max_num_seqs": [8, 16]}, seeds=2)
    lines = [
        line
        for p in found.points
        if p.comparison
        for line in p.comparison.closing
        if "the very runs of another" in line
    ]
    assert len(lines) == 2
    assert format_sweep(found, TTFT, 400).count("the very runs of another") == 1


def test_a_point_is_found_by_its_values() -> None:
    over = {"rate": [5, 10], "prefix_cache.enabled": [True, False]}
    found = sweep({"a": EngineConfig()}, LOAD, over, executor=MadeUp(lambda task: 1.0))
    assert found.point(rate=5, prefix_cache__enabled=False).label == "rate=5, prefix_cache.enabled=false"
    with pytest.raises(ConfigError, match="2 of 4 points have rate=5"):
        found.point(rate=5)


def test_what_a_workload_is_offered_by_stays_when_its_load_is_changed() -> None:
    load = replace(load_workload("synthetic:rate=4,n=8,prompt=10"), too_long="clip")
    changed = with_load(load.closed(3), {"prompt": 9})
    assert (changed.concurrency, changed.too_long, changed.rows[0].num_prompt_tokens) == (3, "clip", 9)
    merged = load_workload("synthetic:rate=4,n=8 + synthetic:rate=2,n=4")
    assert with_load(merged, {"rate": 12}).rate == pytest.approx(12)
    with pytest.raises(ConfigError, match=r"is a key of synthetic workloads, and .* is none"):
        Setup({"a": EngineConfig()}, merged).at({"prompt": 9})
