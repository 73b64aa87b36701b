"""Fits the simulator's constants of the catalogued GPUs to public kernel tables, and prints the residuals by regime.

    python benchmarks/fit_sim_constants.py                     # all GPUs whose tables lie in ../shared/data
    python benchmarks/fit_sim_constants.py --gpu h100 --write  # and write the constants to the catalogue

Every fifth row (sorted by key) is kept from the fit and judged. Beside the products stands what their table allows:

- ``equal kernels``: scatter of products whose rows fill the same tiles (same n, k, and m up to 16) around their median;
- ``one row more``: half of what products of m and of m + 1 rows differ by (same n and k, m from 1,024 on, where one row
  of tiles more is little): a law that takes both for equally long cannot be nearer than that on average;
- ``monotone``: error of the best law for each n and k under which more rows never take less time; it has seen all rows;
- ``neighbours``: error of the fit where each product is corrected by the median error of all others of its n and k,
  near ones first: what a smooth law for each n and k can reach that has not seen that row.

For tables of your own: ``batchwright calibrate``.
"""

from __future__ import annotations

import argparse
import datetime
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
import yaml

from batchwright.calibration import Residual
from batchwright_backends.sim.calibration import TERMS_OF_REGIMES, Calibration, calibrate, predict_rows
from batchwright_backends.sim.calibrator import judged
from batchwright_backends.sim.fitting import residual
from batchwright_backends.sim.gpus import find_gpu
from batchwright_backends.sim.kernel_tables import KernelTables, MatmulRow, read_tables
from batchwright_backends.sim.machine_file import as_yaml
from batchwright_backends.sim.models import find_model

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
MODEL = "llama-3.1-8b"
AIC = "kernel tables of ai-dynamo/aiconfigurator 095f58a5 (Apache-2.0, NVIDIA), {}, bf16, vLLM {}"
TARGETS = {
    "gemm": (0.04, 0.08),
    "generation attention": (0.06, 0.15),
    "context attention": (0.06, 0.15),
}
"""Mean and p90 of the errors that the regimes of A100, H100 and H200 are meant to have at most."""


_MANY_ROWS = 1024
"""From here on one row more is at most one row of tiles in eight or more."""


@dataclass(frozen=True)
class Tables:
    """Where the tables of a GPU lie.

    Attributes:
        folder: under the shared data.
        prefix: of the file names.
        source: for the catalogue.
        max_kv_tokens: attention rows that read more are left out: the model's weights leave no room for them.
    """

    folder: str
    prefix: str
    source: str
    max_kv_tokens: int | None = None


