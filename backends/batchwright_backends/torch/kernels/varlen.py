"""torch's own ``varlen_attn`` over block tables, where a FlashAttention that reads them stands behind it.

Interface as of torch 2.13 (``torch.nn.attention.varlen``). What torch brings itself, FlashAttention 2, takes no block
tables there (https://github.com/pytorch/pytorch/pull/175924); FlashAttention 3 on Hopper and 4 on Blackwell do, once
they are installed and activated for the process, which :meth:`VarlenAttention.make` does. Tested against a stand-in
that checks and computes the same; not yet run on a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from batchwright_backends.torch.inputs import StepInputs, StepTensors
from batchwright_backends.torch.kernels.demand import HALF, Abilities, Demand
from batchwright_backends.torch.kernels.flash_attn3 import PACKAGES, missing_in_build
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kernels.rows import Rows, last_contiguous, window_size

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer
    from batchwright_backends.torch.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class Implementation:
    """A FlashAttention that torch can call.

    Attributes:
        name: as ``torch.nn.attention.activate_flash_attention_impl`` knows it.
        module: that it comes with.
        package: how to get it.
        block_size: the default.
        is_fixed: whether it takes no other.
        abilities: what it can do through ``varlen_attn``.
    """

    name: str
    module: str
    package: str
    block_size: int
    is_fixed: bool
    abilities: Abilities


# FlashAttention 4 loads pages of its tile, 128 keys, by TMA, and is asked for no others; its kernels for a width of 256
# take no lengths (https://github.com/pytorch/pytorch/issues/195603).
_COMMON = Abilities(dtypes=HALF, width_multiple=8, unequal_widths=False, softcap=False, sinks=False)
IMPLEMENTATIONS = {
    9: Implementation(
        "FA3", "flash_attn_interface", "flash-attention's folder hopper", 16, False, replace(_COMMON, max_width=256)
    ),
    10: Implementation("FA4", "flash_attn.cute.interface", "flash-attn-4", 128, True, replace(_COMMON, max_width=128)),
}


class VarlenAttention(AttentionKernel):
    """``varlen_attn`` with a block table: one call for decodes and chunks alike."""

    name = title = "varlen"
    not_captured = None

    def __init__(self, block_size: int = 16) -> None:
        module: Any = importlib.import_module("torch.nn.attention.varlen")
        self._varlen_attn: Callable[..., torch.Tensor] = module.varlen_attn
        self.default_block_size = block_size

    @classmethod
    def make(cls, demand: Demand) -> VarlenAttention:
        """See :class:`AttentionKernel`."""
        assert demand.generation is not None
        wanted = IMPLEMENTATIONS[demand.generation]
        attention: Any = importlib.import_module("torch.nn.attention")
        if attention.current_flash_attention_impl() != wanted.name:
            attention.activate_flash_attention_impl(wanted.name)
        return cls(wanted.block_size)

    @staticmethod
    def refusal(demand: Demand) -> str | None:
        """See :class:`AttentionKernel`."""
        if demand.generation not in IMPLEMENTATIONS:
            return "it needs an NVIDIA GPU of compute capability 9.0 (Hopper) or 10.0 (Blackwell)"
        if not _takes_block_tables():
            return f"varlen_attn of torch {torch.__version__} takes no block_table (that of torch 2.13 does)"
        wanted = IMPLEMENTATIONS[demand.generation]
        if not _is_there(wanted.module):
            return (
                f"torch's own FlashAttention 2 takes no block_table, and {wanted.name}, which does, is not installed "
                f"({wanted.package})"
            )
        if wanted.is_fixed and demand.block_size not in (None, wanted.block_size):
            return f"by {wanted.name} it needs a block_size of {wanted.block_size}, not {demand.block_size}"
        if (lacking := wanted.abilities.lacks(demand)) is not None:
            return lacking
        return missing_in_build(wanted.module, demand) if wanted.module in PACKAGES else None

    def plan(self, inputs: StepInputs, cache: KVCache) -> Rows:
        """See :class:`AttentionKernel`."""
        return Rows.of(inputs, cache.keys[0].device)

    def plan_decodes(self, tensors: StepTensors, max_keys: int) -> Rows:
        """See :class:`AttentionKernel`."""
        return Rows.of_decodes(tensors, max_keys)

    def attend(self, plan: Rows, layer: AttentionLayer, query: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """See :class:`AttentionKernel`."""
        return self._varlen_attn(
            last_contiguous(query),
            cache.keys[layer.index],
            cache.values[layer.index],
            plan.starts,
            None,  # with a block table, the lengths of K and V are seqused_k
            plan.max_tokens,
            plan.max_keys,
            scale=layer.scaling,
            window_size=window_size(layer, everything=0),
            enable_gqa=layer.num_heads != layer.num_kv_heads,
            seqused_k=plan.context_lens,
            block_table=plan.block_table,
        )


def _takes_block_tables() -> bool:
    if not _is_there("torch.nn.attention.varlen"):
        return False
    module: Any = importlib.import_module("torch.nn.attention.varlen")
    return "block_table" in inspect.signature(module.varlen_attn).parameters


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except Exception:  # a package above it is missing, or fails when it is imported
        return False
