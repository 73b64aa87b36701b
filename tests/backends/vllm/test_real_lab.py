"""The lab on a real vLLM, by its commands: A/B, decisions that replay, traffic that is replayed. make check-vllm."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="needs vLLM, which is not installed: make check-vllm")

from backends.vllm.elsewhere import python
from batchwright.lab import load_workload
from batchwright_backends.torch.models import ensure_model

if not os.environ.get("BATCHWRIGHT_REAL_VLLM"):
    pytest.skip("minutes long: make check-vllm", allow_module_level=True)

SIZES = {
    "block_size": 32,
    "num_blocks": 60,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 128,
    "max_model_len": 512,
    "backend_options.dtype": "float32",
    "backend_options.engine_args.enforce_eager": "true",
}
ON_VLLM = ["--backend", "vllm:smollm2-135m", *(part for n, v in SIZES.items() for part in ("--set", f"{n}={v}"))]
LOAD = "synthetic:rate=20,n=12,prompt=uniform(20,150),output=uniform(4,24),prefix=32"
CROWD = "synthetic:rate=200,n=10,prompt=uniform(20,150),output=uniform(30,60),prefix=32"

RECORDS = str(Path(__file__).with_name("records.py"))


def batchwright(*args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return python("-m", "batchwright", *args, code=code)


def test_policies_are_compared_on_vllm_by_the_labs_own_command(tmp_path: Path) -> None:
    """vLLM's own scheduler, ours in its place and a guest in it, in a closed loop; all arms bring the same tokens. The
    experiment is kept, and goes on where it was cut off."""
    out, folder = tmp_path / "ab.json", tmp_path / "ab"
    command = (
        *("ab", "observe", "host=stall_free:chunk_size=64", "guest=vtc"),
        *(*ON_VLLM, "--arm-set", "guest.backend_options.adapter=guest", "--concurrency", "5"),
        *("--workload", LOAD, "--json", str(out), "--out", str(folder)),
    )
    done = batchwright(*command)
    assert "observe on vLLM" in done.stdout and "vLLM's own scheduler" in done.stdout
    runs: list[dict[str, Any]] = json.loads(out.read_text())["runs"]
    assert [run["settings"]["vllm.adapter"] for run in runs] == ["stock", "host", "guest"]
    for run in runs:
        assert run["stopped"] is None and not run["virtual_time"] and run["limits"]["num_blocks"] == 59
        assert {r["status"] for r in run["requests"]} == {"finished"}
        for asked, request in zip(run["offered"], run["requests"], strict=True):
            times = request["token_times_s"]
            assert len(times) == request["num_output_tokens"] == asked["num_output_tokens"]
            assert request["arrival_s"] <= request["first_scheduled_s"] < times[0] and times == sorted(times)
        assert sum(r["num_cached_tokens"] for r in run["requests"]) > 0
        assert max(step["num_running"] for step in run["steps"]) == 5
        computed = sum(s["num_prefill_tokens"] + s["num_decodes"] for s in run["steps"])
        asked_for = sum(
            r["num_prompt_tokens"] - r["num_cached_tokens"] + r["num_output_tokens"] - 1 for r in run["requests"]
        )
        assert computed == asked_for + sum(r["num_recomputed_tokens"] for r in run["requests"])
    (cut,) = folder.glob("runs/guest*/run.json")
    cut.unlink()
    (folder / "report.html").unlink()
    batchwright(*command, "--resume")
    again: list[dict[str, Any]] = json.loads(out.read_text())["runs"]
    assert again[:2] == runs[:2] and again[2] != runs[2]  # its times are of another run
    assert [r["num_output_tokens"] for r in again[2]["requests"]] == [
        r["num_output_tokens"] for r in runs[2]["requests"]
    ]
    assert (folder / "report.html").is_file()


def test_decisions_of_our_scheduler_in_vllm_replay(tmp_path: Path) -> None:
    """A pool that 6 requests do not fit in, so residents are evicted; clients give up; the recording is exact."""
    file, out = tmp_path / "decisions.jsonl.gz", tmp_path / "run.json"
    batchwright(
        *("run", "vllm_v1", *ON_VLLM, "--set", "num_blocks=17", "--workload", CROWD, "--record", str(file)),
        *("--rule", "share=0.2: abort_after_tokens=3", "--json", str(out)),
    )
    (run,) = json.loads(out.read_text())["runs"]
    assert {r["status"] for r in run["requests"]} == {"finished", "aborted"}
    assert sum(r["num_preemptions"] for r in run["requests"]) > 0
    assert "agree" in batchwright("replay", str(file)).stdout
    assert "differ" in batchwright("replay", str(file), "--policy", "prefill_first", code=1).stdout


def test_a_recorded_window_of_traffic_is_replayed_in_the_simulator(tmp_path: Path) -> None:
    folder = tmp_path / "traffic"
    python(RECORDS, str(ensure_model("smollm2-135m")), str(folder))
    workload = load_workload(folder)
    assert [(r.num_prompt_tokens, r.num_output_tokens, r.client_id) for r in workload.held()] == [
        (94, 6 + i, f"client-{i % 3}") for i in range(10)
    ]
    out = tmp_path / "sim.json"
    said = batchwright(
        *("ab", "observe", "vtc", "--backend", "sim:llama-3.1-8b@h100", "--workload", str(folder)),
        *("--set", "block_size=32", "--set", "num_blocks=100", "--json", str(out)),
    ).stdout
    assert "Mean TTFT" in said
    for run in json.loads(out.read_text())["runs"]:
        assert [r["num_output_tokens"] for r in run["requests"]] == [6 + i for i in range(10)]
        assert max(r["num_cached_tokens"] for r in run["requests"]) == 64  # the two blocks that all share


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--set", "backend_options.adaptor=guest"], "unknown key 'adaptor'; did you mean 'adapter'"),
        (["--set", "backend_options.engine_args.enforce_eagre=true"], "did you mean 'enforce_eager'"),
        (["--set", "backend_options.engine_args.max_num_seqs=3"], "say it with max_num_seqs"),
        (["--set", "backend_options.async_scheduling=true"], "set backend_options.adapter=guest"),
        (["--set", "overlap=true"], "vLLM has its own"),
        (["--set", "block_size=17"], "vLLM 0.32.0 did not start"),
        (["--explain", "why.jsonl"], "has one of its own; leave --explain out"),
    ],
)
def test_what_cannot_be_is_said(args: list[str], said: str, tmp_path: Path) -> None:
    args = [str(tmp_path / arg) if arg.endswith("jsonl") else arg for arg in args]
    assert said in batchwright("run", "vtc", *ON_VLLM, "--workload", LOAD, *args, code=2).stderr
