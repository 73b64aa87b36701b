"""The arrays of a step's rows in the form that flash-attn and its kin take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from batchwright_backends.torch.inputs import StepInputs, StepTensors

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a step, or all, on the device.

    Attributes:
        starts: int32[rows + 1], as ``StepInputs.starts`` for these rows.
        context_lens: int32[rows].
        block_table: int32[rows, widest].
        max_tokens: of a row.
        max_keys: of a row.
    """

    starts: torch.Tensor
    context_lens: torch.Tensor
    block_table: torch.Tensor
    max_tokens: int
    max_keys: int

    @classmethod
    def of(cls, inputs: StepInputs, device: torch.device, chosen: NDArray[np.bool_] | None = None) -> Rows:
        """The chosen rows of a step; None: all."""
        counts = np.diff(inputs.starts)
        if chosen is None:
            tensors = inputs.tensors(device)
            return cls(
                starts=tensors.starts,
                context_lens=tensors.context_lens,
                block_table=tensors.block_tables,
                max_tokens=int(counts.max()),
                max_keys=int(inputs.context_lens.max()),
            )
        counts, lens = counts[chosen], inputs.context_lens[chosen]
        return cls(
            starts=inputs.put(sums(counts), device),
            context_lens=inputs.put(lens, device),
            block_table=inputs.put(inputs.block_tables[chosen], device),
            max_tokens=int(counts.max()),
            max_keys=int(lens.max()),
        )

    @classmethod
    def of_decodes(cls, tensors: StepTensors, max_keys: int) -> Rows:
        """Rows of one token each, of at most so many keys; see :meth:`AttentionKernel.plan_decodes`."""
        return cls(
            starts=tensors.starts,
            context_lens=tensors.context_lens,
            block_table=tensors.block_tables,
            max_tokens=1,
            max_keys=max_keys,
        )


def sums(counts: NDArray[np.int32]) -> NDArray[np.int32]:
    """int32[n + 1]: 0, and the running sum."""
    out = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=out[1:])
    return out


def window_size(layer: AttentionLayer, everything: int) -> tuple[int, int]:
    """How far a token sees to its left, without itself, and to its right.

    Args:
        layer: which may have a window.
        everything: what stands at the right where there is none: -1, or 0 where nothing else says that it is causal.
    """
    return (-1, everything) if layer.window is None else (layer.window - 1, 0)


def last_contiguous(query: torch.Tensor) -> torch.Tensor:
    """The same values with neighbours in the last dimension next to each other, copied only where they are not."""
    return query if query.stride(-1) == 1 else query.contiguous()
