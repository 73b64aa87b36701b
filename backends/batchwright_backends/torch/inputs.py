"""What a step feeds to the model: as host arrays, and as tensors on its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from batchwright.batch import Batch

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class Upload(Protocol):
    """Brings host arrays to a device."""

    def put(self, array: NDArray[Any], dtype: DTypeLike | None = None) -> torch.Tensor:
        """The array on the device, for this step.

        Args:
            array: of any shape.
            dtype: that it is to have there; None: its own.
        """
        ...


class DirectUpload:
    """At once, and for as long as somebody holds the tensor. On CPU nothing is copied but to change the dtype."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def put(self, array: NDArray[Any], dtype: DTypeLike | None = None) -> torch.Tensor:
        """See :class:`Upload`."""
        tensor = torch.from_numpy(np.ascontiguousarray(array, dtype=dtype))
        return tensor if self._device.type == "cpu" else tensor.to(self._device)


@dataclass(frozen=True, slots=True)
class StepTensors:
    """The arrays of a step on its device; shapes as in :class:`StepInputs`.

    Attributes:
        token_ids: int64[T].
        positions: int64[T].
        slots: int64[T].
        starts: int32[n + 1].
        context_lens: int32[n].
        block_tables: int32[n, widest].
        sampled: int64[m]; None: all T, in order.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    starts: torch.Tensor
    context_lens: torch.Tensor
    block_tables: torch.Tensor
    sampled: torch.Tensor | None


@dataclass(slots=True)
class StepInputs:
    """Arrays of n rows and T tokens, the rows' tokens flat behind each other.

    Attributes:
        token_ids: int32[T].
        positions: int32[T], place of each token in its request.
        slots: int64[T], where its K and V go: block id * block size + offset in the block.
        starts: int32[n + 1], row i's tokens are ``starts[i]:starts[i + 1]``.
        context_lens: int32[n], tokens that the last token of each row attends to, itself included.
        block_tables: int32[n, widest], unused places 0.
        sampled: int64[m], index among the T of each token whose logits are wanted.
        upload: brings arrays to the device; None: each at once.
    """

    token_ids: Ints
    positions: Ints
    slots: Longs
    starts: Ints
    context_lens: Ints
    block_tables: Ints
    sampled: Longs
    upload: Upload | None = None
    _tensors: StepTensors | None = None

    @classmethod
    def from_batch(cls, batch: Batch) -> StepInputs:
        """The arrays of a batch."""
        return cls(
            token_ids=batch.token_ids,
            positions=batch.positions,
            slots=batch.slots,
            starts=batch.query_starts,
            context_lens=batch.context_lens,
            block_tables=batch.block_tables,
            sampled=batch.sampled_tokens,
        )

    @classmethod
    def of_rows(
        cls, rows: list[tuple[list[int], int, list[int]]], block_size: int, *, all_logits: bool = False
    ) -> StepInputs:
        """The arrays of hand-made rows: for each its new tokens, the number computed before, and its block table.

        The last token of each row is sampled, or every token if ``all_logits``.
        """
        counts = np.array([len(tokens) for tokens, _, _ in rows], dtype=np.int32)
        starts = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum(counts, out=starts[1:])
        positions = np.concatenate([np.arange(c, c + len(t), dtype=np.int32) for t, c, _ in rows])
        tables = np.zeros((len(rows), max(len(b) for _, _, b in rows)), dtype=np.int32)
        for out, (_, _, blocks) in zip(tables, rows, strict=True):
            out[: len(blocks)] = blocks
        block, offset = np.divmod(positions, block_size)
        slots = tables[np.repeat(np.arange(len(rows)), counts), block].astype(np.int64) * block_size + offset
        return cls(
            token_ids=np.array([t for tokens, _, _ in rows for t in tokens], dtype=np.int32),
            positions=positions,
            slots=slots,
            starts=starts,
            context_lens=counts + np.array([c for _, c, _ in rows], dtype=np.int32),
            block_tables=tables,
            sampled=np.arange(starts[-1], dtype=np.int64) if all_logits else starts[1:].astype(np.int64) - 1,
        )

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.context_lens)

    @property
    def is_decode(self) -> bool:
        """Whether every row is one token, and samples."""
        return len(self.token_ids) == len(self.sampled) == len(self.context_lens)

    def put(self, array: NDArray[Any], device: torch.device, dtype: DTypeLike | None = None) -> torch.Tensor:
        """One array more on the device, for this step: what a kernel's plan needs beside :meth:`tensors`."""
        return (self.upload or DirectUpload(device)).put(array, dtype)

    def tensors(self, device: torch.device) -> StepTensors:
        """These arrays on the device; brought there when first asked for."""
        if self._tensors is None:
            put = (self.upload or DirectUpload(device)).put
            # Models index with token ids and positions, for which not all of them take int32.
            self._tensors = StepTensors(
                token_ids=put(self.token_ids, np.int64),
                positions=put(self.positions, np.int64),
                slots=put(self.slots),
                starts=put(self.starts),
                context_lens=put(self.context_lens),
                block_tables=put(self.block_tables),
                # Two different tokens cannot be the same one, so as many as there are tokens are all of them.
                sampled=None if len(self.sampled) == len(self.token_ids) else put(self.sampled),
            )
        return self._tensors
