"""Steps of decodes as graphs, on a GPU played on CPU: which graph runs, on what, and that the tokens are the same."""

from __future__ import annotations

import gc
import logging
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from backends.torch.conftest import VOCABULARY
from backends.torch.driver import Driver
from backends.torch.recording import RecordedGraph, RecordingDevice, opaque
from backends.torch.stand_ins import FlashAttention2Functions, FlashAttention3Functions, VarlenFunctions
from backends.torch.test_equality import NUM_TOKENS, check, prompts
from batchwright.errors import BackendError
from batchwright_backends.torch import backend as backend_module
from batchwright_backends.torch.devices import CpuDevice
from batchwright_backends.torch.graphs import DecodeGraphs, GraphChoice, graph_sizes
from batchwright_backends.torch.inputs import DirectUpload, StepInputs, StepTensors
from batchwright_backends.torch.kernels.choice import Choice
from batchwright_backends.torch.kernels.flash_attn import FlashAttention2
from batchwright_backends.torch.kernels.flash_attn3 import FlashAttention3
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kernels.rows import Rows
from batchwright_backends.torch.kernels.sdpa import ScaledDotProduct
from batchwright_backends.torch.kernels.varlen import VarlenAttention
from batchwright_backends.torch.runner import Runner

Make = Callable[..., Any]
MakeKernel = Callable[[str], AttentionKernel]


@pytest.fixture
def make_kernel(monkeypatch: pytest.MonkeyPatch) -> MakeKernel:
    """The kernel of that title over a stand-in that computes in float32, and takes padding rows."""

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


# Sizes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 3, 7, 8, 9, 12, 20, 100, 129, 256, 300, 1000])
def test_every_batch_has_a_size_and_little_padding(most: int) -> None:
    sizes = graph_sizes(most)
    assert sizes == sorted(set(sizes)) and sizes[-1] == most
    for n in range(1, most + 1):
        size = min(s for s in sizes if s >= n)
        assert size - n <= max(7, n // 8), n


# Tokens -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("flash_attn 3", "llama"),
        ("flash_attn 3", "gemma2"),
        ("flash_attn 2", "mistral"),
        ("varlen", "gpt2"),
        ("triton", "gpt_oss"),
    ],
)
def test_same_tokens_as_generate(
    title: str, name: str, make_kernel: MakeKernel, make_plain: Make, load_reference: Make
) -> None:
    """Prompts in chunks, mixed batches and decodes of every size; K and V of others are left alone."""
    few = title == "triton"  # its interpreter is slow
    settings = {"block_size": 256, "num_blocks": 8} if title == "flash_attn 2" else {"max_model_len": 32 if few else 64}
    backend = make_plain(name, **settings)
    sizes = [3] if few else [1, 2, 4, 5]
    kernel = make_kernel(title)
    device = on_gpu(backend, kernel, sizes)
    if few:  # warm-up and recording of three rows under two KV heads, for as many parts as 32 keys may need
        attend: Any = kernel
        assert attend._attend_tile.grids == [(3, 2, 2)] * 6 and attend._join_parts.grids == [(3, 4)] * 6
    driver = Driver(backend)
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts((3, 20)) if few else prompts())]
    num_tokens = 3 if few else NUM_TOKENS
    driver.run(requests, 1 if few else 3, chunk=None if few else 7, stagger=0 if few else 2)
    driver.run(requests, num_tokens, stagger=0)
    check(driver, load_reference(name), requests, num_tokens)
    used = replays(device, sizes)
    assert len(used) < driver.num_steps  # prompts and mixed batches run as they are
    assert set(used) >= ({3} if few else {1, 5})  # two rows in the graph of three


@pytest.mark.parametrize("most", [12, 20])
def test_f7_every_size_runs(most: int, make_kernel: MakeKernel, make_plain: Make) -> None:
    """Scenario F7: every batch from ``most`` down to 1 runs in the next size up, with the logits of none."""
    backend = make_plain("llama", num_blocks=400, max_model_len=32)
    kernel = make_kernel("flash_attn 3")
    sizes = graph_sizes(most)
    device = on_gpu(backend, kernel, sizes)
    runner: Runner = backend.runner
    rng = random.Random(most)
    lengths = [rng.randrange(1, 12) for _ in range(most)]
    tables = [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(most)]
    rng.shuffle(tables)
    tokens = [[rng.randrange(VOCABULARY) for _ in range(n + 1)] for n in lengths]
    runner.logits(StepInputs.of_rows([(t[:-1], 0, b) for t, b in zip(tokens, tables, strict=True)], 4))
    for n in range(most, 0, -1):
        rows = [([t[-1]], len(t) - 1, b) for t, b in zip(tokens[:n], tables, strict=False)]
        got = runner.logits(StepInputs.of_rows(rows, 4)).clone()
        graphs, runner.graphs = runner.graphs, None
        want = runner.logits(StepInputs.of_rows(rows, 4))
        runner.graphs = graphs
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    assert replays(device, sizes) == [min(s for s in sizes if s >= n) for n in range(most, 0, -1)]


# What a graph reads and writes --------------------------------------------------------------------------------


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


# The choice ---------------------------------------------------------------------------------------------------


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
