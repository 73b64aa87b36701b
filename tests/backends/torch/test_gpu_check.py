"""The script for a machine with a GPU, on CPU: its control flow, and that it would notice."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import gpu_check
import gpu_equality
from backends.torch.recording import RecordingDevice, opaque
from backends.torch.stand_ins import FlashAttention3Functions
from batchwright_backends.torch import backend as backend_module
from batchwright_backends.torch.kernels import flash_attn3
from batchwright_backends.torch.runner import Runner

COMMON = ["--device", "cpu", "--kernels", "sdpa", "--shape", "tiny", "--requests", "5", "--least", "3", "--most", "9"]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    verbosity = transformers.logging.get_verbosity()
    yield
    transformers.logging.set_verbosity(verbosity)
    transformers.logging.enable_progress_bar()


def check(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    path = tmp_path / "made" / "report.json"
    status = gpu_check.main([*COMMON, "--json", str(path), *arguments])
    report: dict[str, Any] = json.loads(path.read_text())
    return status, report


def test_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = check(tmp_path, "--models", "mistral")
    assert status == 0, capsys.readouterr().out
    assert report["where"]["packages"]["torch"] == torch.__version__
    done = [r for r in report["equality"] if r["result"] == "equal"]
    assert [r["dtype"] for r in done] == ["float32", "float16", "bfloat16"]
    assert all(r["chunks"] and r["mixed"] and r["preemptions"] and r["hits"] for r in done)
    skipped = [r for r in report["equality"] if r["result"] == "skipped"]
    assert len(skipped) == 3 and all(r["graphs"] and "depends on the lengths" in r["why"] for r in skipped)
    run, off = report["speed"]
    assert run["ran_to_its_end"] and run["num_requests"] == 5 and run["output_tokens_per_s"] > 0
    steps = run["steps"]
    assert steps["decodes"]["number"] + steps["with prompts"]["number"] == 9  # the longest output
    assert steps["decodes"]["forward (ms)"] > 0 and steps["share outside the device"] is None
    assert off == {"cuda_graphs": False, "result": "skipped", "why": "cpu"}
    assert "3 equal, 4 skipped in" in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"window": None}, {"scaling": 0.2}])
def test_it_notices(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In bfloat16 too, where rounding is largest."""
    make = Runner.__init__

    def wrong(self: Any, model: Any, layers: Any, *args: Any) -> None:
        make(self, model, {module: replace(layer, **change) for module, layer in layers.items()}, *args)

    monkeypatch.setattr(Runner, "__init__", wrong)
    status, report = check(tmp_path, "--models", "mistral", "--only", "equality")
    assert status == gpu_check.DIFFERS
    assert [r["result"] for r in report["equality"] if not r["graphs"]] == ["differs"] * 3
    assert "speed" not in capsys.readouterr().out and report["speed"] == []


def test_graphs_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a played GPU, with FlashAttention 3 played as well: with graphs and without."""
    functions = FlashAttention3Functions("flash_attn_interface")
    functions.pads = True
    functions.flash_attn_with_kvcache = opaque(functions.flash_attn_with_kvcache)  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "flash_attn_interface", functions)
    monkeypatch.setattr(flash_attn3.FlashAttention3, "refusal", staticmethod(lambda demand: None))
    monkeypatch.setattr(flash_attn3.FlashAttention3, "make", classmethod(lambda cls, demand: cls()))
    monkeypatch.setattr(backend_module, "device_of", lambda where: RecordingDevice())
    monkeypatch.setattr(gpu_equality, "TOLERANCE", {"bfloat16": gpu_equality.TOLERANCE["bfloat16"]})
    monkeypatch.setattr(gpu_equality, "BACKENDS", {"played": "cpu"})
    off, on = gpu_equality.check_all("played", ["llama"], ["flash_attn 3"], lambda: 1.0)
    assert (off["result"], on["result"]) == ("equal", "equal"), (off, on)
    assert off["replays"] == 0 < on["replays"]


def test_when_time_is_up_the_rest_is_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = check(tmp_path, "--models", "llama", "--limit", "0")
    assert status == 0
    assert {r["why"] for r in [*report["equality"], *report["speed"]]} == {"the time is up"}
    assert "8 skipped in" in capsys.readouterr().out


def test_a_failure_is_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no such kernel image\nmore")

    monkeypatch.setattr(Runner, "forward", fails)
    status, report = check(tmp_path, "--models", "llama")
    assert status == gpu_check.DIFFERS
    assert [r["result"] for r in report["equality"]] == ["fails", "skipped"] * 3
    assert "no such kernel image" in report["equality"][0]["why"]
    assert "fails" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == gpu_check.NO_GPU
    out, err = capsys.readouterr()
    assert not out and err.strip().endswith("finds no CUDA device, so nothing was checked")
