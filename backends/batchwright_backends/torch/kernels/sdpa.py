"""The portable kernel: gather blocks, then torch's scaled_dot_product_attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention

from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.kernels.demand import Demand
from batchwright_backends.torch.kernels.kernel import AttentionKernel

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer
    from batchwright_backends.torch.kv_cache import KVCache

# A chunk with something before it needs a mask of (its tokens) x (its context), so it is cut into pieces of this many
# tokens, each with its own context; a whole prompt needs none and stays in one piece.
PIECE_TOKENS = 512
# Prompts from this length on are not worth padding into a group: measured on 2 cores, a call of its own costs less
# than 5% at 64 tokens.
LONG_PROMPT = 64
# Scores of a group, padding included: at most this many (a 4 MiB mask), and at most so much more than without it.
GROUP_SCORES = 1 << 22
GROUP_WASTE = 1.5
# K and V that a group gathers from a layer. On CPU they should stay in the cache between the copy and its use: 32 rows
# over 512 keys took 10 ms at once, 5 ms in groups of 4 to 8. A GPU wants few large calls.
GROUP_BYTES = {"cpu": 3 << 20, "cuda": 256 << 20}


@dataclass(frozen=True, slots=True)
class Group:
    """R rows (or pieces of them) that are attended in one call, padded to n tokens over L keys.

    Attributes:
        num_rows: R.
        num_tokens: n.
        num_keys: L.
        blocks: int64[R * blocks a row], to gather.
        queries: int64[R * n], places among the step's tokens, padding repeats one; None: all of them, in order.
        valid: int64[tokens], which of the R * n are no padding; None: all.
        mask: bool[R, 1, n, L], true where a token attends; None: causal over n = L, or everything if n = 1.
    """

    num_rows: int
    num_tokens: int
    num_keys: int
    blocks: torch.Tensor
    queries: torch.Tensor | None
    valid: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive tokens of one row: ``row``, index of the first among the step's tokens, its position, how many,
    the first block that they attend to, and the number of blocks from there.
    """

    row: int
    start: int
    position: int
    num_tokens: int
    first_block: int
    num_blocks: int


