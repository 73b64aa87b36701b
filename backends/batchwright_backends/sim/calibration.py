"""Fits the constants of a GPU to kernel tables, term by term, through the cost model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from batchwright.calibration import Residual
from batchwright_backends.sim.cost import CostModel
from batchwright_backends.sim.fitting import Floats, huber, least_squares, residual
from batchwright_backends.sim.gpus import Fitted, Gpu
from batchwright_backends.sim.kernel_tables import AttentionRow, CountRow, KernelTables, MatmulRow, RowT, split_rows
from batchwright_backends.sim.product import matmul_seconds
from batchwright_backends.sim.shape import ModelShape

TERMS_OF_REGIMES = {
    "gemm": "gemm",
    "generation attention": "decode_attention",
    "context attention": "chunk_attention",
    "mixed attention": "chunk_attention",
    "elementwise": "elementwise",
    "sampling": "sampling",
}
"""The term that each regime of measured rows judges."""

_START: Mapping[str, Mapping[str, float]] = {
    "gemm": {"power": 4.0, "floor_s": 2e-6},
    "decode_attention": {
        "head_row_s": 3e-8,
        "row_power": 1.5,
        "floor_s": 1e-5,
        "key_s": 3e-10,
        "power": 1.1,
        "ramp_s": 4e-5,
        "ramp_rows": 10.0,
    },
    "chunk_attention": {"head_row_s": 3e-8, "floor_s": 1e-5, "key_s": 1e-8, "power": 1.5},
    "elementwise": {"layer_floor_s": 1e-5},
    "sampling": {"floor_s": 2e-5, "power": 2.0},
}

# Where the fit of tiles starts: with efficiencies that hardly depend on the tile, or much. The best of them is kept.
_TILED: Sequence[Mapping[str, float]] = (
    {"edge": 5.0, "tail": 0.6, "read_tail": 0.2, "read_idle": 0.05, "wave_s": 3e-6},
    {"edge": 30.0, "tail": 0.6, "read_tail": 0.5, "read_idle": 0.1, "wave_s": 3e-6},
    {"edge": 70.0, "tail": 0.6, "read_tail": 0.9, "read_idle": 0.9, "wave_s": 3e-6},
)
_SHARES = ("tail", "read_tail", "read_idle")  # at most 1


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


def predict_rows(rows: Sequence[MatmulRow | AttentionRow | CountRow], shape: ModelShape, gpu: Gpu, term: str) -> Floats:
    """What the cost model says of measured rows: seconds, float64[n].

    Args:
        rows: of one kind.
        shape: the model that they were measured on.
        gpu: the constants to judge.
        term: ``elementwise`` or ``sampling`` for rows that hold a count; other rows say themselves what they are.
    """
    products = [row for row in rows if isinstance(row, MatmulRow)]
    if products:
        m, n, k = np.array([(row.m, row.n, row.k) for row in products], dtype=np.float64).T
        return matmul_seconds(gpu.gemm, gpu.num_sms, m, n, k, dtype_bytes=shape.dtype_bytes)
    cost = CostModel(shape, gpu)
    if term == "elementwise":
        counts = np.array([row.count for row in rows if isinstance(row, CountRow)], dtype=np.float64)
        return cost.elementwise_s(counts) / shape.num_hidden_layers

    tile = gpu.chunk_attention.tile
    attention = [row for row in rows if isinstance(row, AttentionRow)]
    if attention:
        times = [cost.attention_s(row.num_rows, row.num_tokens, row.load(tile)) for row in attention]
    else:
        times = [cost.sampling_s(row.count) for row in rows if isinstance(row, CountRow)]
    return np.array(times, dtype=np.float64)


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

    def fit(term: str, rows: Sequence[RowT], guesses: Sequence[Mapping[str, float]], fixed: Mapping[str, Any]) -> None:
        nonlocal gpu
        if not rows:
            return
        train, _ = split_rows(rows)
        current: Fitted = getattr(gpu, term)
        measured = np.array([r.time_s for r in train])

        def candidate(constants: Mapping[str, float]) -> Gpu:
            values = {name: min(value, 1.0) if name in _SHARES else value for name, value in constants.items()}
            return gpu.model_copy(update={term: current.model_copy(update={**fixed, **values})})

        def predict(constants: Mapping[str, float]) -> Floats:
            return predict_rows(train, shape, candidate(constants), term)

        found = [least_squares(predict, guess, measured) for guess in guesses]
        constants = min(found, key=lambda c: huber(np.log(predict(c) / measured)))
        gpu = candidate(constants)
        fitted = {name: _plain(name, getattr(getattr(gpu, term), name)) for name in constants}
        done.terms[term] = {**done.terms.get(term, {}), **fixed, **fitted}

    def judge(regime: str, rows: Sequence[RowT], term: str) -> None:
        if not rows:
            return
        for results, part in zip((done.fitted, done.held_out), split_rows(rows), strict=True):
            if part:
                results[regime] = residual(predict_rows(part, shape, gpu, term), [r.time_s for r in part])

    flops, bandwidth = gpu.peak_flops, gpu.peak_bandwidth
    products = {"flops": 0.8 * flops, "bandwidth": 0.8 * bandwidth, **_START["gemm"]}
    tiled = [{**products, **tiles, "flops": (1 + tiles["edge"] / 85) * products["flops"]} for tiles in _TILED]
    fit("gemm", tables.matmul, tiled if gpu.num_sms is not None else [products], {})
    generation = by_regime["generation"]
    start = _START["decode_attention"]
    fit("decode_attention", generation, [{"bandwidth": 0.8 * bandwidth, **start}], {})
    chunked = by_regime["context"] + by_regime["mixed"]
    chunked.sort(key=lambda r: (r.num_chunks, r.chunk, r.prefix, r.num_decodes, r.decode_context))
    guess = {"flops": 0.6 * flops, "io_bandwidth": 0.5 * bandwidth, **_START["chunk_attention"]}
    if tile is None and by_regime["mixed"]:
        fit("chunk_attention", chunked, [{**guess, "tile": 40.0}], {})
        tile = max(1, round(done.terms["chunk_attention"].pop("tile")))
        guess = {name: done.terms["chunk_attention"][name] for name in guess}
    fit("chunk_attention", chunked, [guess], {"tile": gpu.chunk_attention.tile if tile is None else tile})
    fit("elementwise", tables.elementwise, [{"bandwidth": 0.8 * bandwidth, **_START["elementwise"]}], {})
    fit("sampling", tables.sampling, [{"logits_per_s": 0.1 * bandwidth, **_START["sampling"]}], {})

    judge("gemm", tables.matmul, "gemm")
    for name, rows in by_regime.items():
        judge(f"{name} attention", rows, "attention")
    judge("elementwise", tables.elementwise, "elementwise")
    judge("sampling", tables.sampling, "sampling")
    return done


def _plain(name: str, value: float) -> float:
    """A share that a fit in logarithms drove to next to nothing is nothing."""
    return 0.0 if name in (*_SHARES, "edge") and value < 1e-3 else value
