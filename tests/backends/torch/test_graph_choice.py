"""Whether decodes are recorded, and what memory graphs leave."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

from backends.torch.driver import Driver
from backends.torch.graphing import Make, MakeKernel
from backends.torch.recording import RecordedGraph, RecordingDevice
from backends.torch.test_equality import check, prompts
from batchwright.errors import BackendError
from batchwright_backends.torch import backend as backend_module
from batchwright_backends.torch.devices import CpuDevice
from batchwright_backends.torch.graphs import GraphChoice
from batchwright_backends.torch.kernels.choice import Choice
from batchwright_backends.torch.kernels.sdpa import ScaledDotProduct


def test_what_the_option_comes_to(make_kernel: MakeKernel) -> None:
    kernel, cpu, gpu = make_kernel("flash_attn 3"), CpuDevice(torch.device("cpu")), RecordingDevice()
    assert GraphChoice.make("auto", gpu, kernel, 12) == GraphChoice([1, 2, 4, 8, 12])
    assert str(GraphChoice.make(True, gpu, kernel, 12)) == "decodes of up to 12 requests as CUDA graphs of 5 sizes"
    for wanted, device, by, reason in (
        (False, gpu, kernel, "cuda_graphs is false"),
        ("auto", cpu, kernel, "cpu has none"),
        ("auto", gpu, ScaledDotProduct(), "not with attention by sdpa: how it divides its work depends on the lengths"),
    ):
        choice = GraphChoice.make(wanted, device, by, 12)  # type: ignore[arg-type]
        assert not choice.sizes and str(choice).startswith(f"no CUDA graphs ({reason}")
        assert choice.attempt(lambda: 1 / 0, 7.0) == 7.0
        if wanted == "auto":
            with pytest.raises(BackendError, match=r"cuda_graphs is true, and there can be none: .*auto or false"):
                GraphChoice.make(True, device, by, 12)
    with pytest.raises(NotImplementedError, match="sdpa: how it divides"):
        ScaledDotProduct().plan_decodes(None, 4)  # type: ignore[arg-type]


def test_a_cpu_records_nothing(make_plain: Make) -> None:
    with pytest.raises(BackendError, match="cannot be recorded on cpu: only a GPU has graphs"):
        make_plain("llama").runner.record_decodes([1], 4)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, make_kernel: MakeKernel) -> RecordingDevice:
    """Backends are made on a played GPU, with attention by FlashAttention 3."""
    device = RecordingDevice()
    kernel = make_kernel("flash_attn 3")
    monkeypatch.setattr(backend_module, "device_of", lambda _: device)
    monkeypatch.setattr(backend_module, "choose", lambda *_: Choice(kernel, "auto"))
    return device


def test_a_load_records_and_says_so(gpu: RecordingDevice, make_plain: Make) -> None:
    backend = make_plain("llama", max_num_seqs=3)
    assert gpu.count("capture") == 3 and backend.runner.graphs.sizes == [1, 2, 3]
    assert backend.runner.graphs.tensors.block_tables.shape == (3, 64)  # 256 tokens in blocks of 4
    assert backend.notes[-1] == "decodes of up to 3 requests as CUDA graphs of 3 sizes"
    assert make_plain("llama", max_num_seqs=3, num_blocks=5).runner.graphs.tensors.block_tables.shape == (3, 5)
    off = make_plain("llama", cuda_graphs=False)
    assert off.runner.graphs is None and off.notes[-1] == "no CUDA graphs (cuda_graphs is false)"


def test_the_cache_takes_what_steps_and_graphs_leave(gpu: RecordingDevice, make_plain: Make) -> None:
    block = 3 * 4 * (2 * 8) * 2 * 4
    free, total, mib = gpu.free_bytes(), gpu.total_bytes(), 1 << 20
    settings = {"num_blocks": None, "max_num_seqs": 20, "max_num_batched_tokens": 64, "memory_fraction": 0.75}
    # Six sizes: the first takes 5 MiB, each other one 1 MiB; a step takes 3 MiB.
    expected = (free - (3 + 5 + 5) * mib - total // 4) // block
    assert make_plain("llama", **settings).capacity().num_blocks == expected
    assert [entry for entry in gpu.log if entry[0] in ("peak", "capture")][:3] == [
        ("peak",),
        ("capture", "pool 1"),
        ("capture", "pool 1"),
    ]
    assert gpu.log[-1] == ("capture", "pool 2")  # over the cache that was made
    gc.collect()  # the backend above and its graphs
    assert gpu.free_bytes() == free
    without = make_plain("llama", cuda_graphs=False, **settings).capacity().num_blocks
    assert without == (free - 3 * mib - total // 4) // block


def test_a_model_that_cannot_be_recorded_runs_without(
    gpu: RecordingDevice,
    make_plain: Make,
    load_reference: Make,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capture = gpu.capture

    def capture_with_a_wait(run: Callable[[], Any], pool: Any) -> RecordedGraph:
        def waiting() -> None:
            run()
            torch.ones(2).nonzero()

        gpu.warm_up(waiting)
        return capture(waiting, pool)

    monkeypatch.setattr(gpu, "capture", capture_with_a_wait)
    with caplog.at_level(logging.WARNING):
        backend = make_plain("llama", max_num_seqs=3)
    assert backend.runner.graphs is None
    words = "no CUDA graphs (a step of this model cannot be recorded (RuntimeError: operation not permitted"
    assert words in caplog.text and backend.notes[-1].startswith(words)
    driver = Driver(backend)
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, 3)
    check(driver, load_reference("llama"), requests, 3)
    with pytest.raises(BackendError, match="cuda_graphs is true, and there can be none: a step of this model cannot"):
        make_plain("llama", max_num_seqs=3, cuda_graphs=True)
