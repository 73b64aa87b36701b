"""Paged attention in Triton: one kernel for tiles of queries, one that joins the parts of long decodes.

A tile is some consecutive tokens of one row, together with all query heads that share a KV head; its queries go over
the row's keys once, with a running softmax (Milakov and Gimelshein, Online normalizer calculation for softmax, 2018;
Dao et al., FlashAttention, 2022). A decode is a tile of one token, whose keys are split between programs (Dao et al.,
Flash-Decoding for long-context inference, 2023). Where a row is split depends on its own length alone, so its result
does not depend on the rows beside it.

Importing this module needs triton. With TRITON_INTERPRET=1 in the environment before that, the same code runs on CPU.
"""

# Triton reads annotations itself: they can say tl.constexpr and nothing else.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def split_keys(span, min_keys: tl.constexpr, max_splits: tl.constexpr, tile_keys: tl.constexpr):
    """Keys that each program of a split row takes: whole tiles, at least ``min_keys``, in at most ``max_splits``."""
    return tl.maximum(min_keys, tl.cdiv(tl.cdiv(span, max_splits), tile_keys) * tile_keys)


@triton.jit
def attend_tile(
    query,
    keys,
    values,
    sinks,
    out,
    part_out,
    part_max,
    part_sum,
    block_tables,
    starts,
    context_lens,
    tile_rows,
    tile_firsts,
    scaling,
    softcap,
    window,
    query_token_stride,
    query_head_stride,
    key_block_stride,
    key_slot_stride,
    key_head_stride,
    value_block_stride,
    value_slot_stride,
    value_head_stride,
    out_token_stride,
    out_head_stride,
    table_stride,
    group: tl.constexpr,
    block_size: tl.constexpr,
    key_width: tl.constexpr,
    key_lanes: tl.constexpr,
    value_width: tl.constexpr,
    value_lanes: tl.constexpr,
    tile_queries: tl.constexpr,
    tile_keys: tl.constexpr,
    tile_tokens: tl.constexpr,
    has_window: tl.constexpr,
    has_softcap: tl.constexpr,
    has_sinks: tl.constexpr,
    is_split: tl.constexpr,
    min_keys: tl.constexpr,
    max_splits: tl.constexpr,
):
    """Attention of one tile under one KV head; the grid is (tiles, KV heads, splits).

    ``lanes`` are widths rounded up to powers of two. Scores are kept in units of log2, so that exp2 serves. If
    ``is_split``, each program leaves its sum, its largest score and its weighted values, float32, to ``join_parts``.
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    row = tl.load(tile_rows + tile)
    first = tl.load(tile_firsts + tile)
    start = tl.load(starts + row)
    num_tokens = tl.load(starts + row + 1) - start
    before = tl.load(context_lens + row) - num_tokens

    lane = tl.arange(0, tile_queries)
    token = first + lane // group
    head = kv_head * group + lane % group
    live = (lane < tile_tokens * group) & (token < num_tokens)
    position = before + token

    # The tile's keys are begin:end; a window of its first token starts before those of the others.
    begin = 0
    if has_window:
        begin = tl.maximum(before + first - window + 1, 0)
    end = before + tl.minimum(first + tile_tokens, num_tokens)
    if is_split:
        each = split_keys(end - begin, min_keys, max_splits, tile_keys)
        begin = begin + tl.program_id(2) * each
        end = tl.minimum(begin + each, end)
        if begin >= end:
            return

    key_lane = tl.arange(0, key_lanes)
    value_lane = tl.arange(0, value_lanes)
    q = tl.load(
        query
        + (start + token).to(tl.int64)[:, None] * query_token_stride
        + head[:, None] * query_head_stride
        + key_lane[None, :],
        mask=live[:, None] & (key_lane < key_width)[None, :],
        other=0.0,
    )
    largest = tl.full([tile_queries], float("-inf"), tl.float32)
    total = tl.zeros([tile_queries], tl.float32)
    weighted = tl.zeros([tile_queries, value_lanes], tl.float32)

    for at in range(begin, end, tile_keys):
        key_at = at + tl.arange(0, tile_keys)
        there = key_at < end
        block = tl.load(block_tables + row * table_stride + key_at // block_size, mask=there, other=0).to(tl.int64)
        slot = key_at % block_size
        # What is not there is not loaded: a NaN that an earlier owner of the slot left would survive a weight of zero.
        k = tl.load(
            keys
            + (block * key_block_stride + slot * key_slot_stride)[None, :]
            + kv_head * key_head_stride
            + key_lane[:, None],
            mask=there[None, :] & (key_lane < key_width)[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision="ieee") * scaling
        if has_softcap:
            # tanh, which Triton has not: by an exponential that cannot overflow.
            small = tl.exp(tl.abs(scores) * (-2.0 / softcap))
            capped = softcap * (1.0 - small) / (1.0 + small)
            scores = tl.where(scores < 0, -capped, capped)
        seen = there[None, :] & (key_at[None, :] <= position[:, None])
        if has_window:
            seen = seen & (key_at[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores * LOG2E, float("-inf"))

        larger = tl.maximum(largest, tl.max(scores, 1))
        # A query may have seen no key yet: its window starts further on.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(largest - base)
        v = tl.load(
            values
            + (block * value_block_stride + slot * value_slot_stride)[:, None]
            + kv_head * value_head_stride
            + value_lane[None, :],
            mask=there[:, None] & (value_lane < value_width)[None, :],
            other=0.0,
        )
        total = total * shrink + tl.sum(weights, 1)
        weighted = weighted * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        largest = larger

    if is_split:
        part = (tile * tl.num_programs(1) * group + head) * max_splits + tl.program_id(2)
        tl.store(part_max + part, largest, mask=live)
        tl.store(part_sum + part, total, mask=live)
        tl.store(
            part_out + part.to(tl.int64)[:, None] * value_width + value_lane[None, :],
            weighted,
            mask=live[:, None] & (value_lane < value_width)[None, :],
        )
    else:
        if has_sinks:
            sink = tl.load(sinks + head, mask=live, other=0.0) * LOG2E
            larger = tl.maximum(largest, sink)
            shrink = tl.exp2(largest - larger)
            total = total * shrink + tl.exp2(sink - larger)
            weighted = weighted * shrink[:, None]
        result = weighted / tl.where(live, total, 1.0)[:, None]
        tl.store(
            out
            + (start + token).to(tl.int64)[:, None] * out_token_stride
            + head[:, None] * out_head_stride
            + value_lane[None, :],
            result.to(out.dtype.element_ty),
            mask=live[:, None] & (value_lane < value_width)[None, :],
        )


@triton.jit
def join_parts(
    sinks,
    out,
    part_out,
    part_max,
    part_sum,
    starts,
    context_lens,
    tile_rows,
    window,
    out_token_stride,
    out_head_stride,
    tile_keys: tl.constexpr,
    value_width: tl.constexpr,
    value_lanes: tl.constexpr,
    has_window: tl.constexpr,
    has_sinks: tl.constexpr,
    min_keys: tl.constexpr,
    max_splits: tl.constexpr,
):
    """Join what the programs of one decode left for one head; the grid is (tiles, heads)."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.load(tile_rows + tile)
    span = tl.load(context_lens + row)
    if has_window:
        span = tl.minimum(span, window)
    num_parts = tl.cdiv(span, split_keys(span, min_keys, max_splits, tile_keys))

    split = tl.arange(0, max_splits)
    value_lane = tl.arange(0, value_lanes)
    there = split < num_parts
    part = (tile * tl.num_programs(1) + head) * max_splits + split
    largest = tl.load(part_max + part, mask=there, other=float("-inf"))
    overall = tl.max(largest, 0)
    sink = float("-inf")
    if has_sinks:
        sink = tl.load(sinks + head) * LOG2E
        overall = tl.maximum(overall, sink)
    shrink = tl.exp2(largest - overall)
    total = tl.sum(tl.load(part_sum + part, mask=there, other=0.0) * shrink, 0)
    if has_sinks:
        total += tl.exp2(sink - overall)
    weighted = tl.load(
        part_out + part.to(tl.int64)[:, None] * value_width + value_lane[None, :],
        mask=there[:, None] & (value_lane < value_width)[None, :],
        other=0.0,
    )
    result = tl.sum(weighted * shrink[:, None], 0) / total
    tl.store(
        out + tl.load(starts + row).to(tl.int64) * out_token_stride + head * out_head_stride + value_lane,
        result.to(out.dtype.element_ty),
        mask=value_lane < value_width,
    )
