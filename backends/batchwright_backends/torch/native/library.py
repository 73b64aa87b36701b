"""The C++ functions, called with tensors.

Each releases the interpreter lock while it runs, and uses as many threads as torch does.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import torch

from batchwright_backends.torch.native.build import NotBuilt, ensure

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
# Below so many elements waking a second thread costs more than it saves.
SMALL = 8192
# Outputs that are packed together.
PANEL = 32

Strides = c_int64 * 6


class Layer(ctypes.Structure):
    """``struct Layer`` of kernels.cpp."""

    _fields_ = [
        ("keys", c_void_p),
        ("values", c_void_p),
        ("sinks", c_void_p),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("key_width", c_int64),
        ("value_width", c_int64),
        ("window", c_int64),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("norm_is_early", c_int32),
        ("rotates", c_int32),
        ("norm_epsilon", c_float),
        ("scaling", c_float),
        ("softcap", c_float),
    ]


class Step(ctypes.Structure):
    """``struct Step`` of kernels.cpp."""

    _fields_ = [
        ("slots", c_void_p),
        ("block_tables", c_void_p),
        ("task_row", c_void_p),
        ("task_start", c_void_p),
        ("task_count", c_void_p),
        ("task_position", c_void_p),
        ("num_tokens", c_int64),
        ("num_tasks", c_int64),
        ("table_width", c_int64),
        ("block_size", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
    ]


class Functions:
    """The functions for one dtype."""

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        def function(name: str, *types: Any) -> Any:
            found = getattr(library, f"{name}_{DTYPES[dtype]}")
            found.argtypes, found.restype = types, None
            return found

        self.dtype = dtype
        self._scratch_floats = library.attention_scratch
        self._scratch_floats.argtypes, self._scratch_floats.restype = (c_void_p, c_int64), c_int64
        p, i = c_void_p, c_int64
        self._attention = function("paged_attention", p, p, p, p, p, p, p, p, i, c_int)
        self._attention_of_packed = function("attention_of_packed", p, p, p, p, p, i, c_int)
        self._rms_norm = function("rms_norm", p, p, p, i, i, i, c_float, c_int, c_int)
        self._pack = function("pack", p, p, i, i, c_int)
        self._product = function("product", p, p, p, i, i, i, p, p, c_int)
        self.has_products: bool = bool(getattr(library, f"has_products_{DTYPES[dtype]}")())
        self._silu_mul = function("silu_mul", p, p, i, i, c_int)

    def scratch_floats(self, layer: Layer, num_tokens: int) -> int:
        """Floats of scratch that each thread needs for tasks of so many tokens."""
        return int(self._scratch_floats(ctypes.addressof(layer), num_tokens))

    def paged_attention(
        self,
        layer: Layer,
        step: Step,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        out: torch.Tensor,
        scratch: torch.Tensor,
    ) -> None:
        """Write K and V of a step's tokens to their slots, then attend; shapes as in ``AttentionKernel``.

        Args:
            layer: which layer.
            step: what all layers share.
            query: [T, heads, key width], its last dimension contiguous, as that of ``key`` and ``value``.
            key: [T, KV heads, key width]; None: K and V are in their slots already.
            value: [T, KV heads, value width].
            out: [T, heads, value width], contiguous.
            scratch: float32[threads, floats a thread].
        """
        strides = [*query.stride()[:2], 0, 0, 0, 0]
        if key is not None and value is not None:
            strides[2:] = *key.stride()[:2], *value.stride()[:2]
        self._attention(
            ctypes.addressof(layer),
            ctypes.addressof(step),
            query.data_ptr(),
            None if key is None else key.data_ptr(),
            None if value is None else value.data_ptr(),
            out.data_ptr(),
            Strides(*strides),
            scratch.data_ptr(),
            scratch.shape[1],
            scratch.shape[0],
        )

    def attention_of_packed(
        self, layer: Layer, step: Step, packed: torch.Tensor, out: torch.Tensor, scratch: torch.Tensor
    ) -> None:
        """The same with Q, K and V side by side: [T, heads * key width + KV heads * (key width + value width)]."""
        self._attention_of_packed(
            ctypes.addressof(layer),
            ctypes.addressof(step),
            packed.data_ptr(),
            out.data_ptr(),
            scratch.data_ptr(),
            scratch.shape[1],
            scratch.shape[0],
        )

    def pack(self, weight: torch.Tensor) -> torch.Tensor:
        """Weights as :meth:`product` takes them; only where ``has_products``.

        Args:
            weight: [outputs, inputs], in bfloat16 of an even number of inputs.
        """
        outputs, inputs = weight.shape
        packed = torch.empty(-(-outputs // PANEL) * PANEL * inputs, dtype=weight.dtype)
        weight = weight.contiguous()
        self._pack(weight.data_ptr(), packed.data_ptr(), outputs, inputs, torch.get_num_threads())
        return packed

    def unpack(self, packed: torch.Tensor, outputs: int, inputs: int) -> torch.Tensor:
        """What :meth:`pack` was given."""
        pair = 2 if self.dtype == torch.bfloat16 else 1
        panels = packed.view(-1, inputs // pair, PANEL, pair)
        return panels.transpose(1, 2).reshape(-1, inputs)[:outputs]

    def product(
        self,
        x: torch.Tensor,
        packed: torch.Tensor,
        outputs: int,
        bias: torch.Tensor | None = None,
        other: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``x @ weight.T + bias + other``, rounded once.

        Args:
            x: [..., inputs].
            packed: weights, from :meth:`pack`.
            outputs: of the weights.
            bias: float32[outputs].
            other: [..., outputs].
        """
        inputs = x.shape[-1]
        x = x.contiguous()
        other = None if other is None else other.contiguous()  # a name, or the copy is gone before it is read
        out = torch.empty((*x.shape[:-1], outputs), dtype=x.dtype)
        self._product(
            x.data_ptr(),
            packed.data_ptr(),
            out.data_ptr(),
            x.numel() // inputs,
            outputs,
            inputs,
            None if bias is None else bias.data_ptr(),
            None if other is None else other.data_ptr(),
            torch.get_num_threads(),
        )
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float, *, early: bool) -> torch.Tensor:
        """``x / sqrt(mean(x**2) + epsilon) * weight`` along the last dimension.

        Args:
            x: [..., width].
            weight: float32[width].
            epsilon: added to the mean.
            early: the quotient is rounded to the dtype before the weight is multiplied.
        """
        width = x.shape[-1]
        rows = x.numel() // width
        flat = x.reshape(rows, width)
        if flat.stride(1) != 1:
            flat = flat.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype)
        self._rms_norm(
            flat.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            rows,
            width,
            flat.stride(0),
            epsilon,
            early,
            _threads(x.numel()),
        )
        return out

    def silu_mul(self, both: torch.Tensor) -> torch.Tensor:
        """``silu(gate) * up``; [rows, gate and up side by side], contiguous, to [rows, width]."""
        rows, width = both.shape[0], both.shape[1] // 2
        out = torch.empty((rows, width), dtype=both.dtype)
        self._silu_mul(both.data_ptr(), out.data_ptr(), rows, width, _threads(out.numel()))
        return out


def _threads(elements: int) -> int:
    return 1 if elements < SMALL else torch.get_num_threads()


@cache
def functions(dtype: torch.dtype) -> Functions:
    """The functions for a dtype.

    Raises:
        NotBuilt: they cannot be had for it here.
    """
    if dtype not in DTYPES:
        raise NotBuilt(f"it knows {' and '.join(DTYPES.values())}, not {str(dtype).removeprefix('torch.')}")
    try:
        return Functions(ctypes.CDLL(str(ensure())), dtype)
    except OSError as error:
        raise NotBuilt(f"what was built cannot be loaded: {error}") from error
