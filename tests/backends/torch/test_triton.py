"""The Triton kernel under Triton's interpreter, which runs the code of the GPU; and what the compiler makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from backends.torch.attention_cases import Problem, layer, problems
from backends.torch.driver import Driver
from backends.torch.test_equality import check, prompts
from batchwright.errors import BackendError
from batchwright_backends.torch.kernels import triton_tiles
from batchwright_backends.torch.kernels.demand import Demand
from batchwright_backends.torch.kernels.sdpa import ScaledDotProduct
from batchwright_backends.torch.kernels.triton_attention import TritonAttention
from batchwright_backends.torch.kernels.triton_tiles import tile_sizes

triton = pytest.importorskip("triton", reason="triton is not installed (pip install triton)")
version, numpy_version = (tuple(map(int, m.__version__.split(".")[:2])) for m in (triton, np))
if version < (3, 7) and (version < (3, 4) or numpy_version >= (2, 4)):
    reason = f"the interpreter of Triton {triton.__version__} cannot run with numpy {np.__version__}"
    pytest.skip(reason, allow_module_level=True)
if torch.cuda.is_available():
    pytest.skip("there is a GPU: the kernel runs on it, not in the interpreter", allow_module_level=True)

Make = Callable[..., Any]


@pytest.fixture(autouse=True, scope="module")
def _short_splits() -> Any:
    """Decodes here are short; they are split from 24 keys on, into at most 4 parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_tiles, "SPLIT_KEYS", 24)
        patch.setattr(triton_tiles, "MAX_SPLITS", 4)
        yield


@settings(max_examples=30, deadline=None, derandomize=True)
@given(problem=problems())
def test_it_equals_the_definition_and_sdpa(problem: Problem) -> None:
    """Also with NaN in every slot of the pool that no row of the step has."""
    problem.check(TritonAttention())
    if problem.dtype == torch.float32:  # in half precision sdpa rounds scores, and Triton does not
        out = problem.by(TritonAttention())
        problem.clear()
        torch.testing.assert_close(out, problem.by(ScaledDotProduct()), atol=3e-6, rtol=3e-6)


