"""K and V of every layer, in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from batchwright_backends.torch.inputs import Longs

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer


class KVCache:
    """Blocks of K and V for each layer, and one block more that stays zero.

    A kernel may gather whole blocks and mask what is not there, but a mask does not stop a NaN: 0 * NaN is NaN. So no
    block ever shows what an earlier owner left: a block is cleared before its first slot is written, and padding
    points to ``null_block``. Without this, one request with NaNs would spoil whoever gets its blocks later.

    Attributes:
        num_blocks: blocks that requests may hold.
        block_size: tokens of a block.
        null_block: id of the block of zeros.
        keys: for each layer [num_blocks + 1, block_size, KV heads, key width].
        values: for each layer [num_blocks + 1, block_size, KV heads, value width].
    """

    def __init__(
        self,
        layers: Sequence[AttentionLayer],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = self.null_block = num_blocks
        self.block_size = block_size
        # Layers of equal shape share one tensor, so that clearing blocks is one operation for all of them.
        shapes = [(layer.num_kv_heads, width) for layer in layers for width in (layer.key_width, layer.value_width)]
        self._pools: dict[tuple[int, int], torch.Tensor] = {
            shape: torch.zeros((shapes.count(shape), num_blocks + 1, block_size, *shape), dtype=dtype, device=device)
            for shape in dict.fromkeys(shapes)
        }
        taken = dict.fromkeys(shapes, 0)
        views = []
        for shape in shapes:
            views.append(self._pools[shape][taken[shape]])
            taken[shape] += 1
        self.keys, self.values = views[::2], views[1::2]
        # Flat views [slots, heads, width], made once: 60 of them a step would cost as much as writing does.
        self._key_slots = [k.flatten(0, 1) for k in self.keys]
        self._value_slots = [v.flatten(0, 1) for v in self.values]

    @staticmethod
    def bytes_per_block(layers: Sequence[AttentionLayer], block_size: int, dtype: torch.dtype) -> int:
        """Bytes of one block over all layers."""
        width = sum(layer.num_kv_heads * (layer.key_width + layer.value_width) for layer in layers)
        return width * block_size * dtype.itemsize

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks, the null block included."""
        return sum(pool.nbytes for pool in self._pools.values())

    def fresh_blocks(self, slots: Longs) -> Longs | None:
        """Ids of the blocks that writing ``slots`` opens and does not fill; None: there are none."""
        offset = slots % self.block_size
        opened = slots[offset == 0]
        if not opened.size:  # as in most steps of decodes
            return None
        filled = slots[offset == self.block_size - 1] // self.block_size
        fresh = np.setdiff1d(opened // self.block_size, filled)
        return fresh if fresh.size else None

    def clear(self, blocks: torch.Tensor) -> None:
        """Fill these blocks, int64 on the device, with zeros."""
        for pool in self._pools.values():
            pool.index_fill_(1, blocks, 0)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
        """Put K [T, KV heads, key width] and V of one layer's new tokens into their slots, int64[T]."""
        self._key_slots[layer].index_copy_(0, slots, key)
        self._value_slots[layer].index_copy_(0, slots, value)
