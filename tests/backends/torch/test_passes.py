"""What makes a model on CPU faster leaves what it computes as it is, and leaves alone what it does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import silu

from backends.torch.conftest import ARCHITECTURES
from backends.torch.driver import Driver
from backends.torch.test_equality import NUM_TOKENS, check, prompts
from batchwright.errors import BackendError, ConfigError
from batchwright_backends.torch.loading import weight_bytes
from batchwright_backends.torch.native import library
from batchwright_backends.torch.native.build import NotBuilt
from batchwright_backends.torch.native.library import Functions, functions
from batchwright_backends.torch.passes import linears, norms, optimise
from batchwright_backends.torch.passes.layers import FusedLayer
from batchwright_backends.torch.passes.linears import InputWatch, PackedLinear
from batchwright_backends.torch.passes.names import PASSES
from batchwright_backends.torch.passes.norms import FusedRMSNorm
from batchwright_backends.torch.passes.products import NativeProduct, OneDnnProduct, Product

Make = Callable[..., Any]
DTYPES = (torch.float32, torch.bfloat16)
COMMON = ("llama", "mistral", "qwen2", "qwen3", "phi3", "smollm3")


@pytest.fixture
def built() -> Functions:
    try:
        return functions(torch.float32)
    except NotBuilt as error:
        pytest.skip(f"the C++ functions are not built here: {error}")


def kinds(backend: Any) -> set[str]:
    return {type(module).__name__ for module in backend.model.modules()}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_is_found_in_each_architecture(name: str, make_backend: Make, built: Functions) -> None:
    backend = make_backend(name)
    layers = backend.model.config.get_text_config().num_hidden_layers
    fused = [module for module in backend.model.modules() if isinstance(module, FusedLayer)]
    assert len(fused) == (layers if name in COMMON else 0)
    assert "PackedLinear" in kinds(backend) and not {"Linear", "Conv1D"} & kinds(backend)


@pytest.mark.parametrize("passes", [[], ["packed_linears"], ["fused_norms"], ["packed_linears", "fused_layers"]])
@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt2"])
def test_same_tokens_with_any_of_them(passes: list[str], name: str, make_backend: Make, load_reference: Make) -> None:
    driver = Driver(make_backend(name, passes=passes))
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, NUM_TOKENS, 7, stagger=2)
    check(driver, load_reference(name), requests)


def test_each_is_switched(make_backend: Make, built: Functions) -> None:
    marks = {"packed_linears": "PackedLinear", "fused_norms": "FusedRMSNorm", "fused_layers": "FusedLayer"}
    assert set(marks) == set(PASSES)
    assert not set(marks.values()) & kinds(make_backend("llama", passes=[]))
    for name in ("packed_linears", "fused_norms"):
        assert set(marks.values()) & kinds(make_backend("llama", passes=[name])) == {marks[name]}
    # Layers need packed products, so alone that pass finds nothing.
    assert not set(marks.values()) & kinds(make_backend("llama", passes=["fused_layers"]))
    assert "FusedLayer" in kinds(make_backend("llama", passes=["fused_layers", "packed_linears"]))
    with pytest.raises(ConfigError, match="passes"):
        make_backend("llama", passes=["fused_lairs"])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype: str, make_backend: Make) -> None:
    """Logits are as near to those of float32 as they are without."""
    distances = []
    tokens = prompts((23,), seed=5)[0]
    exact = _logits(make_backend("llama", passes=[]), tokens)
    for passes in ([], None):
        got = _logits(make_backend("llama", dtype=dtype, passes=passes), tokens)
        distances.append(float((got.float() - exact).norm() / exact.norm()))
    assert distances[1] < 1.5 * distances[0] < 0.2


def _logits(backend: Any, tokens: list[int]) -> torch.Tensor:
    from batchwright_backends.torch.inputs import StepInputs

    table = list(range(-(-len(tokens) // 4)))
    logits: torch.Tensor = backend.runner.logits(StepInputs.of_rows([(tokens, 0, table)], 4, all_logits=True))
    return logits


def test_without_a_compiler_the_model_runs(
    make_backend: Make, load_reference: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(dtype: torch.dtype) -> Functions:
        raise NotBuilt("no g++ is found")

    for module in (library, optimise):
        monkeypatch.setattr(module, "functions", none)
    monkeypatch.setattr("batchwright_backends.torch.kernels.native.functions", none)
    backend = make_backend("llama")
    assert backend.runner.kernel.name == "sdpa"
    assert backend.choice.passed_over["native"] == "no g++ is found"
    products = {type(module.product) for module in backend.model.modules() if isinstance(module, PackedLinear)}
    assert products == ({OneDnnProduct} if OneDnnProduct.refusal(torch.float32) is None else set())
    driver = Driver(backend)
    requests = [driver.request(f"r{i}", p) for i, p in enumerate(prompts())]
    driver.run(requests, NUM_TOKENS, 16, stagger=1)
    check(driver, load_reference("llama"), requests)


def test_a_model_that_computes_something_else_afterwards_is_refused(
    make_backend: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(model: nn.Module, functions: Functions) -> int:
        model.lm_head = nn.Linear(32, 199, bias=False)
        return 1

    monkeypatch.setattr(norms, "fuse", wrong)
    if make_backend("llama", passes=[]).runner.kernel.name != "native":
        pytest.skip("the C++ functions are not built here")
    with pytest.raises(BackendError, match=r"other logits after fused_norms than before .*passes to \[\]"):
        make_backend("llama", passes=["fused_norms"])


def test_weights_are_counted_where_they_are(make_backend: Make) -> None:
    plain, packed = (make_backend("llama", passes=passes) for passes in ([], ["packed_linears"]))
    # Columns are filled up to whole panels, here some.
    assert weight_bytes(plain.model) <= weight_bytes(packed.model) <= 1.5 * weight_bytes(plain.model)


class Pairs(nn.Module):
    """Two layers of one input, or of one tensor with other contents."""

    def __init__(self, *, writes: bool, bias: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 4), nn.Linear(8, 6, bias=not bias)
        self.third = nn.Linear(8, 4)
        self.writes = writes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 1.0
        first = self.first(x)
        if self.writes:
            x += 1
        second = self.second(x)
        return torch.cat([first, second, self.third(x.clone())], -1)


@pytest.mark.parametrize(
    ("model", "groups"),
    [
        (Pairs(writes=False), [["first", "second"]]),
        (Pairs(writes=True), []),
        (Pairs(writes=False, bias=True), []),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_of_one_input_are_one_product(model: Pairs, groups: list[list[str]], dtype: torch.dtype) -> None:
    import copy

    model = copy.deepcopy(model).to(dtype).requires_grad_(False)
    makes: list[Callable[[torch.Tensor, torch.Tensor | None, int], Product]] = []
    if OneDnnProduct.refusal(dtype) is None:
        makes.append(OneDnnProduct)
    try:
        if NativeProduct.refusal(functions(dtype), 8) is None:
            makes.append(lambda *parts: NativeProduct(functions(dtype), *parts))
    except NotBuilt:
        pass
    if not makes:
        pytest.skip("no packed products here")
    for make in makes:
        packed = copy.deepcopy(model)
        with torch.inference_mode():
            watch = InputWatch(packed)
            packed(torch.randn(3, 8).to(dtype))
            found = watch.groups()
            assert found == groups
            assert linears.pack(packed, found, make) == 3
            for rows in (1, 5, 40):
                x = torch.randn(2, rows, 8).to(dtype)
                assert torch.allclose(packed(x), model(x), rtol=1e-2, atol=1e-5 if dtype == torch.float32 else 5e-2)
            layers = [m for m in packed.modules() if isinstance(m, PackedLinear)]
            assert all(layer.product._input is None for layer in layers)  # nothing is kept alive
            for layer, name in zip(layers, ("first", "second", "third"), strict=True):
                assert torch.equal(layer.weight, getattr(model, name).weight)


def test_what_others_listen_to_is_left(built: Functions) -> None:
    model = Pairs(writes=False)
    model.second.register_forward_hook(lambda *args: None)
    names = [name for name, _ in linears.linear_layers(model)]
    assert names == ["first", "third"]


class Norm(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(48) + 0.5)
        self.eps = 1e-5
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        if self.kind == "layer":
            y = y - y.mean(-1, keepdim=True)
        quotient = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        if self.kind == "llama":
            return self.weight * quotient.to(x.dtype)
        if self.kind == "gemma":
            return (quotient * (1.0 + self.weight.float())).to(x.dtype)
        if self.kind == "silu":
            return silu(self.weight * quotient.to(x.dtype))
        return (quotient * self.weight.float()).to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("kind", "early", "added"),
    [("llama", True, 0.0), ("olmo", False, 0.0), ("gemma", False, 1.0), ("layer", None, 0.0), ("silu", None, 0.0)],
)
def test_a_norm_is_known_by_what_it_computes(
    kind: str, early: bool | None, added: float, dtype: torch.dtype, built: Functions
) -> None:
    norm = Norm(kind).to(dtype).requires_grad_(False)
    found = norms.match(norm, functions(dtype))
    if early is None:
        assert found is None
        return
    assert isinstance(found, FusedRMSNorm)
    assert torch.equal(found.weight, norm.weight.float() + added)
    if dtype == torch.bfloat16:  # in float32 both orders are the same
        assert found.early is early
    x = torch.randn(2, 3, 48).to(dtype)
    assert torch.allclose(found(x), norm(x), rtol=1e-2, atol=1e-2)
