"""A GPU that records graphs, played on CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from backends.torch.recording import RecordingDevice, opaque
from backends.torch.stand_ins import FlashAttention2Functions, FlashAttention3Functions, VarlenFunctions
from batchwright_backends.torch.kernels.flash_attn import FlashAttention2
from batchwright_backends.torch.kernels.flash_attn3 import FlashAttention3
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kernels.varlen import VarlenAttention
from batchwright_backends.torch.runner import Runner

Make = Callable[..., Any]
MakeKernel = Callable[[str], AttentionKernel]


def kernel_maker(monkeypatch: pytest.MonkeyPatch) -> MakeKernel:
    """Makes the kernel of a title over a stand-in that computes in float32, and takes padding rows."""

    def make(title: str) -> AttentionKernel:
        if title == "triton":
            pytest.importorskip("triton", reason="triton is not installed")
            from batchwright_backends.torch.kernels import triton_tiles
            from batchwright_backends.torch.kernels.triton_attention import TritonAttention

            monkeypatch.setattr(
                triton_tiles, "SPLIT_KEYS", 16
            )  # long rows are split, and short ones beside them are not
            kernel = TritonAttention()
            monkeypatch.setattr(kernel, "_attend_tile", Launches(kernel._attend_tile))
            monkeypatch.setattr(kernel, "_join_parts", Launches(kernel._join_parts))
            return kernel
        made: tuple[Any, str, Callable[[], AttentionKernel], str] = {
            "flash_attn 2": (FlashAttention2Functions(), "flash_attn_with_kvcache", FlashAttention2, "flash_attn"),
            "flash_attn 3": (
                FlashAttention3Functions("flash_attn_interface"),
                "flash_attn_with_kvcache",
                FlashAttention3,
                "flash_attn_interface",
            ),
            "varlen": (VarlenFunctions(), "varlen_attn", VarlenAttention, "torch.nn.attention.varlen"),
        }[title]
        module, function, kind, name = made
        module.pads = True
        module.dtypes.add(torch.float32)
        setattr(module, function, opaque(getattr(module, function)))
        monkeypatch.setitem(sys.modules, name, module)
        return kind()

    return make


class Launches:
    """A Triton program each of whose launches a graph holds as one piece."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        self.grids.append(grid)
        launch: Callable[..., Any] = self._program[grid]
        return opaque(launch)


def on_gpu(backend: Any, kernel: AttentionKernel, sizes: Sequence[int]) -> RecordingDevice:
    """Put a backend on a played GPU, with graphs of these sizes."""
    device = RecordingDevice()
    old = backend.runner
    backend.runner = Runner(old.model, old.layers, kernel, old.cache, device)
    capacity = backend.capacity()
    width = min(-(-capacity.max_model_len // capacity.block_size), capacity.num_blocks)
    if sizes:
        backend.runner.record_decodes(sizes, width)
    return device


def replays(device: RecordingDevice, sizes: Sequence[int]) -> list[int]:
    """Sizes of the graphs that were replayed: the largest was recorded first."""
    return [sizes[-1 - entry[1]] for entry in device.log if entry[0] == "replay"]
