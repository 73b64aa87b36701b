"""What a step asks of a GPU, as a handful of sums over the rows of its batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FEW = 8  # up to here a Python loop over chunks is faster than a dozen numpy calls


@dataclass(frozen=True, slots=True)
class AttentionLoad:
    """What attention reads and computes in one layer.

    Attributes:
        kv_tokens: sum over rows of the tokens that the row's last token attends to.
        kv_max: the largest of them.
        chunk_area: sum over rows of more than one token of ``max(q, tile) * mean context of the row's tokens``:
            pairs of a query and a key, whole tiles counted.
        chunk_kv_tokens: the part of ``kv_tokens`` that belongs to rows of more than one token.
    """

    kv_tokens: int
    kv_max: int
    chunk_area: float = 0.0
    chunk_kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step consists of.

    Attributes:
        num_rows: requests.
        num_tokens: tokens of all rows.
        num_sampled: rows that sample a token.
        attention: of a layer that attends to everything.
        sliding: of a layer with a sliding window; None where the model has none.
    """

    num_rows: int
    num_tokens: int
    num_sampled: int
    attention: AttentionLoad
    sliding: AttentionLoad | None = None


def attention_load(
    num_computed: NDArray[np.int32], num_scheduled: NDArray[np.int32], num_tokens: int, tile: int
) -> AttentionLoad:
    """Sums over the rows of a batch that is not empty.

    Args:
        num_computed: int32[n], tokens of each row whose K and V exist before the step.
        num_scheduled: int32[n], tokens of each row in the step, at least 1.
        num_tokens: their sum.
        tile: query tokens that a row of several tokens pays at least.
    """
    n = len(num_computed)
    if num_tokens == n:  # decodes only, which is most steps: two sums are all
        return AttentionLoad(int(num_computed.sum()) + n, int(num_computed.max()) + 1)
    contexts = num_computed + num_scheduled
    chunks = (num_scheduled > 1).nonzero()[0]
    kv_tokens, kv_max = int(contexts.sum()), int(contexts.max())
    if len(chunks) <= _FEW:
        twice_area = chunk_kv = 0
        for i in chunks.tolist():
            c, q = int(num_computed[i]), int(num_scheduled[i])
            twice_area += max(q, tile) * (2 * c + q + 1)
            chunk_kv += c + q
    else:
        c64, q64 = num_computed[chunks].astype(np.int64), num_scheduled[chunks].astype(np.int64)
        twice_area = int((np.maximum(q64, tile) * (2 * c64 + q64 + 1)).sum())
        chunk_kv = int((c64 + q64).sum())
    return AttentionLoad(kv_tokens, kv_max, twice_area / 2, chunk_kv)


def sliding_load(
    num_computed: NDArray[np.int32], num_scheduled: NDArray[np.int32], tile: int, window: int
) -> AttentionLoad:
    """The same for layers whose tokens attend to the last ``window`` tokens only, their own included."""
    c = num_computed.astype(np.int64)
    q = num_scheduled.astype(np.int64)
    contexts = np.minimum(c + q, window + q - 1)  # the row's first token reaches back furthest
    growing = np.clip(window - c, 0, q)  # tokens whose context has not reached the window
    area = growing * (2 * c + growing + 1) / 2 + (q - growing) * window
    chunk = q > 1
    tiled = area[chunk] * np.maximum(q[chunk], tile) / q[chunk]
    return AttentionLoad(int(contexts.sum()), int(contexts.max()), float(tiled.sum()), int(contexts[chunk].sum()))
