"""The C++ functions beside what they compute, over random shapes; and where they cannot be built."""

from __future__ import annotations

import platform
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.torch.attention_cases import Problem, layer, problems
from batchwright_backends.torch.kernels.native import TASK_TOKENS, NativeAttention
from batchwright_backends.torch.native import build, library
from batchwright_backends.torch.native.build import NotBuilt
from batchwright_backends.torch.native.library import Functions, functions

DTYPES = (torch.float32, torch.bfloat16)
HALF = 5e-2


@pytest.fixture(params=DTYPES, ids=["float32", "bfloat16"])
def built(request: pytest.FixtureRequest) -> Functions:
    try:
        return functions(request.param)
    except NotBuilt as error:
        pytest.skip(f"the C++ functions are not built here: {error}")


def near(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> bool:
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    return bool((got.double() - want.double()).abs().max() <= tolerance * want.double().abs().max().clamp(min=1e-30))


@given(drawn=problems(), dtype=st.sampled_from(DTYPES), threads=st.integers(1, 3))
@settings(deadline=None, max_examples=150)
def test_attention_over_random_shapes(drawn: Problem, dtype: torch.dtype, threads: int) -> None:
    try:
        kernel = NativeAttention(functions(dtype))
    except NotBuilt as error:
        pytest.skip(f"the C++ functions are not built here: {error}")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        replace(drawn, dtype=dtype).check(kernel, half_tolerance=HALF)
    finally:
        torch.set_num_threads(before)


# Those that have code of their own (16 to 256), and those between.
@pytest.mark.parametrize("width", [8, 16, 24, 32, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("changes", [{}, {"window": 7}, {"softcap": 2.0}, {"sinks": True}, {"num_heads": 2}])
def test_attention_of_every_head_width(width: int, changes: dict[str, Any], built: Functions) -> None:
    changes = dict(changes)
    if changes.pop("sinks", False):
        changes["sinks"] = torch.tensor([1.0, -1.0, 0.0, 3.0])
    rows = [(1, 40), (1, 0), (2, 17), (TASK_TOKENS + 3, 5), (1, 15), (1, 16)]
    problem = Problem(rows, layer(key_width=width, value_width=width, **changes), 4, built.dtype)
    problem.check(NativeAttention(built), half_tolerance=HALF)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("window", [None, 9])
def test_many_rows_are_taken_whole_and_the_next_fetched_ahead(
    threads: int, window: int | None, built: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of no length, of one key and of thousands, beside each other."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    rows = [(1, before) for before in (0, 1, 15, 16, 17, 3000, 31, 2, 64, 100, 0, 200)] + [(20, 5), (1, 7)]
    problem = Problem(rows, layer(key_width=32, value_width=32, window=window), 4, built.dtype)
    problem.check(NativeAttention(built), half_tolerance=HALF)


def test_not_a_number_stays_with_its_row(built: Functions) -> None:
    problem = Problem([(1, 20), (1, 20), (5, 3)], layer(), 4, built.dtype)
    kernel = NativeAttention(built)
    clean = kernel.attend(kernel.plan(problem.inputs, problem.cache), problem.layer, problem.query, problem.cache)
    query = problem.query.clone()
    query[0] = torch.nan
    out = kernel.attend(kernel.plan(problem.inputs, problem.cache), problem.layer, query, problem.cache)
    assert out[0].isnan().all() and torch.equal(out[1:], clean[1:])


@given(
    rows=st.integers(1, 120),
    outputs=st.integers(1, 100),
    inputs=st.integers(1, 90),
    has_bias=st.booleans(),
    has_other=st.booleans(),
    threads=st.integers(1, 3),
    dtype=st.sampled_from(DTYPES),
)
@settings(deadline=None, max_examples=150)
def test_products(
    rows: int, outputs: int, inputs: int, has_bias: bool, has_other: bool, threads: int, dtype: torch.dtype
) -> None:
    inputs *= 1 if dtype == torch.float32 else 2
    try:
        built = functions(dtype)
    except NotBuilt as error:
        pytest.skip(f"the C++ functions are not built here: {error}")
    if not built.has_products:
        pytest.skip("this processor lacks the instructions of the products")
    generator = torch.Generator().manual_seed(rows * 7919 + outputs * 31 + inputs)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    x, weight, other = draw(rows, inputs), draw(outputs, inputs), draw(rows, outputs)
    bias = draw(outputs).float()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        packed = built.pack(weight)
        got = built.product(x, packed, outputs, bias if has_bias else None, other if has_other else None)
    finally:
        torch.set_num_threads(before)
    want = x.double() @ weight.double().T + (bias.double() if has_bias else 0) + (other.double() if has_other else 0)
    assert torch.equal(built.unpack(packed, outputs, inputs), weight)
    assert got.shape == want.shape
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-23
    assert ((got.double() - want).abs() <= rounding * want.abs() + 1e-6 * inputs).all()


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("width", [1, 16, 40, 576])
def test_rms_norm(width: int, early: bool, built: Functions) -> None:
    x = torch.randn(3, 5, width).to(built.dtype)
    weight = torch.rand(width) + 0.5
    quotient = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
    want = (quotient.to(built.dtype).float() if early else quotient) * weight
    assert near(built.rms_norm(x, weight, 1e-5, early=early), want, built.dtype)


@pytest.mark.parametrize("width", [3, 16, 50])
def test_gate(width: int, built: Functions) -> None:
    both = (torch.randn(7, 2 * width) * 20).to(built.dtype)
    both[0, 0], both[1, 0] = 300.0, -300.0
    gate, up = both.double().chunk(2, -1)
    assert near(built.silu_mul(both), torch.nn.functional.silu(gate) * up, built.dtype)


def test_what_is_added_may_lie_anywhere(built: Functions) -> None:
    """Of what is not contiguous a copy is read, which must live until then: so large a one is unmapped when it dies."""
    if not built.has_products:
        pytest.skip("this processor lacks the instructions of the products")
    rows, outputs = 4096, 4160
    x, weight = torch.ones(rows, 2, dtype=built.dtype), torch.ones(outputs, 2, dtype=built.dtype)
    other = torch.arange(rows, dtype=torch.float32).to(built.dtype).expand(outputs, rows).contiguous().t()
    got = built.product(x, built.pack(weight), outputs, None, other)
    assert torch.equal(got, (other.float() + 2).to(built.dtype))


def test_the_default_dtype_of_torch_changes_nothing(built: Functions) -> None:
    problem = Problem([(1, 40), (40, 7)], layer(num_heads=20), 4, built.dtype)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        kernel = NativeAttention(built)
        out = problem.by(kernel)
    finally:
        torch.set_default_dtype(before)
    assert kernel._scratch.dtype == torch.float32  # bytes that are not there would be somebody else's
    torch.testing.assert_close(out, problem.expected(), atol=HALF, rtol=HALF)


@pytest.mark.parametrize("rows", [0, 1])
def test_no_rows(rows: int, built: Functions) -> None:
    width = 24
    x = torch.ones(rows, width, dtype=built.dtype)
    assert built.rms_norm(x, torch.ones(width), 1e-5, early=True).shape == (rows, width)
    assert built.silu_mul(torch.ones(rows, 2 * width, dtype=built.dtype)).shape == (rows, width)
    if built.has_products:
        assert built.product(x, built.pack(torch.ones(40, width, dtype=built.dtype)), 40).shape == (rows, 40)


@pytest.mark.parametrize("width", [24, 64])
@pytest.mark.parametrize("window", [None, 1, 50_000])
def test_contexts_of_many_thousand_tokens_in_blocks_of_one(width: int, window: int | None, built: Functions) -> None:
    rows = [(1, 70_001), (TASK_TOKENS + 1, 40_000), (1, 3)]
    problem = Problem(rows, layer(key_width=width, value_width=width, window=window, num_heads=2), 1, built.dtype)
    problem.check(NativeAttention(built), half_tolerance=HALF)


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    functions.cache_clear()
    yield tmp_path
    functions.cache_clear()


def compiler(tmp_path: Path, script: str) -> str:
    path = tmp_path / "c++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


linux = pytest.mark.skipif(platform.system() != "Linux", reason="the functions are built on Linux only")


@linux
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 1", "no g\\+\\+ is found"),
        ("echo clang version 17", "no g\\+\\+ is found"),
        (
            '[ "$1" = --version ] && echo "g++ 9" && exit; echo "kernels.cpp:1:1: error: no such vector" >&2; exit 1',
            "failed: kernels.cpp:1:1: error: no such vector",
        ),
    ],
)
def test_without_a_compiler_that_can(
    script: str, reason: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    with pytest.raises(NotBuilt, match=reason):
        functions(torch.float32)
    assert not list((own_cache / "batchwright" / "native").glob("*.so"))


@linux
def test_a_compiler_that_is_not_there(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    with pytest.raises(NotBuilt, match="CXX is /nowhere/g\\+\\+"):
        build.ensure()


@linux
def test_what_cannot_be_loaded(own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = '[ "$1" = --version ] && echo "g++ 13" && exit; for last; do :; done; echo no library > "$last"'
    monkeypatch.setenv("CXX", compiler(tmp_path, script))
    with pytest.raises(NotBuilt, match="what was built cannot be loaded"):
        functions(torch.bfloat16)


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(NotBuilt, match="built on Linux, not on Darwin"):
        build.ensure()


def test_a_dtype_that_it_lacks() -> None:
    with pytest.raises(NotBuilt, match="float32 and bfloat16, not float16"):
        functions(torch.float16)


@linux
def test_a_library_is_built_once_and_again_for_other_sources(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = '[ "$1" = --version ] && echo "g++ 13" && exit; for last; do :; done; echo x >> ' + f"{tmp_path}/calls"
    monkeypatch.setenv("CXX", compiler(tmp_path, script + '; echo library > "$last"'))
    first = build.ensure()
    assert build.ensure() == first
    assert (tmp_path / "calls").read_text() == "x\n"
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, "-g"])
    assert build.ensure() != first
    monkeypatch.setattr(build, "_processor", lambda: "another")
    build.ensure()
    assert (tmp_path / "calls").read_text() == "x\nx\nx\n"


def test_the_module_builds_ahead() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "batchwright_backends.torch.native.build"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().endswith(".so") or done.stderr.startswith("not built: ")


def test_the_structures_are_those_of_the_source() -> None:
    """ctypes is told the fields by hand: their names and order follow the C++ text."""
    text = (build.SOURCE.parent / "attention.h").read_text()
    for structure in (library.Layer, library.Step):
        body = text.partition(f"struct {structure.__name__} {{\n")[2].partition("};")[0]
        lines = [line.partition("//")[0].strip().rstrip(";") for line in body.splitlines()]
        declared = ", ".join(re.sub(r"^(const )?\w+\*? ", "", line) for line in lines if line)
        assert declared.split(", ") == [name for name, _ in structure._fields_]
