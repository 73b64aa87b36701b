"""Attention on CPU by C++ that reads the paged KV cache in place.

torch's operations need K and V of a row in one piece, so they gather all of them in every layer of every step; this
kernel walks the block tables instead. It also puts the new K and V into their slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from weakref import ReferenceType, ref

import numpy as np
import torch

from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.kernels.demand import Demand
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.native.build import NotBuilt
from batchwright_backends.torch.native.library import Functions, Layer, Step, functions

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer
    from batchwright_backends.torch.kv_cache import KVCache

# Tokens of a prompt that share each load of a key.
TASK_TOKENS = 16


class Plan:
    """Tasks of a step: stretches of at most ``TASK_TOKENS`` tokens of one row; a decode is one."""

    def __init__(self, inputs: StepInputs, block_size: int) -> None:
        counts = np.diff(inputs.starts)
        num_rows = len(counts)
        if int(counts.max(initial=0)) <= 1:
            rows, first = np.arange(num_rows, dtype=np.int32), np.zeros(num_rows, np.int32)
        else:
            pieces = -(-counts // TASK_TOKENS)
            rows = np.repeat(np.arange(num_rows, dtype=np.int32), pieces)
            ends = np.cumsum(pieces)
            first = ((np.arange(len(rows)) - (ends - pieces)[rows]) * TASK_TOKENS).astype(np.int32)
        self.num_tokens = len(inputs.token_ids)
        # What the addresses below point to must live as long as they do.
        self._arrays = (
            np.ascontiguousarray(inputs.slots, dtype=np.int64),
            np.ascontiguousarray(inputs.block_tables, dtype=np.int32),
            rows,
            (inputs.starts[rows] + first).astype(np.int32),
            np.minimum(counts[rows] - first, TASK_TOKENS).astype(np.int32),
            ((inputs.context_lens - counts)[rows] + first).astype(np.int32),
        )
        self.step = Step(
            *(array.ctypes.data for array in self._arrays),
            self.num_tokens,
            len(rows),
            inputs.block_tables.shape[1],
            block_size,
        )
        self.cos: torch.Tensor | None = None
        self._rotary: tuple[torch.Tensor, ...] = ()

    def rotate_by(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotary embedding for the layers that follow; [1, T, key width] each."""
        self.cos = cos
        self._rotary = cos.contiguous(), sin.contiguous()  # to live as long as their addresses
        self.step.cos, self.step.sin = (x.data_ptr() for x in self._rotary)


class NativeAttention(AttentionKernel):
    """CPU, float32 and bfloat16, any block size and head width; windows, soft caps and sinks included."""

    name = title = "native"

    def __init__(self, built: Functions) -> None:
        self.functions = built
        self._cache: ReferenceType[KVCache] | None = None  # that the layers below point into
        self._layers: dict[int, tuple[AttentionLayer, Layer]] = {}
        self._scratch = torch.empty(0, 0, dtype=torch.float32)

    @staticmethod
    def refusal(demand: Demand) -> str | None:
        """See :class:`AttentionKernel`."""
        if demand.device != "cpu":
            return "it runs on CPU"
        try:
            functions(demand.dtype)
        except NotBuilt as error:
            return str(error)
        return None

    @classmethod
    def make(cls, demand: Demand) -> NativeAttention:
        """See :class:`AttentionKernel`."""
        return cls(functions(demand.dtype))

    def plan(self, inputs: StepInputs, cache: KVCache) -> Plan:
        """See :class:`AttentionKernel`."""
        return Plan(inputs, cache.block_size)

    def attend(self, plan: Plan, layer: AttentionLayer, query: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """See :class:`AttentionKernel`."""
        return self._run(plan, layer, query, None, None, cache)

    def write_and_attend(
        self,
        plan: Plan,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        slots: torch.Tensor,
        cache: KVCache,
    ) -> torch.Tensor:
        """See :class:`AttentionKernel`."""
        return self._run(plan, layer, query, key, value, cache)

    def attend_packed(
        self, plan: Plan, layer: Layer, packed: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor] | None
    ) -> torch.Tensor:
        """Write K and V and attend, from what one product gave.

        Args:
            plan: of this step.
            layer: from :meth:`layer`, with what is to be done to Q and K first.
            packed: [T, all heads' Q, K and V side by side].
            rotary: cos and sin, [1, T, key width] each, for a layer that rotates.

        Returns:
            [T, heads * value width].
        """
        if rotary is not None and rotary[0] is not plan.cos:
            plan.rotate_by(*rotary)
        out = torch.empty(packed.shape[0], layer.num_heads * layer.value_width, dtype=packed.dtype)
        self.functions.attention_of_packed(layer, plan.step, packed, out, self._scratch)
        return out

    def layer(self, layer: AttentionLayer, cache: KVCache) -> Layer:
        """What the C++ needs to know of a layer; holds for as long as the cache lives."""
        made = Layer(
            keys=cache.keys[layer.index].data_ptr(),
            values=cache.values[layer.index].data_ptr(),
            sinks=None if layer.sinks is None else layer.sinks.data_ptr(),
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            key_width=layer.key_width,
            value_width=layer.value_width,
            window=layer.window or 0,
            scaling=layer.scaling,
            softcap=layer.softcap or 0.0,
        )
        threads, floats = torch.get_num_threads(), self.functions.scratch_floats(made, TASK_TOKENS)
        # Whole cache lines for each thread, or threads slow each other down.
        width = max(-(-floats // 32) * 32, self._scratch.shape[1])
        self._scratch = torch.empty(threads, width, dtype=torch.float32)
        return made

    def _run(
        self,
        plan: Plan,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor | None,
        value: torch.Tensor | None,
        cache: KVCache,
    ) -> torch.Tensor:
        if self._cache is None or self._cache() is not cache:
            self._cache, self._layers = ref(cache), {}
        known, native = self._layers.get(layer.index, (None, None))
        if native is None or known is not layer:
            native = self.layer(layer, cache)
            self._layers[layer.index] = layer, native
        out = torch.empty(query.shape[0], layer.num_heads, layer.value_width, dtype=query.dtype)
        query, key, value = _rows(query), _rows(key), _rows(value)
        self.functions.paged_attention(native, plan.step, query, key, value, out, self._scratch)
        return out


_MaybeTensor = TypeVar("_MaybeTensor", torch.Tensor, "torch.Tensor | None")


def _rows(x: _MaybeTensor) -> _MaybeTensor:
    """The same with each head's values beside each other."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()
