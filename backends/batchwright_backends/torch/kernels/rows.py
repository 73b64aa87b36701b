"""The arrays of a step's rows in the form that flash-attn and its kin take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from batchwright_backends.torch.inputs import StepInputs

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
        which: Any = slice(None) if chosen is None else chosen
        counts, lens = np.diff(inputs.starts)[which], inputs.context_lens[which]

        def to(array: NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(device)

        return cls(
            starts=to(np.concatenate(([0], np.cumsum(counts)))),
            context_lens=to(lens),
            block_table=to(inputs.block_tables[which]),
            max_tokens=int(counts.max()),
            max_keys=int(lens.max()),
        )


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
