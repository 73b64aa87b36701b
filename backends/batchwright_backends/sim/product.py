"""How long a matrix product takes: tiles in waves over the GPU's multiprocessors, and what is read beside.

A product is computed tile by tile, each by one multiprocessor, and split along k where there would be fewer tiles than
multiprocessors. Which tile and split a library takes is not known; it is taken to be the quickest of a usual set. Each
of these times, and so the quickest, grows with the rows: more rows are never faster.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from batchwright_backends.sim.gpus import Gemm

Floats = NDArray[np.float64]

# Rows and columns of the tiles of NVIDIA's libraries: 128 x 256 is their largest, narrow ones serve few rows.
_TILES = ((16, 128), (64, 64), (64, 128), (128, 128), (128, 256), (256, 128))
_SPLITS = (1, 2, 3, 4, 6)


def matmul_seconds(
    gemm: Gemm,
    num_sms: int | None,
    m: Floats,
    n: Floats | int,
    k: Floats | int,
    num_matrices: Floats | float = 1.0,
    dtype_bytes: int = 2,
) -> Floats:
    """Seconds of ``[m, k] x [k, n]``, as :class:`~batchwright_backends.sim.gpus.Gemm` says.

    Args:
        gemm: constants.
        num_sms: multiprocessors; None: none are counted, and arithmetic takes as long as its operations.
        m: float64[...], rows; the others are of its shape, or numbers.
        n, k: columns, and length of the sums.
        num_matrices: over how many matrices the rows are spread evenly.
        dtype_bytes: of an element.
    """
    moved = dtype_bytes * (m * k + num_matrices * n * k + m * n)
    if num_sms is None:
        return gemm.floor_s + power_mean(2.0 * m * n * k / gemm.flops, moved / gemm.bandwidth, gemm.power)
    best: Floats = np.full(np.shape(m), np.inf)
    rows = m / num_matrices
    for tile_m, tile_n in _TILES:
        columns = num_matrices * np.ceil(n / tile_n)
        tiles = columns * np.ceil(rows / tile_m)
        whole_k = 2.0 * tile_m * tile_n * k * num_sms / gemm.flops * (1 + gemm.edge * (1 / tile_m + 1 / tile_n))
        for split in _SPLITS:
            waves = tiles * split / num_sms
            full = np.ceil(waves)
            compute = (waves + gemm.tail * (full - waves)) * whole_k / split + full * gemm.wave_s
            # The first row of tiles reads the matrix; later rows find it in the cache.
            first = columns * split / num_sms
            share = np.where(first > 1, gemm.read_tail, gemm.read_idle) * (np.ceil(first) / first - 1)
            partial = 0.0 if split == 1 else 8.0 * split * m * n  # sums in fp32, written and read once more
            read = (moved + partial) / gemm.bandwidth * (1 + share)
            best = np.minimum(best, power_mean(compute, read, gemm.power))
    return gemm.floor_s + best


def power_mean(a: Floats, b: Floats, power: float) -> Floats:
    """``(a^power + b^power)^(1/power)`` of times above 0, taken relative to the larger one."""
    high, low = np.maximum(a, b), np.minimum(a, b)
    return np.asarray(high * (1.0 + (low / high) ** power) ** (1.0 / power), dtype=np.float64)
