"""A machine fitted to a recorded run predicts another run; a host fitted to a log is the host that made it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from batchwright.calibration import CalibrationSettings
from batchwright.config import EngineConfig
from batchwright.errors import ConfigError
from batchwright.lab import RunRecord, load_workload, run_arm
from batchwright_backends.sim.calibrator import calibrate_simulator, from_runs
from batchwright_backends.sim.machine_file import as_yaml
from batchwright_backends.sim.models import find_model
from batchwright_backends.sim.recorded_steps import recorded_steps
from batchwright_backends.sim.run_fit import plain_machine
from batchwright_backends.sim.target import parse_target

MODEL = "smollm2-135m"
SHAPE = find_model(MODEL)
LEARNT = "synthetic:rate=5,n=80,prompt=lognormal(200,0.7),output=uniform(8,90),seed=1"
OTHER = "synthetic:rate=12,n=60,prompt=uniform(20,900),output=lognormal(40,0.6),seed=2"


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """A CPU of known constants, as a file: few rows are bound by memory, many by arithmetic, and a step costs."""
    gpu = {
        "name": "truth",
        "title": "a CPU",
        "uncalibrated": False,
        "memory_bytes": 4 * 10**9,
        "peak_flops": 4e11,
        "peak_bandwidth": 2e10,
        "gemm": {"flops": 3e11, "bandwidth": 1.6e10, "power": 3.0, "floor_s": 0.0},
        "decode_attention": {
            "bandwidth": 5e9,
            "head_row_s": 0.0,
            "row_power": 1.0,
            "floor_s": 0.0,
            "key_s": 0.0,
            "power": 1.0,
        },
        "chunk_attention": {
            "flops": 5e10,
            "io_bandwidth": 1e12,
            "head_row_s": 0.0,
            "floor_s": 0.0,
            "key_s": 0.0,
            "power": 1.0,
            "tile": 1,
        },
        "elementwise": {"layer_floor_s": 0.0, "bandwidth": 4e9},
        "sampling": {"floor_s": 0.0, "logits_per_s": 2e9, "power": 1.0},
        "all_reduce": {"latency_s": 0.0, "bandwidth": 1e9},
        "host": {"step_s": 2e-3, "request_s": 3e-5},
    }
    file = tmp_path / "truth.yaml"
    file.write_text(as_yaml({"model": MODEL, "gpu": gpu}))
    return str(file)


def run(target: str, workload: str, **settings: object) -> RunRecord:
    values = {"policy": "vllm_v1", "backend": f"sim:{target}", "max_num_batched_tokens": 512, "num_blocks": 2000}
    return run_arm(EngineConfig.parse({**values, **settings}), load_workload(workload), declared="exact")


def real(record: RunRecord) -> RunRecord:
    """As if a real machine had run it."""
    record.virtual_time = False
    record.backend = f"cpu:{MODEL}"
    return record


def tpot_s(record: RunRecord) -> float:
    times = [r.token_times_s for r in record.requests]
    return float(np.mean([(t[-1] - t[0]) / (len(t) - 1) for t in times if len(t) > 1]))


def test_a_run_on_other_requests_is_predicted(machine: str, tmp_path: Path) -> None:
    report = from_runs([real(run(machine, LEARNT))], None, "run.json")
    assert set(report.held_out) >= {"decode", "mixed", "all"}
    assert report.held_out["all"].mean < 0.02
    mine = tmp_path / "mine.yaml"
    mine.write_text(report.text)
    truth, predicted = run(machine, OTHER), run(str(mine), OTHER)
    assert tpot_s(predicted) == pytest.approx(tpot_s(truth), rel=0.04)
    assert predicted.duration_s == pytest.approx(truth.duration_s, rel=0.04)


def test_several_runs_are_fitted_together(machine: str) -> None:
    few = real(run(machine, "synthetic:rate=1,n=12,prompt=40,output=30,seed=4"))
    many = real(run(machine, "synthetic:rate=inf,n=40,prompt=uniform(100,300),output=uniform(20,60),seed=4"))
    report = from_runs([few, many], None, "run.json")
    assert report.notes[0].startswith(f"fitted to {len(few.steps) + len(many.steps)} recorded steps of cpu:{MODEL}: ")
    assert report.held_out["all"].mean < 0.02
    many.backend = "cpu:qwen3-0.6b"
    with pytest.raises(ConfigError, match=f"runs of cpu:{MODEL} and cpu:qwen3-0.6b cannot be fitted together"):
        from_runs([few, many], None, "run.json")


def test_the_pool_of_a_fitted_machine_is_the_recorded_one(machine: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(from_runs([real(run(machine, LEARNT))], None, "run.json").text)
    again = run(str(mine), LEARNT, num_blocks=None)
    assert again.limits.num_blocks == 2000


def test_constants_that_a_run_tells_apart_are_found(machine: str) -> None:
    record = run(machine, LEARNT)
    report = from_runs([real(record)], None, "run.json")
    found = parse_target_text(report.text)
    assert found["host"]["step_s"] == pytest.approx(2e-3, rel=0.3)  # reading weights is nearly a constant too
    assert found["decode_attention"]["bandwidth"] == pytest.approx(5e9, rel=0.1)
    assert found["gemm"]["flops"] == pytest.approx(3e11, rel=0.2)


def parse_target_text(text: str) -> dict[str, dict[str, float]]:
    import yaml

    gpu: dict[str, dict[str, float]] = yaml.safe_load(text)["gpu"]
    return gpu


def test_a_disturbed_machine_is_fitted_and_its_sum_is_right(machine: str) -> None:
    record = real(run(machine, LEARNT))
    rng = np.random.default_rng(0)
    late = 0
    for step in record.steps:  # some steps take twice as long, all vary
        lasts = step.end_ns - step.start_ns
        more = round(lasts * (abs(rng.normal(0, 0.05)) + (rng.random() < 0.05)))
        step.start_ns += late
        late += more
        step.end_ns += late
    moved = {step.index: step for step in record.steps}
    assert late > 0
    assert moved
    ends = dict(zip((s.end_ns for s in run(machine, LEARNT).steps), (s.end_ns for s in record.steps), strict=True))
    starts = dict(
        zip((s.start_ns for s in run(machine, LEARNT).steps), (s.start_ns for s in record.steps), strict=True)
    )
    for request in record.requests:
        request.token_times_ns = type(request.token_times_ns)("q", [ends[t] for t in request.token_times_ns])
        assert request.first_scheduled_ns is not None
        request.first_scheduled_ns = starts[request.first_scheduled_ns]
        request.finish_ns = request.token_times_ns[-1]
    report = from_runs([record], None, "run.json")
    (total,) = [note for note in report.notes if note.startswith("the sum of those kept")]
    assert float(total.partition("predicted ")[2].partition("%")[0]) < 5


def test_what_cannot_be_fitted_is_refused(machine: str) -> None:
    record = run(machine, LEARNT)
    with pytest.raises(ConfigError, match="simulated time; record a run on cpu or cuda"):
        from_runs([record], None, "run.json")
    short = real(run(machine, "synthetic:rate=inf,n=2,prompt=20,output=4,seed=1"))
    with pytest.raises(ConfigError, match=r"has \d+ steps whose batch is certain, and a fit needs 40"):
        from_runs([short], None, "run.json")
    record = real(record)
    record.backend = "cpu:nobody/nothing"
    with pytest.raises(ConfigError, match=r"the shape of 'nobody/nothing' is not known.*--base"):
        from_runs([record], None, "run.json")


def test_a_start_from_nothing_follows_the_extremes(machine: str) -> None:
    record = run(machine, LEARNT)
    steps = recorded_steps(record.steps, record.requests)
    gpu = plain_machine("cpu", SHAPE, steps, 10**9)
    assert gpu.gemm.flops == pytest.approx(3e11, rel=0.7)
    assert gpu.gemm.bandwidth == pytest.approx(1.6e10, rel=0.5)


HOST = (4e-3, 1e-4)


def write_log(folder: Path, record: RunRecord, num_blocks: int) -> Path:
    """A log as LLMServingSim keeps it of vLLM, and what it says of the limits."""
    lines = [
        {
            "request_id": r.request_id,
            "input_toks": r.num_prompt_tokens,
            "output_toks": r.num_output_tokens,
            "queued_ts": 1000 + r.arrival_s,
            "first_token_ts": 1000 + r.token_times_s[0],
            "last_token_ts": 1000 + r.token_times_s[-1],
        }
        for r in record.requests
    ]
    file = folder / "requests.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))
    meta = {
        "engine_kwargs": {"max_num_seqs": 256, "max_num_batched_tokens": 2048},
        "kv_cache": {"num_gpu_blocks": num_blocks + 1, "block_size": 16, "enable_prefix_caching": True},
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return file


def test_the_host_of_a_log_is_found(tmp_path: Path) -> None:
    target = "llama-3.1-8b@rtx4090"
    record = run(
        target,
        "synthetic:rate=8,n=60,prompt=lognormal(300,0.8),output=uniform(5,80),seed=3",
        max_num_batched_tokens=2048,
        backend_options={"host_step_s": HOST[0], "host_request_s": HOST[1]},
    )
    log = write_log(tmp_path, record, 2000)
    report = calibrate_simulator(CalibrationSettings(log, target))
    mine = tmp_path / "mine.yaml"
    mine.write_text(report.text)
    host = parse_target(str(mine)).gpu.host
    assert host.step_s == pytest.approx(HOST[0], rel=0.01)
    assert host.request_s == pytest.approx(HOST[1], rel=0.02)
    assert set(report.held_out) == {"TTFT", "TPOT", "E2E"}
    assert report.held_out["TPOT"].mean < 0.02
    assert "max_num_seqs 256" in report.notes[1]
    assert "replayed with vllm_v1" in host.source


BROKEN = {
    "nonsense": "is no JSON",
    "[1]": "is no JSON object",
    '{"input_toks": 5}': "output_toks should be a number and is None",
    '{"input_toks": 0, "output_toks": 5, "queued_ts": 1, "first_token_ts": 2, "last_token_ts": 3}': "at least 1",
    '{"input_toks": 5, "output_toks": 5, "queued_ts": 3, "first_token_ts": 2, "last_token_ts": 3}': "queued_ts <=",
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_of_a_log_is_named(line: str, tmp_path: Path) -> None:
    good = '{"input_toks": 5, "output_toks": 5, "queued_ts": 1, "first_token_ts": 2, "last_token_ts": 3}'
    file = tmp_path / "requests.jsonl"
    file.write_text(f"{good}\n{line}\n")
    with pytest.raises(ConfigError, match=r"requests.jsonl', line 2.*" + BROKEN[line]):
        calibrate_simulator(CalibrationSettings(file, "llama-3.1-8b@h100"))
