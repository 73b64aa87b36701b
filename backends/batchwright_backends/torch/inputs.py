"""What a step feeds to the model, as host arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchwright.batch import Batch

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


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
    """

    token_ids: Ints
    positions: Ints
    slots: Longs
    starts: Ints
    context_lens: Ints
    block_tables: Ints
    sampled: Longs

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
