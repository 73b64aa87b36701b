"""Products with weights that were packed once, in one of two ways."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from batchwright_backends.torch.native.library import Functions


class Product(ABC):
    """``x @ weight.T + bias`` for one linear layer, or for several that get the same x, their columns side by side.

    Attributes:
        num_layers: how many.
        nbytes: of weight and bias.
    """

    def __init__(self, num_layers: int) -> None:
        self.num_layers = num_layers
        self.nbytes = 0
        self._left = 0
        self._input: torch.Tensor | None = None
        self._output: torch.Tensor | None = None

    @abstractmethod
    def of(self, x: torch.Tensor) -> torch.Tensor:
        """The product; x [..., inputs]."""

    @abstractmethod
    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """``of(x) + other``, added before the product is rounded; other [..., outputs]."""

    @abstractmethod
    def unpacked(self) -> torch.Tensor:
        """A copy of the weight as it was, [outputs, inputs]."""

    def shared(self, x: torch.Tensor) -> torch.Tensor:
        """The product, computed at the first of the calls that its layers make with one x."""
        if x is not self._input or self._output is None:
            self._input, self._output, self._left = x, self.of(x), self.num_layers
        output = self._output
        self._left -= 1
        if not self._left:  # nothing is kept alive beyond its use
            self._input = self._output = None
        return output


class OneDnnProduct(Product):
    """By oneDNN, in its own layout.

    Args:
        weight: [outputs, inputs].
        bias: [outputs], or None.
        num_layers: that share it.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, num_layers: int) -> None:
        super().__init__(num_layers)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._bias = bias
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    @staticmethod
    def refusal(dtype: torch.dtype) -> str | None:
        """Why it cannot be used for a dtype here; None: it can."""
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return "this torch has no oneDNN"
        if dtype not in (torch.float32, torch.bfloat16):
            return f"oneDNN is used for float32 and bfloat16, not for {str(dtype).removeprefix('torch.')}"
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return "this processor lacks instructions that oneDNN needs for bfloat16"
        return None

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """See :class:`Product`."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return product

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """See :class:`Product`."""
        total: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._weight, self._bias, "add")
        return total

    def unpacked(self) -> torch.Tensor:
        """See :class:`Product`."""
        weight: torch.Tensor = self._weight.to_dense()
        return weight


class NativeProduct(Product):
    """By the C++ functions, made for steps of few rows; arguments as of :class:`OneDnnProduct`."""

    def __init__(self, functions: Functions, weight: torch.Tensor, bias: torch.Tensor | None, num_layers: int) -> None:
        super().__init__(num_layers)
        self._functions = functions
        self._shape = weight.shape
        self._packed = functions.pack(weight)
        self._bias = None if bias is None else bias.float()
        self.nbytes = self._packed.nbytes + (0 if self._bias is None else self._bias.nbytes)

    @staticmethod
    def refusal(functions: Functions, inputs: int) -> str | None:
        """Why it cannot be used for weights of so many inputs; None: it can."""
        if not functions.has_products:
            need = "AVX-512" if functions.dtype == torch.float32 else "AVX-512 BF16"
            return f"this processor, or its compiler, lacks {need}"
        if inputs % 2 and functions.dtype == torch.bfloat16:
            return f"{inputs} inputs are no pairs"
        return None

    def of(self, x: torch.Tensor) -> torch.Tensor:
        """See :class:`Product`."""
        return self._functions.product(x, self._packed, self._shape[0], self._bias)

    def plus(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """See :class:`Product`."""
        return self._functions.product(x, self._packed, self._shape[0], self._bias, other)

    def unpacked(self) -> torch.Tensor:
        """See :class:`Product`."""
        return self._functions.unpack(self._packed, *self._shape)
