"""torch's varlen_attn against a stand-in that checks every argument and computes the same."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
import torch

from backends.torch.attention_cases import Problem, layer
from backends.torch.driver import Driver
from backends.torch.stand_ins import VarlenFunctions
from backends.torch.test_equality import NUM_TOKENS, check, prompts
from batchwright_backends.torch.kernels.demand import Demand
from batchwright_backends.torch.kernels.varlen import VarlenAttention

Make = Callable[..., Any]
ROWS = [(1, 300), (9, 0), (1, 0), (70, 200), (1, 255), (2, 254)]


@pytest.fixture
def functions(monkeypatch: pytest.MonkeyPatch) -> VarlenFunctions:
    """The functions, and FlashAttention 3 and 4 as if installed."""
    module = VarlenFunctions()
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", module)
    for name in ("flash_attn_interface", "flash_attn", "flash_attn.cute", "flash_attn.cute.interface"):
        package = types.ModuleType(name)
        package.__spec__ = ModuleSpec(name, None)
        package.__path__ = []
        monkeypatch.setitem(sys.modules, name, package)
    return module


def on(capability: tuple[int, int] | None, *layers: Any, **changes: Any) -> Demand:
    return Demand(
        **{
            "device": "cuda",
            "capability": capability,
            "dtype": torch.bfloat16,
            "block_size": None,
            "layers": layers or [layer()],
            **changes,
        }
    )


def test_the_stand_in_has_the_signature_of_this_torch() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen", reason="this torch has no varlen_attn")
    real, mine = (inspect.signature(f).parameters for f in (varlen.varlen_attn, VarlenFunctions().varlen_attn))
    if "block_table" not in real:
        pytest.skip(f"varlen_attn of torch {torch.__version__} takes no block_table")
    assert [(p.name, p.kind, p.default) for p in real.values()] == [(p.name, p.kind, p.default) for p in mine.values()]


@pytest.mark.parametrize("changes", [{}, {"window": 7}, {"window": 300}, {"num_heads": 2}])
@pytest.mark.parametrize("block_size", [16, 128])
def test_it_equals_the_definition(block_size: int, changes: dict[str, Any], functions: VarlenFunctions) -> None:
    for rows in (ROWS, ROWS[:1], ROWS[3:4]):
        functions.calls.clear()
        Problem(rows, layer(**changes), block_size, torch.float16).check(VarlenAttention())
        assert functions.calls == ["varlen_attn"]


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2"])
def test_same_tokens_as_generate(name: str, functions: VarlenFunctions, make_plain: Make, load_reference: Make) -> None:
    backend = make_plain(name)
    backend.runner.kernel = VarlenAttention()
    functions.dtypes.add(torch.float32)
    driver = Driver(backend)
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, NUM_TOKENS, chunk=7, stagger=2)
    check(driver, load_reference(name), requests)


def test_what_rules_it_out(functions: VarlenFunctions, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = VarlenAttention.refusal
    hopper, blackwell = (9, 0), (10, 0)
    assert refusal(on(hopper, layer(window=3), block_size=16)) is None
    assert refusal(on(blackwell, layer(key_width=128, value_width=128), block_size=128)) is None
    assert refusal(on(blackwell)) is None
    for demand, why in (
        (on(None, device="cpu"), "9.0 (Hopper) or 10.0 (Blackwell)"),
        (on((8, 0)), "9.0 (Hopper) or 10.0 (Blackwell)"),
        (on((12, 0)), "9.0 (Hopper) or 10.0 (Blackwell)"),
        (on(hopper, dtype=torch.float32), "not float32"),
        (on(blackwell, block_size=16), "by FA4 it needs a block_size of 128, not 16"),
        (on(blackwell, block_size=256), "by FA4 it needs a block_size of 128, not 256"),
        (on(blackwell, layer(key_width=256, value_width=256)), "width 128 at most, and this model has 256"),
        (on(hopper, layer(value_width=32)), "K and V of one width"),
        (on(hopper, layer(softcap=3.0)), "no cap on the scores, and layer 0 has one of 3"),
        (on(hopper, layer(sinks=torch.ones(4))), "no attention sinks"),
    ):
        assert why in (refusal(demand) or ""), why
    build = types.ModuleType("flash_attn_config")
    build.__spec__ = ModuleSpec("flash_attn_config", None)
    build.CONFIG = {"build_flags": {"FLASHATTENTION_DISABLE_PAGEDKV": True}}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn_config", build)
    assert refusal(on(hopper)) == "flash_attn_interface was built without paged K and V"
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", None)
    monkeypatch.delitem(sys.modules, "flash_attn")
    assert "FA4, which does, is not installed (flash-attn-4)" in (refusal(on(blackwell)) or "")
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    assert "FlashAttention 2 takes no block_table, and FA3, which does, is not" in (refusal(on(hopper)) or "")
    monkeypatch.setattr(functions, "varlen_attn", lambda query, key, value: None)
    assert f"varlen_attn of torch {torch.__version__} takes no block_table" in (refusal(on(hopper)) or "")
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    assert "takes no block_table" in (refusal(on(hopper)) or "")


@pytest.mark.parametrize(("capability", "name", "block_size"), [((9, 0), "FA3", 16), ((10, 0), "FA4", 128)])
def test_it_activates_what_it_needs_once(
    capability: tuple[int, int],
    name: str,
    block_size: int,
    functions: VarlenFunctions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch.nn.attention as attention

    activated: list[str] = []
    monkeypatch.setattr(attention, "activate_flash_attention_impl", activated.append, raising=False)
    current = lambda: activated[-1] if activated else None  # noqa: E731
    monkeypatch.setattr(attention, "current_flash_attention_impl", current, raising=False)
    assert VarlenAttention.make(on(capability)).default_block_size == block_size
    assert VarlenAttention.make(on(capability)).default_block_size == block_size
    assert activated == [name]