@pytest.mark.parametrize(
    "change", [{"window": 5}, {"softcap": 0.5}, {"sinks": torch.tensor([1.0, 0.0, 2.0, -1.0])}, {"scaling": 0.3}]
)
def test_what_a_layer_asks_for_matters(change: dict[str, Any]) -> None:
    rows = [(40, 3), (1, 50), (1, 2)]
    plain = Problem(rows, layer(), block_size=4)
    changed = Problem(rows, layer(**change), block_size=4)
    got, other = plain.by(TritonAttention()), changed.by(TritonAttention())
    starts = plain.inputs.starts.tolist()
    for i in (0, 1):  # the chunk, and the decode that is split
        assert (got[starts[i] : starts[i + 1]] - other[starts[i] : starts[i + 1]]).abs().max() > 1e-2


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Bit by bit: where a row is cut and split depends on itself alone."""
    rows = [(1, 30), (50, 7), (1, 95), (1, 3), (9, 0)]
    wanted = layer(key_width=16, value_width=16, sinks=torch.tensor([0.5, -1.0, 0.0, 1.0]))
    together = Problem(rows, wanted, block_size=4)
    out = together.by(TritonAttention())
    starts = together.inputs.starts.tolist()
    for i, row in enumerate(rows):
        alone = Problem([row], wanted, block_size=4)
        alone.query = together.query[starts[i] : starts[i + 1]]
        slots = alone.inputs.block_tables[0].astype("int64")
        table = together.inputs.block_tables[i][: len(slots)].astype("int64")
        for mine, theirs in (
            (alone.cache.keys[0], together.cache.keys[0]),
            (alone.cache.values[0], together.cache.values[0]),
        ):
            mine[torch.from_numpy(slots)] = theirs[torch.from_numpy(table)]
        assert torch.equal(alone.by(TritonAttention()), out[starts[i] : starts[i + 1]]), row


def test_decodes_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = TritonAttention()
    grids: list[tuple[str, tuple[int, ...]]] = []

    def recording(name: str, programs: Any) -> Any:
        class Programs:
            def __getitem__(self, grid: tuple[int, ...]) -> Any:
                grids.append((name, grid))
                return programs[grid]

        return Programs()

    monkeypatch.setattr(kernel, "_attend_tile", recording("attend", kernel._attend_tile))
    monkeypatch.setattr(kernel, "_join_parts", recording("join", kernel._join_parts))
    Problem([(1, 95), (1, 10), (70, 0)], layer(), block_size=4).check(kernel)
    # Two decodes under two KV heads in four parts; 70 tokens in tiles of 64 / 2 heads.
    assert grids == [("attend", (2, 2, 4)), ("join", (2, 4)), ("attend", (3, 2, 1))]
    grids.clear()
    Problem([(1, 20), (1, 10)], layer(), block_size=4).check(kernel)
    assert grids == [("attend", (2, 2, 1))]


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "deepseek_v3"])
def test_same_tokens_as_generate(name: str, make_backend: Make, load_reference: Make) -> None:
    driver = Driver(make_backend(name, attention="triton"))
    assert driver.backend.runner.kernel.name == "triton"
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts((5, 23)))]
    driver.run(requests, 2, chunk=16, stagger=1)
    driver.evict(requests[0])
    driver.run(requests, 3)
    check(driver, load_reference(name), requests, 3)


def test_tiles_fit_into_the_memory_of_a_program() -> None:
    for group in (1, 2, 3, 7, 8, 16, 32):
        for lanes, itemsize in (((64, 64), 2), ((128, 128), 2), ((256, 128), 2), ((256, 256), 2), ((256, 256), 4)):
            many, one, keys = tile_sizes(group, *lanes, itemsize)
            assert many >= one >= group and keys >= 16
            assert all(n & (n - 1) == 0 and n >= 16 for n in (many, one, keys))
            assert (many * lanes[0] + 2 * keys * sum(lanes)) * itemsize <= triton_tiles.TILE_BYTES
    assert tile_sizes(4, 128, 128, 2) == (64, 16, 64)


def test_too_many_heads_on_one_kv_head_are_refused() -> None:
    wide = layer(num_heads=71, num_kv_heads=1, key_width=256, value_width=256)
    reason = TritonAttention.refusal(Demand("cuda", (8, 0), torch.float32, 16, [layer(), wide]))
    assert reason == "71 query heads of width 256 on one KV head take more than the 96 KiB of a program's tiles"
    assert TritonAttention.refusal(Demand("cuda", (8, 0), torch.bfloat16, 16, [layer(), wide])) is None


def test_on_cpu_it_has_to_be_asked_for(monkeypatch: pytest.MonkeyPatch, make_backend: Make) -> None:
    cpu = torch.device("cpu")
    assert TritonAttention.refusal(Demand.of(cpu, torch.float32, 16, [layer()])) == "it needs a GPU"
    named = Demand.of(cpu, torch.float32, 16, [layer()], is_named=True)
    assert TritonAttention.refusal(named) is None
    half = Demand.of(cpu, torch.bfloat16, 16, [layer()], is_named=True)
    assert "interpreter cannot multiply bfloat16" in (TritonAttention.refusal(half) or "")
    turing = Demand("cuda", (7, 5), torch.float16, 16, [layer()])
    assert "8.0 (Ampere) or newer" in (TritonAttention.refusal(turing) or "")
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(BackendError, match=r"it needs a GPU, or TRITON_INTERPRET=1 .* Use attention: .*sdpa, or auto"):
        make_backend("llama", attention="triton")


COMPILE = Path(__file__).with_name("compile_triton.py")


def test_the_compiler_takes_it() -> None:
    """Down to the machine code of GPUs that are not here. The interpreter lets pass what the compiler does not."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, str(COMPILE)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.split()
    assert len(lines) == 5
    assert all(0 <= int(shared) <= 99 << 10 for shared in lines)