class Plan:
    """Groups of a step, made for each window when a layer first asks."""

    def __init__(self, inputs: StepInputs, cache: KVCache) -> None:
        keys, values = cache.keys[0], cache.values[0]
        self._inputs = inputs
        self._block_size = cache.block_size
        self._null_block = cache.null_block
        self._device = keys.device
        key_bytes = (keys[0, 0].numel() + values[0, 0].numel()) * keys.element_size()
        self._max_keys = GROUP_BYTES.get(keys.device.type, GROUP_BYTES["cuda"]) // key_bytes
        self._groups: dict[int | None, list[Group]] = {}

    def groups(self, window: int | None) -> list[Group]:
        """The groups for layers with that window."""
        if window not in self._groups:
            pieces = split(self._inputs, self._block_size, window)
            groups = gather(pieces, self._block_size, self._max_keys)
            self._groups[window] = [self._group(group, window) for group in groups]
        return self._groups[window]

    def _group(self, pieces: Sequence[Piece], window: int | None) -> Group:
        size, rows = self._block_size, len(pieces)
        tokens = max(p.num_tokens for p in pieces)
        width = max(p.num_blocks for p in pieces)
        # Every array below has one row for each piece: [R, n] of tokens, [R, width] of blocks, [R, L] of keys.
        counts = np.array([p.num_tokens for p in pieces], dtype=np.int64)[:, None]
        first = np.array([p.first_block for p in pieces], dtype=np.int64)[:, None]
        place = np.arange(tokens)
        real = place < counts
        queries = np.array([p.start for p in pieces], dtype=np.int64)[:, None] + np.minimum(place, counts - 1)
        column = first + np.arange(width)
        table = self._inputs.block_tables[[p.row for p in pieces]]
        used = np.arange(width) < np.array([p.num_blocks for p in pieces])[:, None]
        blocks = np.where(used, np.take_along_axis(table, np.where(used, column, 0), axis=1), self._null_block)

        keys, mask = width * size, None
        if rows == 1 and pieces[0].position == 0 and tokens > 1 and (window is None or tokens <= window):
            keys = tokens  # a whole prompt: causal, without a mask
        else:
            at = np.array([p.position for p in pieces], dtype=np.int64)[:, None] + place
            key_at = first * size + np.arange(keys)
            seen = key_at[:, None, :] <= at[:, :, None]
            if window is not None:
                seen &= key_at[:, None, :] > at[:, :, None] - window
            if not (tokens == 1 and seen.all()):
                mask = self._to(seen[:, None])
        everything = rows * tokens == len(self._inputs.token_ids) and bool((np.diff(queries.ravel()) == 1).all())
        return Group(
            num_rows=rows,
            num_tokens=tokens,
            num_keys=keys,
            blocks=self._to(blocks.ravel().astype(np.int64)),
            queries=None if everything else self._to(queries.ravel()),
            valid=None if real.all() else self._to(np.flatnonzero(real.ravel())),
            mask=mask,
        )

    def _to(self, array: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def split(inputs: StepInputs, block_size: int, window: int | None) -> list[Piece]:
    """The rows of a step as pieces."""
    pieces = []
    starts, ends = inputs.starts.tolist(), inputs.context_lens.tolist()
    for row, end in enumerate(ends):
        start, num_tokens = starts[row], starts[row + 1] - starts[row]
        position = end - num_tokens
        whole = position == 0 and (window is None or num_tokens <= window)
        step = num_tokens if whole else PIECE_TOKENS
        for done in range(0, num_tokens, step):
            taken = min(step, num_tokens - done)
            at = position + done
            first = 0 if window is None else max(0, at - window + 1) // block_size
            pieces.append(Piece(row, start + done, at, taken, first, -(-(at + taken) // block_size) - first))
    return pieces


def gather(pieces: Sequence[Piece], block_size: int, max_keys: int) -> list[list[Piece]]:
    """Pieces of like size together, as far as padding them costs little and their keys are at most ``max_keys``."""
    groups: list[list[Piece]] = []
    scores = longest = 0  # of the last group: scores without padding, and keys of its longest piece
    for piece in sorted(pieces, key=lambda p: (p.num_tokens, p.num_blocks)):
        keys = piece.num_blocks * block_size
        alone = piece.num_tokens * keys
        if groups and not (piece.position == 0 and piece.num_tokens >= LONG_PROMPT):
            group = groups[-1]
            rows = len(group) + 1
            width = max(keys, longest)
            padded = rows * piece.num_tokens * width  # sorted: no piece before it has more tokens
            fits = padded <= GROUP_SCORES and rows * width <= max_keys
            if fits and padded <= GROUP_WASTE * (scores + alone):
                group.append(piece)
                scores += alone
                longest = width
                continue
        groups.append([piece])
        scores, longest = alone, keys
    return groups


class ScaledDotProduct(AttentionKernel):
    """Any device, dtype, block size and head width; windows, soft caps and sinks included."""

    name = title = "sdpa"

    @staticmethod
    def refusal(demand: Demand) -> str | None:
        """Nothing is refused."""
        return None

    def plan(self, inputs: StepInputs, cache: KVCache) -> Plan:
        """See :class:`AttentionKernel`."""
        return Plan(inputs, cache)

    def attend(self, plan: Plan, layer: AttentionLayer, query: torch.Tensor, cache: KVCache) -> torch.Tensor:
        """See :class:`AttentionKernel`."""
        groups = plan.groups(layer.window)
        if len(groups) == 1 and groups[0].queries is None and groups[0].valid is None:
            return _attend(groups[0], layer, query, cache)
        out = query.new_empty(query.shape[0], layer.num_heads, layer.value_width)
        for group in groups:
            queries = group.queries
            part = _attend(group, layer, query if queries is None else query.index_select(0, queries), cache)
            if group.valid is not None:
                part = part.index_select(0, group.valid)
                queries = queries if queries is None else queries.index_select(0, group.valid)
            if queries is None:
                return part
            out.index_copy_(0, queries, part)
        return out


def _attend(group: Group, layer: AttentionLayer, query: torch.Tensor, cache: KVCache) -> torch.Tensor:
    """Attention of one group; query [R * n, heads, key width], result [R * n, heads, value width]."""
    rows, tokens, heads = group.num_rows, group.num_tokens, layer.num_kv_heads
    # Whole blocks by index_select: a copy of long pieces, 3 to 13 times faster than advanced indexing.
    keys, values = (
        pool.flatten(1)
        .index_select(0, group.blocks)
        .view(rows, -1, heads, width)[:, : group.num_keys]
        .transpose(1, 2)  # [R, KV heads, L, width]
        for pool, width in ((cache.keys[layer.index], layer.key_width), (cache.values[layer.index], layer.value_width))
    )
    if layer.softcap is not None or layer.sinks is not None:
        out = _by_scores(group, layer, query, keys, values)
    elif tokens == 1:
        # The heads that share a KV head take the place of tokens: nothing is repeated, and a mask serves them all.
        q = query.reshape(rows, heads, -1, layer.key_width)
        out = scaled_dot_product_attention(q, keys, values, attn_mask=group.mask, scale=layer.scaling)
    else:
        q = query.view(rows, tokens, layer.num_heads, layer.key_width).transpose(1, 2)
        out = scaled_dot_product_attention(
            q,
            keys,
            values,
            attn_mask=group.mask,
            is_causal=group.mask is None,
            scale=layer.scaling,
            enable_gqa=layer.num_heads != heads,
        ).transpose(1, 2)
    return out.reshape(rows * tokens, layer.num_heads, layer.value_width)


def _by_scores(
    group: Group, layer: AttentionLayer, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """The same with what scaled_dot_product_attention does not know, caps and sinks; result [R, n, heads, width]."""
    rows, tokens, heads = group.num_rows, group.num_tokens, layer.num_kv_heads
    q = query.view(rows, tokens, heads, -1, layer.key_width).permute(0, 2, 3, 1, 4)  # [R, KV heads, heads each, n, w]
    mask = group.mask
    if mask is None and tokens > 1:
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
    elif mask is not None:
        mask = mask[:, :, None]  # [R, 1, 1, n, L]
    keys, values = keys[:, :, None], values[:, :, None]
    sinks = None if layer.sinks is None else layer.sinks.view(heads, -1, 1, 1)
    parts = []
    # Scores are as many as heads * n * L here: cut n, so that a long prompt does not need gigabytes.
    step = max(1, GROUP_SCORES * 4 // (rows * layer.num_heads * group.num_keys))
    for at in range(0, tokens, step):
        scores = torch.matmul(q[..., at : at + step, :], keys.transpose(-1, -2)).float().mul_(layer.scaling)
        if layer.softcap is not None:
            scores = scores.div_(layer.softcap).tanh_().mul_(layer.softcap)
        if mask is not None:
            scores.masked_fill_(~mask[..., at : at + step, :], float("-inf"))
        if sinks is None:
            weights = scores.softmax(-1)
        else:
            weights = torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), -1).softmax(-1)[..., :-1]
        parts.append(torch.matmul(weights.to(values.dtype), values))
    out = torch.cat(parts, dim=-2) if len(parts) > 1 else parts[0]
    return out.permute(0, 3, 1, 2, 4)
