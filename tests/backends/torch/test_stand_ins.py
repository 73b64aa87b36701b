"""The stand-ins notice every argument of another dtype, shape, stride or meaning, or give another result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from backends.torch.attention_cases import Problem, layer
from backends.torch.stand_ins import (
    FlashAttention2Functions,
    FlashAttention3Functions,
    StandIn,
    VarlenFunctions,
)
from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.kernels.flash_attn import FlashAttention2
from batchwright_backends.torch.kernels.flash_attn3 import FlashAttention3
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kernels.varlen import VarlenAttention

# Some tokens before each row, and lengths that end in the middle of a block.
MIXED, DECODES = [(3, 300), (9, 2), (5, 270)], [(1, 300), (1, 7), (1, 270)]
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def caught(kernel: AttentionKernel, attribute: str, problem: Problem, plan: Any = None) -> Call:
    """The call that a kernel makes for a problem."""
    calls: list[Call] = []
    inner = getattr(kernel, attribute)

    def catch(*args: Any, **kwargs: Any) -> Any:
        calls.append((inner, args, kwargs))
        return inner(*args, **kwargs)

    setattr(kernel, attribute, catch)
    plan = kernel.plan(problem.inputs, problem.cache) if plan is None else plan
    kernel.attend(plan, problem.layer, problem.query, problem.cache)
    assert len(calls) == 1
    return calls[0]


def bare(kind: type[AttentionKernel], **functions: Any) -> Any:
    kernel: Any = object.__new__(kind)
    for name, function in functions.items():
        setattr(kernel, name, function)
    return kernel


def make(which: str, pads: bool) -> Call:
    """A right call of that function; with ``pads`` the one of a graph of four rows in which three are real."""
    size = 256 if which.startswith("fa2") else 16
    rows = MIXED if which == "fa2 varlen" else DECODES
    problem = Problem(rows, layer(window=40, softcap=0.0 if which == "varlen" else 3.0), size, torch.float16, seed=3)
    if which == "varlen":
        problem = Problem(rows, layer(window=40), size, torch.float16, seed=3)
    module: StandIn
    if which.startswith("fa2"):
        module = two = FlashAttention2Functions()
        kernel = bare(FlashAttention2, _varlen=two.flash_attn_varlen_func, _with_kvcache=two.flash_attn_with_kvcache)
        attribute = "_varlen" if which == "fa2 varlen" else "_with_kvcache"
    elif which == "fa3":
        module = three = FlashAttention3Functions("flash_attn_interface")
        kernel, attribute = bare(FlashAttention3, _with_kvcache=three.flash_attn_with_kvcache), "_with_kvcache"
    else:
        module = functions = VarlenFunctions()
        kernel, attribute = bare(VarlenAttention, _varlen_attn=functions.varlen_attn), "_varlen_attn"
    if not pads:
        return caught(kernel, attribute, problem)
    module.pads = True
    null, width = problem.cache.null_block, problem.inputs.block_tables.shape[1]
    tables = [*problem.inputs.block_tables.tolist(), [null] * width]
    lens = [*problem.inputs.context_lens.tolist(), 1]
    padded = StepInputs.of_rows([([1], n - 1, t) for n, t in zip(lens, tables, strict=True)], size)
    problem.query = torch.cat((problem.query, problem.query[:1]))
    problem.cache.keys[0][null] = problem.cache.values[0][null] = 0.0
    return caught(kernel, attribute, problem, kernel.plan_decodes(padded.tensors(torch.device("cpu")), width * size))


def wrong(value: Any) -> Iterator[tuple[str, Any]]:
    """Values in its place that must not pass."""
    if isinstance(value, torch.Tensor):
        if value.dtype == torch.int32:
            yield "another dtype", value.long()
            yield "one more", value + 1
            yield "one less", value - 1
            yield "one row short", value[:-1]
            if value.dim() == 1:
                yield "not contiguous", value.repeat_interleave(2)[::2]
            else:
                yield "transposed in memory", value.t().contiguous().t()
                yield "in another order", value.flip(0)
        else:
            yield "another dtype", value.float()
            yield "without its last dimension's stride", value.transpose(-1, -2).contiguous().transpose(-1, -2)
            yield "one head short", value[..., :-1, :]
            yield "other values", value * 2
    elif isinstance(value, bool):
        yield "the opposite", not value
    elif isinstance(value, int):
        yield "one less", value - 1
        yield "a tensor", torch.tensor(value)
    elif isinstance(value, float):
        yield "another", value + 0.5
        yield "a tensor", torch.tensor(value)
    elif isinstance(value, tuple):
        yield "one wider", (value[0] + 1, value[1])
        yield "not causal", (value[0], value[1] + 1)
        yield "a list", list(value)


@pytest.mark.parametrize(
    ("which", "pads"),
    [
        ("fa2 varlen", False),
        ("fa2 kvcache", False),
        ("fa2 kvcache", True),
        ("fa3", False),
        ("fa3", True),
        ("varlen", False),
        ("varlen", True),
    ],
)
def test_nothing_wrong_passes(which: str, pads: bool) -> None:
    function, args, kwargs = make(which, pads)
    expected = function(*args, **kwargs)
    assert bool(expected.isfinite().all())
    tried = 0
    for key in [*range(len(args)), *kwargs]:
        value = args[key] if isinstance(key, int) else kwargs[key]
        for how, other in wrong(value):
            if pads and which == "varlen" and key == 6 and how == "one less":
                continue  # a graph says how long a row may be, not how long one is
            mine, named = list(args), dict(kwargs)
            if isinstance(key, int):
                mine[key] = other
            else:
                named[key] = other
            tried += 1
            try:
                got = function(*mine, **named)
            except (AssertionError, RuntimeError, IndexError, TypeError, ValueError, AttributeError):
                continue
            same = got.shape == expected.shape and torch.allclose(got, expected, atol=1e-3, equal_nan=True)
            assert not same, f"{which}: argument {key} with {how} passes"
    assert tried > 25
