"""The flash-attn kernels against stand-ins that check every argument and compute what flash-attn computes."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
import torch

from backends.torch.attention_cases import Problem, layer
from backends.torch.conftest import FEW
from backends.torch.driver import Driver
from backends.torch.stand_ins import FlashAttention2Functions, FlashAttention3Functions
from backends.torch.test_equality import NUM_TOKENS, check, prompts
from batchwright_backends.torch.kernels.demand import Demand
from batchwright_backends.torch.kernels.flash_attn import FlashAttention2
from batchwright_backends.torch.kernels.flash_attn3 import FlashAttention3

Make = Callable[..., Any]
HALF = torch.bfloat16
ROWS = [(1, 300), (9, 0), (1, 0), (70, 200), (1, 255), (2, 254)]
# The stand-ins cannot do sinks, and flash-attn 2 cannot do V of another width.
BOTH = [name for name in FEW if name not in ("gpt_oss", "deepseek_v3")]


@pytest.fixture
def fa2(monkeypatch: pytest.MonkeyPatch) -> FlashAttention2Functions:
    module = FlashAttention2Functions()
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    return module


@pytest.fixture
def fa3(monkeypatch: pytest.MonkeyPatch) -> FlashAttention3Functions:
    module = FlashAttention3Functions("flash_attn_interface")
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    return module


def built_without(monkeypatch: pytest.MonkeyPatch, name: str, *features: str) -> None:
    module = types.ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    flags = ("PAGEDKV", "LOCAL", "SOFTCAP", "VARLEN", "FP16", "HDIM64", "HDIM96", "HDIM128", "HDIM192", "HDIM256")
    build = {f"FLASHATTENTION_DISABLE_{flag}": flag in features for flag in flags}
    build |= {f"FLASH_ATTENTION_DISABLE_{flag}": flag in features for flag in ("HDIMDIFF64", "HDIMDIFF192")}
    module.CONFIG = {"build_flags": build}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)


def on(capability: tuple[int, int], *layers: Any, dtype: torch.dtype = HALF, block_size: int | None = None) -> Demand:
    return Demand("cuda", capability, dtype, block_size, layers or [layer()])


# flash-attn 2 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"window": 7}, {"softcap": 3.0}, {"window": 300, "softcap": 20.0}])
@pytest.mark.parametrize("block_size", [256, 512])
def test_fa2_equals_the_definition(block_size: int, changes: dict[str, Any], fa2: FlashAttention2Functions) -> None:
    for rows, calls in ((ROWS, ["kvcache", "varlen"]), (ROWS[:1], ["kvcache"]), (ROWS[3:4], ["varlen"])):
        fa2.calls.clear()
        Problem(rows, layer(**changes), block_size, torch.float16).check(FlashAttention2())
        assert fa2.calls == calls  # rows of one token apart from the others


@pytest.mark.parametrize("name", BOTH)
def test_fa2_same_tokens_as_generate(
    name: str, fa2: FlashAttention2Functions, make_plain: Make, load_reference: Make
) -> None:
    backend = make_plain(name, block_size=256, num_blocks=8)
    backend.runner.kernel = FlashAttention2()
    fa2.dtypes.add(torch.float32)
    driver = Driver(backend)
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, NUM_TOKENS, chunk=7, stagger=2)
    check(driver, load_reference(name), requests)
    mixed = ["kvcache", "varlen"] * 3  # in each of the three layers
    assert any(fa2.calls[i : i + 6] == mixed for i in range(len(fa2.calls)))


def test_what_rules_fa2_out(fa2: FlashAttention2Functions, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = FlashAttention2.refusal
    assert refusal(on((8, 0))) is None
    assert refusal(on((12, 0), layer(window=3, softcap=1.0), dtype=torch.float16, block_size=512)) is None
    for demand, why in (
        (Demand("cpu", None, HALF, None, [layer()]), "an NVIDIA GPU of compute capability 8.0 (Ampere) or newer"),
        (Demand("cuda", None, HALF, None, [layer()]), "an NVIDIA GPU"),
        (on((7, 5)), "compute capability 8.0"),
        (on((8, 0), dtype=torch.float32), "it needs dtype float16 or bfloat16, not float32"),
        (on((8, 0), block_size=16), "a block_size that is a multiple of 256, not 16"),
        (on((8, 0), layer(), layer(value_width=32)), "K and V of one width, and this model has 64 and 32"),
        (on((8, 0), layer(key_width=20, value_width=20)), "a width that is a multiple of 8, not 20"),
        (on((8, 0), layer(key_width=512, value_width=512)), "width 256 at most, and this model has 512"),
        (on((8, 0), layer(), layer(index=1, sinks=torch.ones(4))), "no attention sinks, and layer 1 has them"),
    ):
        assert why in (refusal(demand) or ""), why
    monkeypatch.delitem(sys.modules, "flash_attn")
    assert "flash-attn 2 is not installed (pip install" in (refusal(on((8, 0))) or "")


# FlashAttention 3 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{}, {"window": 7}, {"softcap": 3.0}, {"window": 300, "softcap": 20.0}, {"value_width": 128}]
)
@pytest.mark.parametrize("block_size", [1, 16, 19, 256])
def test_fa3_equals_the_definition(block_size: int, changes: dict[str, Any], fa3: FlashAttention3Functions) -> None:
    for rows in (ROWS, ROWS[:1], ROWS[3:4]):
        fa3.calls.clear()
        Problem(rows, layer(**changes), block_size, torch.float16).check(FlashAttention3())
        assert fa3.calls == ["kvcache"]


@pytest.mark.parametrize("name", BOTH)
def test_fa3_same_tokens_as_generate(
    name: str, fa3: FlashAttention3Functions, make_plain: Make, load_reference: Make
) -> None:
    backend = make_plain(name)
    backend.runner.kernel = FlashAttention3()
    fa3.dtypes.add(torch.float32)
    driver = Driver(backend)
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, NUM_TOKENS, chunk=7, stagger=2)
    check(driver, load_reference(name), requests)


def test_what_rules_fa3_out(fa3: FlashAttention3Functions) -> None:
    refusal = FlashAttention3.refusal
    hopper = (9, 0)
    for fine in (
        on(hopper),
        on(hopper, layer(window=3, softcap=1.0), dtype=torch.float16, block_size=1),
        on(hopper, layer(key_width=192, value_width=128)),
        on(hopper, layer(key_width=64, value_width=512)),
        on(hopper, layer(key_width=256, value_width=256)),
    ):
        assert refusal(fine) is None
    for demand, why in (
        (Demand("cpu", None, HALF, None, [layer()]), "an NVIDIA GPU of compute capability 9.0 (Hopper)"),
        (on((8, 0)), "9.0 (Hopper)"),
        (on((10, 0)), "9.0 (Hopper)"),
        (on(hopper, dtype=torch.float32), "it needs dtype float16 or bfloat16, not float32"),
        (on(hopper, layer(key_width=20, value_width=20)), "a width that is a multiple of 8, not 20"),
        (on(hopper, layer(key_width=264, value_width=264)), "width 256 at most, and this model has 264"),
        (on(hopper, layer(key_width=128, value_width=64)), "this model has 128 and 64"),
        (on(hopper, layer(key_width=192, value_width=96)), "this model has 192 and 96"),
        (on(hopper, layer(sinks=torch.ones(4))), "no attention sinks, and layer 0 has them"),
    ):
        assert why in (refusal(demand) or ""), why


def test_fa3_of_either_package(monkeypatch: pytest.MonkeyPatch) -> None:
    demand = on((9, 0))
    assert "neither flash_attn_interface" in (FlashAttention3.refusal(demand) or "")
    mine, other = FlashAttention3Functions("fa3_fwd_interface"), FlashAttention3Functions("flash_attn_interface")
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", mine)
    # As the wheel of fa3-fwd 0.0.3 is built.
    built_without(monkeypatch, "fa3_fwd_config", "PAGEDKV", "LOCAL", "FP16")
    assert FlashAttention3.refusal(demand) == "fa3_fwd_interface was built without paged K and V"
    built_without(monkeypatch, "fa3_fwd_config")
    assert FlashAttention3.refusal(demand) is None
    Problem(ROWS, layer(), 16, torch.float16).check(FlashAttention3.make(demand))
    assert mine.calls
    # Of two packages the one that can.
    monkeypatch.setitem(sys.modules, "flash_attn_interface", other)
    built_without(monkeypatch, "fa3_fwd_config", "PAGEDKV")
    assert FlashAttention3.refusal(demand) is None
    Problem(ROWS, layer(), 16, torch.float16).check(FlashAttention3.make(demand))
    assert other.calls


@pytest.mark.parametrize(
    ("features", "demand", "why"),
    [
        (["VARLEN"], on((9, 0)), "rows of different length"),
        (["FP16"], on((9, 0), dtype=torch.float16), "float16"),
        (["FP16"], on((9, 0)), None),
        (["LOCAL"], on((9, 0), layer(window=4)), "sliding windows"),
        (["LOCAL"], on((9, 0)), None),
        (["SOFTCAP"], on((9, 0), layer(softcap=4.0)), "caps on the scores"),
        (["SOFTCAP", "LOCAL"], on((9, 0), layer(softcap=4.0, window=2)), "sliding windows and caps on the scores"),
        (["SOFTCAP"], on((9, 0)), None),
        (["HDIM64"], on((9, 0)), None),  # 96 takes it
        (["HDIM64", "HDIM96", "HDIM128", "HDIM192", "HDIM256"], on((9, 0)), "heads of width 64"),
        (["HDIM192", "HDIM256"], on((9, 0), layer(key_width=136, value_width=136)), "heads of width 136"),
        (["HDIMDIFF192"], on((9, 0), layer(key_width=192, value_width=128)), "widths 192 and 128"),
        (["HDIMDIFF64"], on((9, 0), layer(key_width=64, value_width=128)), "widths 64 and 128"),
        (["HDIMDIFF192", "HDIMDIFF64"], on((9, 0)), None),
    ],
)
def test_what_a_build_of_fa3_lacks(
    features: list[str],
    demand: Demand,
    why: str | None,
    fa3: FlashAttention3Functions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built_without(monkeypatch, "flash_attn_config", *features)
    expected = None if why is None else f"flash_attn_interface was built without {why}"
    assert FlashAttention3.refusal(demand) == expected