TABLES = {
    "a100": Tables("kernels", "a100_", AIC.format("A100 SXM", "0.14.0")),
    "h100": Tables("kernels", "h100_", AIC.format("H100 SXM", "0.24.0")),
    "h200": Tables("kernels", "h200_", AIC.format("H200 SXM", "0.24.0")),
    "rtx4090": Tables(
        "groundtruth/rtx4090",
        "",
        "kernel times of casys-kaist/LLMServingSim 5daddb21 (MIT, CASYS Lab KAIST), vLLM 0.19.0, Llama-3.1-8B bf16",
        65536,
    ),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", choices=list(TABLES), action="append", help="only this one; repeatable")
    parser.add_argument("--data", type=Path, default=SHARED, help="the folder that holds kernels and groundtruth")
    parser.add_argument("--write", action="store_true", help="write the constants to the catalogue")
    args = parser.parse_args(argv)
    if not args.data.is_dir():
        print(f"error: there are no kernel tables in {args.data}; name their folder with --data", file=sys.stderr)
        return 2
    for name in args.gpu or TABLES:
        tables, done = fit(name, args.data)
        report(name, tables, done)
        if args.write:
            write(name, done)
    return 0


def fit(name: str, data: Path) -> tuple[KernelTables, Calibration]:
    """Tables of a GPU, and the fit to them."""
    where, shape = TABLES[name], find_model(MODEL)
    tables = read_tables(data / where.folder, shape, where.prefix)
    return tables, calibrate(tables, shape, find_gpu(name), max_kv_tokens=where.max_kv_tokens)


def report(name: str, tables: KernelTables, done: Calibration) -> None:
    """Print a line a regime, and the noise of the products."""
    for regime, held_out in done.held_out.items():
        said = ""
        if regime in TARGETS and name != "rtx4090":
            mean, p90 = TARGETS[regime]
            reached = held_out.mean <= mean and held_out.p90 <= p90
            said = f" | wanted: mean {100 * mean:.0f}%, p90 {100 * p90:.0f}%: {'reached' if reached else 'missed'}"
        print(f"{name:8} {regime:21} held out: {held_out!s:52} fitted: {done.fitted[regime]}{said}")
    floors = {
        "equal kernels": equal_kernels(tables.matmul),
        "one row more": one_row_more(tables.matmul),
        "monotone": monotone(tables.matmul),
        "neighbours": neighbours(name, tables.matmul, done),
    }
    for label, floor in floors.items():
        if floor is not None:
            print(f"{name:8} gemm, {label:15} {floor}")


def equal_kernels(rows: Iterable[MatmulRow]) -> Residual | None:
    """Scatter of products that fill the same tiles, around the median of each group."""
    groups: dict[tuple[int, int, int], list[float]] = {}
    for row in rows:
        groups.setdefault((row.n, row.k, math.ceil(row.m / 16)), []).append(row.time_s)
    alike = [times for times in groups.values() if len(times) > 1]
    if not alike:
        return None
    medians = [statistics.median(times) for times in alike for _ in times]
    return residual(medians, [t for times in alike for t in times])


def one_row_more(rows: Iterable[MatmulRow]) -> Residual | None:
    """Errors that the middle of two products has, which differ in one row of many."""
    times = {(row.m, row.n, row.k): row.time_s for row in rows if row.m >= _MANY_ROWS}
    pairs = [(time, times[m + 1, n, k]) for (m, n, k), time in times.items() if (m + 1, n, k) in times]
    if not pairs:
        return None
    middles = [math.sqrt(a * b) for a, b in pairs for _ in (a, b)]
    return residual(middles, [time for pair in pairs for time in pair])


def monotone(rows: Sequence[MatmulRow]) -> Residual:
    """Error of the best monotone law for each n and k: isotonic regression of the logarithms, by medians."""
    shapes: dict[tuple[int, int], list[MatmulRow]] = {}
    for row in rows:
        shapes.setdefault((row.n, row.k), []).append(row)
    predicted: list[float] = []
    measured: list[float] = []
    for same in shapes.values():
        same.sort(key=lambda r: r.m)
        times = [r.time_s for r in same]
        predicted += isotonic(times)
        measured += times
    return residual(predicted, measured)


def neighbours(name: str, rows: Sequence[MatmulRow], done: Calibration) -> Residual:
    """Error of the fit where each row is corrected by what the other rows of its n and k say, near ones first."""
    gpu = find_gpu(name)
    gpu = gpu.model_copy(update={"gemm": gpu.gemm.model_copy(update=dict(done.terms["gemm"]))})
    measured = np.array([row.time_s for row in rows])
    predicted = predict_rows(rows, find_model(MODEL), gpu, "gemm")
    error, logs = np.log(predicted / measured), np.log([row.m for row in rows])
    shapes = np.array([(row.n, row.k) for row in rows])
    corrected = predicted.copy()
    for i in range(len(rows)):
        others = np.flatnonzero((shapes == shapes[i]).all(axis=1))
        others = others[others != i]
        others = others[np.argsort(error[others])]
        weight = np.exp(-(((logs[others] - logs[i]) / 0.6) ** 2) / 2).cumsum()
        corrected[i] /= np.exp(error[others[np.searchsorted(weight, weight[-1] / 2)]])
    return residual(corrected, measured)


def isotonic(values: Sequence[float]) -> list[float]:
    """The non-decreasing sequence next to ``values`` by the sum of absolute differences of the logarithms."""
    pools: list[list[float]] = []
    for value in values:  # pool adjacent violators; a pool's level is its (lower) median
        pools.append([value])
        while len(pools) > 1 and level(pools[-2]) > level(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    return [level(pool) for pool in pools for _ in pool]


def level(pool: Sequence[float]) -> float:
    return float(np.exp(np.median(np.log(pool))))


def write(name: str, done: Calibration) -> None:
    """Put the constants into the catalogue, with source, residuals and date."""
    file = Path(str(files("batchwright_backends.sim").joinpath("data", "gpus", f"{name}.yaml")))
    values = yaml.safe_load(file.read_text(encoding="utf-8"))
    for term, constants in done.terms.items():
        own = {r: found for r, found in done.held_out.items() if TERMS_OF_REGIMES[r] == term}
        old = values.get(term, {}).get("source", "")
        note = old.partition("; ")[2]
        values[term] = {
            **constants,
            "source": TABLES[name].source + (f"; {note}" if note else ""),
            "residual": judged(own),
            "date": datetime.date.today().isoformat(),
        }
    file.write_text(as_yaml(values), encoding="utf-8")
    print(f"{name:8} written to {file.name}")


if __name__ == "__main__":
    sys.exit(main())
