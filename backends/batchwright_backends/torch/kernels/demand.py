"""What is asked of an attention kernel, and what a kernel can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Demand:
    """Where a kernel is to run, and what the model needs of it.

    Attributes:
        device: ``cpu`` or ``cuda``.
        capability: compute capability of the NVIDIA GPU, such as (9, 0); None: it is none.
        dtype: of Q, K and V.
        block_size: tokens of a KV block; None: the kernel may choose.
        layers: of the model.
        is_named: whether the config names this kernel, instead of ``auto``.
    """

    device: str
    capability: tuple[int, int] | None
    dtype: torch.dtype
    block_size: int | None
    layers: Sequence[AttentionLayer]
    is_named: bool = False

    @classmethod
    def of(
        cls,
        device: torch.device,
        dtype: torch.dtype,
        block_size: int | None,
        layers: Sequence[AttentionLayer],
        is_named: bool = False,
    ) -> Demand:
        """The demand of a model on a device of this machine."""
        nvidia = device.type == "cuda" and torch.version.hip is None
        capability = torch.cuda.get_device_capability(device) if nvidia else None
        return cls(device.type, capability, dtype, block_size, layers, is_named)

    @property
    def generation(self) -> int | None:
        """The first number of the compute capability: 8 is Ampere and Ada, 9 Hopper, 10 and 12 Blackwell."""
        return None if self.capability is None else self.capability[0]

    @property
    def widths(self) -> list[tuple[int, int]]:
        """The widths of K and V of a head, each pair once."""
        return list(dict.fromkeys((layer.key_width, layer.value_width) for layer in self.layers))


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a kernel can do.

    Attributes:
        dtypes: that it takes; None: any.
        block_multiple: a block size is a multiple of it.
        width_multiple: the width of a head is a multiple of it.
        max_width: of a head; None: any.
        unequal_widths: whether V may have another width than K.
        windows: whether it knows sliding windows.
        softcap: whether it knows caps on the scores.
        sinks: whether it knows attention sinks.
    """

    dtypes: tuple[torch.dtype, ...] | None = None
    block_multiple: int = 1
    width_multiple: int = 1
    max_width: int | None = None
    unequal_widths: bool = True
    windows: bool = True
    softcap: bool = True
    sinks: bool = True

    def lacks(self, demand: Demand) -> str | None:
        """None, or in one clause what is demanded and missing."""
        if self.dtypes is not None and demand.dtype not in self.dtypes:
            return f"it needs dtype {' or '.join(map(_name, self.dtypes))}, not {_name(demand.dtype)}"
        if demand.block_size is not None and demand.block_size % self.block_multiple:
            return f"it needs a block_size that is a multiple of {self.block_multiple}, not {demand.block_size}"
        for key_width, value_width in demand.widths:
            if key_width != value_width and not self.unequal_widths:
                return f"it needs K and V of one width, and this model has {key_width} and {value_width}"
            widest = max(key_width, value_width)
            if self.max_width is not None and widest > self.max_width:
                return f"it needs heads of width {self.max_width} at most, and this model has {widest}"
            for width in (key_width, value_width):
                if width % self.width_multiple:
                    return f"it needs heads of a width that is a multiple of {self.width_multiple}, not {width}"
        for layer in demand.layers:
            if layer.window is not None and not self.windows:
                return f"it knows no sliding window, and layer {layer.index} has one of {layer.window} tokens"
            if layer.softcap is not None and not self.softcap:
                return f"it knows no cap on the scores, and layer {layer.index} has one of {layer.softcap:g}"
            if layer.sinks is not None and not self.sinks:
                return f"it knows no attention sinks, and layer {layer.index} has them"
        return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
