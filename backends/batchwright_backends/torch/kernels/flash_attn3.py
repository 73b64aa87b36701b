"""FlashAttention 3 on Hopper: one call for decodes and chunks alike, over any block size.

Interface as of the ``hopper`` folder of https://github.com/Dao-AILab/flash-attention (``flash_attn_interface``), and of
the package fa3-fwd 0.0.3, which is its forward part under another name (``fa3_fwd_interface``). Both come with a module
that says what was left out of the build; the wheel of fa3-fwd, for one, leaves out paged K and V. Tested against a
stand-in that checks and computes the same; not yet run on a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from batchwright_backends.torch.inputs import StepInputs, StepTensors
from batchwright_backends.torch.kernels.demand import HALF, Abilities, Demand
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kernels.rows import Rows, last_contiguous, window_size

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer
    from batchwright_backends.torch.kv_cache import KVCache

GENERATION = 9
# Interface and build configuration of each package.
PACKAGES = {"flash_attn_interface": "flash_attn_config", "fa3_fwd_interface": "fa3_fwd_config"}
ABILITIES = Abilities(dtypes=HALF, width_multiple=8, sinks=False)
# Widths for which there are kernels; a head takes the next one up.
WIDTHS = (64, 96, 128, 192, 256)


class FlashAttention3(AttentionKernel):
    """``flash_attn_with_kvcache`` with a page table and the queries flat."""

    name = "flash_attn"
    title = "flash_attn 3"
    not_captured = None

    def __init__(self, interface: str = "flash_attn_interface") -> None:
        module = importlib.import_module(interface)
        self._with_kvcache: Callable[..., torch.Tensor] = module.flash_attn_with_kvcache

    @classmethod
    def make(cls, demand: Demand) -> FlashAttention3:
        """See :class:`AttentionKernel`."""
        return cls(next(name for name in _installed() if missing_in_build(name, demand) is None))

    @staticmethod
    def refusal(demand: Demand) -> str | None:
        """See :class:`AttentionKernel`."""
        if demand.generation != GENERATION:
            return "it needs an NVIDIA GPU of compute capability 9.0 (Hopper)"
        installed = _installed()
        if not installed:
            return "neither flash_attn_interface (flash-attention's folder hopper) nor fa3-fwd is installed"
        if (lacking := ABILITIES.lacks(demand) or _lacking_width(demand)) is not None:
            return lacking
        missing = [missing_in_build(name, demand) for name in installed]
        return None if None in missing else "; ".join(reason for reason in missing if reason is not None)

    def plan(self, inputs: StepInputs, cache: KVCache) -> Rows:
        """See :class:`AttentionKernel`."""
        return Rows.of(inputs, cache.keys[0].device)

    def plan_decodes(self, tensors: StepTensors, max_keys: int) -> Rows:
        """See :class:`AttentionKernel`."""
        return Rows.of_decodes(tensors, max_keys)

    def attend(self, plan: Rows, layer: AttentionLayer, query: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """See :class:`AttentionKernel`."""
        return self._with_kvcache(
            last_contiguous(query),
            cache.keys[layer.index],
            cache.values[layer.index],
            cache_seqlens=plan.context_lens,
            page_table=plan.block_table,
            cu_seqlens_q=plan.starts,
            max_seqlen_q=plan.max_tokens,
            softmax_scale=layer.scaling,
            causal=True,
            window_size=window_size(layer, everything=-1),
            softcap=layer.softcap or 0.0,
        )


def _installed() -> list[str]:
    return [name for name in PACKAGES if importlib.util.find_spec(name) is not None]


def _lacking_width(demand: Demand) -> str | None:
    """Why there is no kernel for the heads' widths (``mha_fwd`` in ``hopper/flash_api.cpp``), or None."""
    for key_width, value_width in demand.widths:
        if key_width == value_width:
            if key_width > WIDTHS[-1]:
                return f"it needs heads of width {WIDTHS[-1]} at most, and this model has {key_width}"
        elif not ((key_width <= 64 and value_width <= 512) or (128 < key_width <= 192 and 96 < value_width <= 128)):
            return (
                "of K and V of different width it knows K up to 64 with V up to 512, and K of 136 to 192 with V of 104 "
                f"to 128; this model has {key_width} and {value_width}"
            )
    return None


def missing_in_build(interface: str, demand: Demand) -> str | None:
    """What of the demand was left out when the package was built, or None."""
    name = PACKAGES[interface]
    if importlib.util.find_spec(name) is None:
        return None
    flags: Mapping[str, bool] = importlib.import_module(name).CONFIG["build_flags"]

    def without(feature: str) -> bool:
        return bool(flags.get(f"FLASHATTENTION_DISABLE_{feature}") or flags.get(f"FLASH_ATTENTION_DISABLE_{feature}"))

    needs = {"PAGEDKV": "paged K and V", "VARLEN": "rows of different length"}
    if demand.dtype == torch.float16:
        needs["FP16"] = "float16"
    if any(layer.window is not None for layer in demand.layers):
        needs["LOCAL"] = "sliding windows"
    if any(layer.softcap is not None for layer in demand.layers):
        needs["SOFTCAP"] = "caps on the scores"
    for key_width, value_width in demand.widths:
        if key_width != value_width:
            needs["HDIMDIFF64" if key_width <= 64 else "HDIMDIFF192"] = f"widths {key_width} and {value_width}"
        if all(without(f"HDIM{width}") for width in WIDTHS if width >= key_width):
            return f"{interface} was built without heads of width {key_width}"
    missing = [what for feature, what in needs.items() if without(feature)]
    return f"{interface} was built without {' and '.join(missing)}" if missing else None
