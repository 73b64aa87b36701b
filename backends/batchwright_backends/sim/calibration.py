"""Fits the constants of a GPU to kernel tables, term by term, through the cost model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchwright_backends.sim.cost import CostModel
from batchwright_backends.sim.fitting import Floats, Residual, least_squares, residual
from batchwright_backends.sim.gpus import Fitted, Gpu
from batchwright_backends.sim.kernel_tables import AttentionRow, CountRow, KernelTables, MatmulRow, RowT, split_rows
from batchwright_backends.sim.shape import ModelShape

_START: Mapping[str, Mapping[str, float]] = {
    "gemm": {"power": 2.5, "floor_s": 4e-6},
    "decode_attention": {
        "head_row_s": 3e-8,
        "row_power": 1.5,
        "floor_s": 1e-5,
        "key_s": 3e-10,
        "power": 1.1,
    },
    "chunk_attention": {"head_row_s": 3e-8, "floor_s": 1e-5, "key_s": 1e-8, "power": 1.5},
    "elementwise": {"layer_floor_s": 1e-5},
    "sampling": {"floor_s": 2e-5, "power": 2.0},
}


@dataclass
class Calibration:
    """What a fit gave.

    Attributes:
        terms: constants by term, for the terms that the tables cover.
        fitted: residual by regime, on the rows fitted.
        held_out: residual by regime, on every fifth row, which no fit saw.
    """

    terms: dict[str, dict[str, float]] = field(default_factory=dict)
    fitted: dict[str, Residual] = field(default_factory=dict)
    held_out: dict[str, Residual] = field(default_factory=dict)


def predict_rows(rows: Sequence[RowT], shape: ModelShape, gpu: Gpu, term: str) -> Floats:
    """What the cost model says of measured rows: seconds, float64[n].

    Args:
        rows: of one kind.
        shape: the model that they were measured on.
        gpu: the constants to judge.
        term: ``elementwise`` or ``sampling`` for rows that hold a count; other rows say themselves what they are.
    """
    cost = CostModel(shape, gpu)

    def one(row: MatmulRow | AttentionRow | CountRow) -> float:
        if isinstance(row, MatmulRow):
            return cost.matmul_s(row.m, row.n, row.k)
        if isinstance(row, AttentionRow):
            return cost.attention_s(row.num_rows, row.num_tokens, row.load(gpu.chunk_attention.tile))
        if term == "elementwise":
            return cost.elementwise_s(row.count) / shape.num_hidden_layers
        return cost.sampling_s(row.count)

    return np.array([one(row) for row in rows], dtype=np.float64)


def calibrate(
    tables: KernelTables, shape: ModelShape, gpu: Gpu, *, tile: int | None = None, max_kv_tokens: int | None = None
) -> Calibration:
    """Fit all terms that the tables cover.

    Args:
        tables: measured rows.
        shape: the model that attention, element-wise work and sampling were measured on.
        gpu: where the fit starts; terms without rows keep its constants.
        tile: the query tokens that a row pays at least beside chunks. Only tables with mixed batches show it; None
            fits it where there are some and keeps the GPU's own where there are none.
        max_kv_tokens: attention rows that read more are left out (such as would not fit the GPU's memory with a
            model beside them).
    """
    done = Calibration()
    attention = [r for r in tables.attention if max_kv_tokens is None or r.kv_tokens <= max_kv_tokens]
    by_regime = {name: [r for r in attention if r.regime == name] for name in ("generation", "context", "mixed")}

    def fit(term: str, rows: Sequence[RowT], guess: Mapping[str, float], fixed: Mapping[str, Any]) -> None:
        nonlocal gpu
        if not rows:
            return
        train, _ = split_rows(rows)
        current: Fitted = getattr(gpu, term)

        def candidate(constants: Mapping[str, float]) -> Gpu:
            return gpu.model_copy(update={term: current.model_copy(update={**fixed, **constants})})

        constants = least_squares(
            lambda c: predict_rows(train, shape, candidate(c), term), guess, np.array([r.time_s for r in train])
        )
        gpu = candidate(constants)
        done.terms[term] = {**done.terms.get(term, {}), **fixed, **constants}

    def judge(regime: str, rows: Sequence[RowT], term: str) -> None:
        if not rows:
            return
        for results, part in zip((done.fitted, done.held_out), split_rows(rows), strict=True):
            if part:
                results[regime] = residual(predict_rows(part, shape, gpu, term), [r.time_s for r in part])

    flops, bandwidth = gpu.peak_flops, gpu.peak_bandwidth
    fit("gemm", tables.matmul, {"flops": 0.8 * flops, "bandwidth": 0.8 * bandwidth, **_START["gemm"]}, {})
    generation = by_regime["generation"]
    start = _START["decode_attention"]
    fit("decode_attention", generation, {"bandwidth": 0.8 * bandwidth, **start}, {})
    chunked = by_regime["context"] + by_regime["mixed"]
    chunked.sort(key=lambda r: (r.num_chunks, r.chunk, r.prefix, r.num_decodes, r.decode_context))
    guess = {"flops": 0.6 * flops, "io_bandwidth": 0.5 * bandwidth, **_START["chunk_attention"]}
    if tile is None and by_regime["mixed"]:
        fit("chunk_attention", chunked, {**guess, "tile": 40.0}, {})
        tile = round(done.terms["chunk_attention"].pop("tile"))
        guess = {name: done.terms["chunk_attention"][name] for name in guess}
    fit("chunk_attention", chunked, guess, {"tile": tile or gpu.chunk_attention.tile})
    fit("elementwise", tables.elementwise, {"bandwidth": 0.8 * bandwidth, **_START["elementwise"]}, {})
    fit("sampling", tables.sampling, {"logits_per_s": 0.1 * bandwidth, **_START["sampling"]}, {})

    judge("gemm", tables.matmul, "gemm")
    for name, rows in by_regime.items():
        judge(f"{name} attention", rows, "attention")
    judge("elementwise", tables.elementwise, "elementwise")
    judge("sampling", tables.sampling, "sampling")
    return done
