"""Linear layers with packed weights, and those that share an input as one product.

``torch.nn.functional.linear`` brings the weight into the layout of the fastest kernel in each call, or takes a slower
kernel that needs none. Several products of one input (Q, K and V; gate and up) are one with more columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from batchwright_backends.torch.passes.modules import is_bound, replace
from batchwright_backends.torch.passes.products import Product


class PackedLinear(nn.Module):
    """A linear layer: all columns of a product, or some."""

    def __init__(self, product: Product, start: int, out_features: int, in_features: int) -> None:
        super().__init__()
        self.product = product
        self.in_features, self.out_features = in_features, out_features
        self.columns = slice(start, start + out_features)
        self._is_alone = product.num_layers == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inputs] to [..., outputs]."""
        if self._is_alone:
            return self.product.of(x)
        return self.product.shared(x)[..., self.columns]

    @property
    def weight(self) -> torch.Tensor:
        """For modeling code that reads the weight itself: right, and slow."""
        return self.product.unpacked()[self.columns]

    def extra_repr(self) -> str:
        """For ``print(model)``."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


MakeProduct = Callable[[torch.Tensor, "torch.Tensor | None", int], Product]


def pack(model: nn.Module, groups: Iterable[Sequence[str]], make: MakeProduct) -> int:
    """Replace the model's linear layers.

    Args:
        model: on CPU, not trained.
        groups: names of layers that get the same input, for each such input.
        make: makes a product of weight, bias or None, and number of layers.

    Returns:
        how many were replaced.
    """
    places = dict(linear_layers(model))
    together = [group for group in groups if len(group) > 1 and all(name in places for name in group)]
    stacked = {name for group in together for name in group}
    for group in [*together, *([name] for name in places if name not in stacked)]:
        layers = [places.pop(name) for name in group]  # its weights are freed before the next is packed
        product = make(_joined([_weight(x) for x in layers]), _joined([x.bias for x in layers]), len(layers))
        start, packed = 0, {}
        for name, layer in zip(group, layers, strict=True):
            outputs, inputs = _weight(layer).shape
            packed[name] = PackedLinear(product, start, outputs, inputs)
            start += outputs
        replace(model, packed)
    return sum(isinstance(module, PackedLinear) for module in model.modules())


def packed_bytes(model: nn.Module) -> int:
    """Bytes of weights that are packed."""
    products = {module.product for module in model.modules() if isinstance(module, PackedLinear)}
    return sum(product.nbytes for product in products)


def linear_layers(model: nn.Module) -> list[tuple[str, Any]]:
    """Plain linear layers by name: nothing derived from one, nothing that somebody listens to."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if type(module) in (nn.Linear, Conv1D) and not is_bound(module)
    ]


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 or parts[0] is None else torch.cat(parts)


def _weight(layer: Any) -> torch.Tensor:
    weight: torch.Tensor = layer.weight
    return weight.t() if isinstance(layer, Conv1D) else weight


class InputWatch:
    """Finds linear layers of a model that get the very same input, one after the other, by listening to a step."""

    def __init__(self, model: nn.Module) -> None:
        self._calls: list[tuple[str, torch.Tensor, torch.Tensor, bool]] = []
        self._handles = [
            layer.register_forward_pre_hook(self._listener(name, layer.bias is not None))
            for name, layer in linear_layers(model)
        ]

    def _listener(self, name: str, has_bias: bool) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def listen(module: nn.Module, args: tuple[Any, ...]) -> None:
            if args:
                self._calls.append((name, args[0], args[0].clone(), has_bias))

        return listen

    def groups(self) -> list[list[str]]:
        """Stop listening; names of layers with one input, in the order of their calls."""
        for handle in self._handles:
            handle.remove()
        times = Counter(name for name, *_ in self._calls)
        groups: list[list[str]] = [[]]
        before: tuple[torch.Tensor, torch.Tensor, bool] | None = None
        for name, x, values, has_bias in self._calls:
            # The values too: the tensor may have been written to in between.
            same = before is not None and before[0] is x and before[2] == has_bias and torch.equal(before[1], values)
            if not (same and times[name] == 1):
                groups.append([])
            groups[-1].append(name)
            before = x, values, has_bias
        self._calls.clear()
        return [group for group in groups if len(group) > 1]
