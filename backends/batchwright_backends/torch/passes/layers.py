"""Decoder layers of the common kind, in eight calls where the modeling code makes some seventy.

That kind is Llama's: norm; Q, K and V, normed or not, rotated or not; attention; projection; residual; norm; gated SiLU
feed-forward; residual. Mistral, Qwen 2 and 3, Phi-3 and SmolLM3 are of it too. In a step of few tokens the interpreter
and the short operations between the products take as long as the products do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from batchwright_backends.torch.attention import AttentionLayer, PagedStep, attending, open_session
from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.kernels.native import NativeAttention
from batchwright_backends.torch.kv_cache import KVCache
from batchwright_backends.torch.native.library import Functions, Layer
from batchwright_backends.torch.passes import norms
from batchwright_backends.torch.passes.linears import PackedLinear
from batchwright_backends.torch.passes.modules import is_bound, replace
from batchwright_backends.torch.passes.norms import FusedRMSNorm
from batchwright_backends.torch.passes.products import Product
from batchwright_backends.torch.probe import Probe

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@dataclass(frozen=True, slots=True)
class Parts:
    """What such a layer is made of.

    Attributes:
        first_norm: before attention.
        packed: gives Q, K and V side by side.
        query_norm: of each head of Q; None: there is none.
        key_norm: of each head of K.
        out: of all heads, to the residual.
        second_norm: before the feed-forward.
        gate_and_up: gives both side by side.
        down: to the residual.
    """

    first_norm: FusedRMSNorm
    packed: Product
    query_norm: FusedRMSNorm | None
    key_norm: FusedRMSNorm | None
    out: Product
    second_norm: FusedRMSNorm
    gate_and_up: Product
    down: Product

    @classmethod
    def of(cls, layer: Any, functions: Functions) -> Parts | None:
        """The parts by the names that transformers gives them; None: they are not all there."""
        if any(is_bound(module) for module in layer.modules()):
            return None
        attention, mlp = layer.self_attn, getattr(layer, "mlp", None)
        packed = _product(attention, "q_proj", "k_proj", "v_proj") or _product(attention, "qkv_proj")
        both = _product(mlp, "gate_proj", "up_proj") or _product(mlp, "gate_up_proj")
        out, down = _product(attention, "o_proj"), _product(mlp, "down_proj")
        first, second = (
            norms.match(norm, functions) if isinstance(norm := getattr(layer, name, None), nn.Module) else None
            for name in ("input_layernorm", "post_attention_layernorm")
        )
        if packed is None or both is None or out is None or down is None or first is None or second is None:
            return None
        heads = []
        for name in ("q_norm", "k_norm"):
            norm = getattr(attention, name, None)
            heads.append(None if norm is None else norms.match(norm, functions))
            if norm is not None and heads[-1] is None:
                return None
        query_norm, key_norm = heads
        if query_norm is not None and key_norm is not None and not query_norm.is_like(key_norm):
            return None
        return cls(first, packed, query_norm, key_norm, out, second, both, down)


class FusedLayer(nn.Module):
    """A decoder layer.

    Args:
        layer: that it stands for.
        attention: of it.
        functions: that compute what is no product.
        parts: of it.
        rotates: whether Q and K get the rotary embedding.
    """

    def __init__(
        self, layer: Any, attention: AttentionLayer, functions: Functions, parts: Parts, *, rotates: bool
    ) -> None:
        super().__init__()
        self.self_attn = layer.self_attn
        for name in ("attention_type", "layer_type", "layer_idx"):  # the model picks a layer's arguments by these
            if hasattr(layer, name):
                setattr(self, name, getattr(layer, name))
        self._attention = attention
        self._parts = parts
        self._rotates = rotates
        self._first_norm, self._second_norm = parts.first_norm.forward, parts.second_norm.forward
        self._gate = functions.silu_mul
        self._cache: KVCache | None = None
        self._native: Any = None

    def forward(
        self,
        hidden_states: torch.Tensor,
        *args: Any,
        position_embeddings: tuple[torch.Tensor, torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """[1, T, width] to the same; what else the model passes has been looked at when this layer was made."""
        parts, step = self._parts, open_session()
        if step.cache is not self._cache:
            self._cache, self._native = step.cache, self._describe(step)
        x = hidden_states[0]
        packed = parts.packed.of(self._first_norm(x))
        rotary = position_embeddings if self._rotates else None
        x = parts.out.plus(step.kernel.attend_packed(step.plan, self._native, packed, rotary), x)
        inner = self._gate(parts.gate_and_up.of(self._second_norm(x)))
        return parts.down.plus(inner, x)[None]

    def _describe(self, step: Any) -> Layer:
        native: Layer = step.kernel.layer(self._attention, step.cache)
        native.rotates = self._rotates
        query_norm, key_norm = self._parts.query_norm, self._parts.key_norm
        for norm in (query_norm, key_norm):
            if norm is not None:
                native.norm_is_early, native.norm_epsilon = norm.early, norm.epsilon
        native.query_norm = None if query_norm is None else query_norm.weight.data_ptr()
        native.key_norm = None if key_norm is None else key_norm.weight.data_ptr()
        return native


def _product(parent: Any, *names: str) -> Product | None:
    """The product of exactly these layers."""
    layers = [getattr(parent, name, None) for name in names]
    found = [layer.product for layer in layers if isinstance(layer, PackedLinear)]
    if len(found) != len(names) or any(product is not found[0] for product in found):
        return None
    return found[0] if found[0].num_layers == len(names) else None


class CallWatch:
    """Keeps what each of some modules was called with."""

    def __init__(self, modules: list[nn.Module]) -> None:
        self.calls: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._handles = [module.register_forward_pre_hook(self._listen, with_kwargs=True) for module in modules]

    def _listen(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls[module] = args, kwargs

    def stop(self) -> None:
        """Stop listening."""
        for handle in self._handles:
            handle.remove()


def fuse(
    model: nn.Module, layers: Mapping[nn.Module, AttentionLayer], functions: Functions, run: Callable[[], Any]
) -> int:
    """Replace each decoder layer that is found to be of the common kind.

    Its output for random input decides, beside that of its own code.

    Args:
        model: with packed linear layers.
        layers: its attention layers.
        functions: for its dtype.
        run: runs a step of few tokens without a KV cache.

    Returns:
        how many were replaced.
    """
    places: dict[str, Any] = {
        name: module for name, module in model.named_modules() if getattr(module, "self_attn", None) in layers
    }
    parts = {name: Parts.of(layer, functions) for name, layer in places.items()}
    watch = CallWatch(list(places.values()))
    run()
    watch.stop()
    found = {
        name: fused
        for name, layer in places.items()
        if (its := parts[name]) is not None
        and (fused := _match(layer, layers, functions, its, *watch.calls[layer])) is not None
    }
    replace(model, found)
    return len(found)


def _match(
    layer: Any,
    layers: Mapping[nn.Module, AttentionLayer],
    functions: Functions,
    parts: Parts,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> FusedLayer | None:
    hidden: Any = args[0] if args else kwargs.pop("hidden_states")
    # Drawn, since the model's own may be zeros, as embeddings of padding are, for which all layers are alike.
    drawn = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0)).to(hidden.dtype)
    args = (drawn, *args[1:])
    with attending(Probe()):
        expected = layer(*args, **kwargs)
    if not isinstance(expected, torch.Tensor) or expected.shape != hidden.shape:
        return None
    num_tokens = hidden.shape[1]
    attention = layers[layer.self_attn]
    cache = KVCache(list(layers.values()), 1, num_tokens, functions.dtype, torch.device("cpu"))
    kernel = NativeAttention(functions)
    inputs = StepInputs.of_rows([([0] * num_tokens, 0, [0])], num_tokens)
    step = PagedStep(layers, cache, kernel, kernel.plan(inputs, cache), torch.arange(num_tokens))
    embeddings = kwargs.get("position_embeddings")
    fits = embeddings is not None and tuple(embeddings[0].shape) == (1, num_tokens, attention.key_width)
    for rotates in (True, False) if fits else (False,):
        fused = FusedLayer(layer, attention, functions, parts, rotates=rotates)
        with attending(step):
            got = fused(*args, **kwargs)
        distance = (got.float() - expected.float()).abs().max() / expected.float().abs().max().clamp(min=1e-30)
        if float(distance) <= TOLERANCE[functions.dtype]:
            return fused
    return None
