"""What a graph reads and writes, and which steps are replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from backends.torch.conftest import VOCABULARY
from backends.torch.driver import Driver
from backends.torch.graphing import Make, MakeKernel, on_gpu, replays
from backends.torch.recording import RecordingDevice
from backends.torch.test_equality import prompts
from batchwright_backends.torch.graphs import DecodeGraphs
from batchwright_backends.torch.inputs import DirectUpload, StepInputs, StepTensors
from batchwright_backends.torch.kernels.flash_attn3 import FlashAttention3
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kernels.rows import Rows
from batchwright_backends.torch.runner import Runner


def test_padding_lies_in_the_null_block(make_kernel: MakeKernel, make_plain: Make) -> None:
    backend = make_plain("llama", num_blocks=12, max_model_len=24)
    on_gpu(backend, make_kernel("flash_attn 3"), [1, 4])
    runner: Runner = backend.runner
    graphs, cache = runner.graphs, runner.cache
    assert graphs is not None
    null = cache.null_block
    before = {name: getattr(graphs.tensors, name).data_ptr() for name in ("token_ids", "slots", "block_tables")}
    four = [([5], 2, [1]), ([6], 5, [2, 3]), ([7], 1, [4]), ([8], 3, [5])]
    runner.logits(StepInputs.of_rows(four, 4))
    pools = [pool.clone() for pool in (*cache.keys, *cache.values)]
    # Two rows where there were four: what the others left must not be read.
    logits = runner.logits(StepInputs.of_rows([([9], 6, [2, 3]), ([4], 3, [1])], 4))
    assert logits.shape == (2, VOCABULARY) and bool(logits.isfinite().all())
    tensors = graphs.tensors
    assert tensors.token_ids.tolist() == [9, 4, 0, 0]
    assert tensors.positions.tolist() == [6, 3, 0, 0]
    assert tensors.slots.tolist() == [3 * 4 + 2, 1 * 4 + 3, null * 4, null * 4]
    assert tensors.context_lens.tolist() == [7, 4, 1, 1]
    assert tensors.starts.tolist() == [0, 1, 2, 3, 4]
    assert tensors.block_tables[:, 0].tolist() == [2, 1, null, null]
    assert tensors.block_tables[0, :2].tolist() == [2, 3]
    assert before == {name: getattr(tensors, name).data_ptr() for name in before}
    for old, new in zip(pools, (*cache.keys, *cache.values), strict=True):
        changed = {tuple(place) for place in (old != new).flatten(2).any(-1).nonzero().tolist()}
        assert changed <= {(3, 2), (1, 3), (null, 0)}
        assert bool(new.isfinite().all())


def test_every_size_is_recorded_after_it_ran_the_largest_first(make_kernel: MakeKernel, make_plain: Make) -> None:
    sizes = [1, 2, 4]
    device = on_gpu(make_plain("llama"), make_kernel("flash_attn 3"), sizes)
    steps = [entry for entry in device.log if entry[0] in ("warm up", "capture")]
    assert steps == [("warm up",), ("capture", "pool 1")] * 3
    assert replays(device, sizes) == []


def test_only_steps_of_decodes_are_replayed(make_kernel: MakeKernel, make_plain: Make) -> None:
    backend = make_plain("llama", max_model_len=32)
    device = on_gpu(backend, make_kernel("flash_attn 3"), [1, 2])
    driver = Driver(backend)
    a, b, c = (driver.request(f"r{i}", p) for i, p in enumerate(prompts((2, 1, 5))))
    for rows, replayed in (
        ([(a, 1)], 0),  # one token of a prompt, nothing is sampled
        ([(a, 1), (b, 1)], 1),  # the last token of each prompt: one token a row, and each samples
        ([(a, 1), (c, 1)], 0),
        ([(a, 1), (c, 4)], 0),
        ([(a, 1), (b, 1)], 1),
        ([(a, 1), (b, 1), (c, 1)], 0),  # no graph is so large
        ([(c, 1)], 1),
    ):
        before = device.count("replay")
        driver.step(rows)
        assert device.count("replay") - before == replayed, rows


def test_a_graph_keeps_what_python_read() -> None:
    """The stand-in itself: else a kernel that keeps a number on the host would pass these tests."""
    device = RecordingDevice()
    lens, out = torch.tensor([3.0]), torch.zeros(2)

    def baked() -> None:
        out[0].copy_(lens[0] * 2)
        out[1].fill_(sum(lens.tolist()))

    device.warm_up(baked)
    graph = device.capture(baked, device.graph_pool())
    lens[0] = 5.0
    graph.replay()
    assert out.tolist() == [10.0, 3.0]
    for waits in (lambda: lens.nonzero(), lambda: float(lens[0]), lambda: lens[lens > 2]):
        device.warm_up(waits)
        with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
            device.capture(waits, device.graph_pool())


@pytest.mark.parametrize("keeps", ["context_lens", "block_tables"])
def test_a_plan_that_keeps_values_gives_other_logits(keeps: str, make_kernel: MakeKernel, make_plain: Make) -> None:
    """A negative control of the comparisons above."""
    kernel = make_kernel("flash_attn 3")

    class Keeping(FlashAttention3):
        def plan_decodes(self, tensors: StepTensors, max_keys: int) -> Rows:
            kept = replace(tensors, **{keeps: getattr(tensors, keeps).clone()})
            return super().plan_decodes(kept, max_keys)

    def logits(kind: AttentionKernel) -> torch.Tensor:
        backend = make_plain("llama", max_model_len=24)
        device = on_gpu(backend, kind, [1])
        backend.runner.logits(StepInputs.of_rows([([3, 4, 5, 6, 7, 8], 0, [2, 0])], 4))
        out: torch.Tensor = backend.runner.logits(StepInputs.of_rows([([9], 6, [2, 0])], 4)).clone()
        assert device.count("replay") == 1
        return out

    if keeps == "context_lens":
        assert not torch.allclose(logits(kernel), logits(Keeping()), atol=1e-2)
    else:  # of padding rows no other block is known; the stand-in sees the null block under a longer row
        with pytest.raises(AssertionError):
            logits(Keeping())


def test_the_arrays_of_a_step_go_in_two_pieces(make_kernel: MakeKernel, make_plain: Make) -> None:
    """No more is uploaded than the columns and the tables, whatever the number of rows."""
    backend = make_plain("llama", max_model_len=24)
    on_gpu(backend, make_kernel("flash_attn 3"), [4])
    graphs: DecodeGraphs = backend.runner.graphs
    sent: list[int] = []

    class Counting(DirectUpload):
        def put(self, array: Any, dtype: Any = None) -> torch.Tensor:
            sent.append(array.nbytes)
            return super().put(array, dtype)

    inputs = StepInputs.of_rows([([9], 6, [2, 3]), ([4], 3, [1])], 4)
    graphs.fill(inputs, 4, Counting(torch.device("cpu")))
    assert sent == [4 * 28, 4 * 2 * 4]
