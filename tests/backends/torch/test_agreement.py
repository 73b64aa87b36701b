"""A real model on the CPU beside the simulator: recorded, calibrated, predicted, and held to each other.

Nothing here is said of times: tests share their machine. How near the simulator comes is measured by
``benchmarks/fidelity.py`` and ``benchmarks/agree_cpu.py`` on a quiet one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import agree_cpu
import fidelity
from batchwright.cli.app import app
from batchwright.lab.agree import SIGNS
from batchwright_backends.sim.calibrator import read_run
from fidelity_recorded import config_of, workload_of

Folders = Callable[[str], Path]

LOAD = "synthetic:rate=inf,n=12,prompt=uniform(20,100),output=uniform(8,24),seed=3"


@pytest.fixture
def runs(folders: Folders, tmp_path: Path) -> Path:
    """Two recorded runs of a tiny model."""
    sizes = ["--set", "max_num_batched_tokens=64", "--set", "num_blocks=64", "--set", "max_num_seqs=6"]
    for name, load in (("a", LOAD), ("b", LOAD.replace("seed=3", "seed=4"))):
        arguments = ["--record", name, "--workload", load, "--backend", f"cpu:{folders('llama')}", *sizes]
        assert fidelity.main([str(tmp_path / "runs"), *arguments]) == 0
    return tmp_path / "runs"


def test_a_recorded_run_is_predicted_from_another(
    runs: Path, folders: Folders, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fidelity.main([str(runs), "--json", str(runs / "out.json")]) == 0
    out = capsys.readouterr().out
    assert "12 requests" in out and "TTFT p90" in out and "total time" in out
    (found,) = json.loads((runs / "out.json").read_text())["runs"]
    (prediction,) = found["predictions"]
    assert len(prediction["figures"]) == 16
    assert all(figure["measured_s"] > 0 and figure["predicted_s"] > 0 for figure in prediction["figures"])
    assert any(f"cpu:{folders('llama')}" in said for said in prediction["fitted_on"])


def test_the_prediction_has_the_settings_and_requests_of_the_record(runs: Path) -> None:
    record = read_run(runs / "b.json")
    config = config_of(record, "sim:llama-3.1-8b@h100")
    sizes = (config.max_num_batched_tokens, config.num_blocks, config.max_num_seqs, config.block_size)
    assert sizes == (64, 64, 6, record.limits.block_size)
    assert config.policy["use"] == "vllm_v1"  # type: ignore[index]
    assert config.prefix_cache.visible == "scheduled"
    rows = workload_of(record).rows
    assert [row.num_prompt_tokens for row in rows] == [r.num_prompt_tokens for r in record.requests]
    assert [row.num_output_tokens for row in rows] == [r.num_output_tokens for r in record.requests]


def test_a_workload_that_changed_since_is_refused(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    value = json.loads((runs / "b.json").read_text())
    value["runs"][0]["workload"]["hash"] = "0" * 16
    (runs / "b.json").write_text(json.dumps(value))
    capsys.readouterr()
    assert fidelity.main([str(runs)]) == 2
    assert "is not the workload of run 'b' any more: record it again" in capsys.readouterr().err


def test_ab_agree_on_a_simulator_and_a_model(folders: Folders, tmp_path: Path) -> None:
    machine = tmp_path / "machine.yaml"
    machine.write_text(f"model: {folders('llama')}\ngpu: h100\n")
    out = tmp_path / "out.json"
    arguments = ["ab", "prefill_first", "stall_free:chunk_size=32", "--agree", "--json", str(out)]
    arguments += ["--backend", f"sim:{machine},cpu:{folders('llama')}", "--workload", LOAD]
    answer = CliRunner().invoke(app, [*arguments, "--set", "num_blocks=64", "--set", "block_size=4"])
    assert answer.exit_code in (0, 1), answer.output
    value = json.loads(out.read_text())
    assert [c["runs"][0]["virtual_time"] for c in value["comparisons"]] == [True, False]
    assert {a["sign"] for a in value["agreements"]} <= set(SIGNS)
    assert {a["metric"] for a in value["agreements"]} >= {"mean_ttft_ms", "p99_itl_ms", "request_throughput"}
    contradicted = [a for a in value["agreements"] if a["tested"] and a["sign"] == "opposite"]
    assert answer.exit_code == bool(contradicted)
    assert "the clock is real and each arm ran once" in " ".join(answer.output.split())


def test_pairs_of_policies_are_told_one_by_one(
    runs: Path, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pairs on the tiny model; the second does not replace the first in the file."""
    sizes = {"max_num_batched_tokens": 64, "max_num_seqs": 6}
    small = agree_cpu.Pair("vllm_v1", "static_batch", "mean_ttft_ms", LOAD, {**sizes, "max_num_seqs": 4}, "later")
    pairs = (small, agree_cpu.Pair("vllm_v1", "no_evict", "mean_ttft_ms", LOAD, {**sizes, "num_blocks": 16}, "fewer"))
    monkeypatch.setattr(agree_cpu, "PAIRS", pairs)
    out = tmp_path / "pairs.json"
    for pair in pairs:
        arguments = [str(runs / "a.json"), "--backend", f"cpu:{folders('llama')}", "--only", pair.name]
        assert agree_cpu.main([*arguments, "--rounds", "1", "--json", str(out)]) in (0, 1)
    value = json.loads(out.read_text())
    assert [row["pair"] for row in value["rows"]] == ["static_batch", "no_evict"]
    for row in value["rows"]:
        assert len(row["real"]) == len(row["signs"]) == 1
        assert row["holds"] == (set(row["signs"]) == {"agree"})
        assert row["simulated"]["value"] > 0
    assert value["processor"] and value["calibrated"]
