"""Fits the simulator's constants of a GPU to a folder of kernel tables, and prints the residuals of each regime.

    python benchmarks/fit_sim_constants.py ../shared/data/kernels --prefix h100_ --gpu h100
    python benchmarks/fit_sim_constants.py ../shared/data/groundtruth/rtx4090 --gpu rtx4090 --max-kv-tokens 65536

The schemas are those of ``batchwright_backends.sim.kernel_tables``. Every fifth row (sorted by key) is kept from the
fit and judged apart. The terms are printed as YAML; ``--out FILE`` writes them as a file for ``--backend sim:FILE``.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from pathlib import Path

import yaml

from batchwright.errors import BatchwrightError
from batchwright_backends.sim.calibration import Calibration, calibrate
from batchwright_backends.sim.gpus import find_gpu
from batchwright_backends.sim.kernel_tables import read_tables
from batchwright_backends.sim.models import find_model

REGIMES = {
    "gemm": ("gemm",),
    "decode_attention": ("generation attention",),
    "chunk_attention": ("context attention", "mixed attention"),
    "elementwise": ("elementwise",),
    "sampling": ("sampling",),
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the tables are")
    parser.add_argument("--gpu", required=True, help="GPU of the catalogue whose constants the fit starts from")
    parser.add_argument("--model", default="llama-3.1-8b", help="model that the tables were measured on")
    parser.add_argument("--prefix", default="", help="with which the file names begin, such as h100_")
    parser.add_argument("--tile", type=int, help="query tokens a row pays at least; fitted where batches are mixed")
    parser.add_argument("--max-kv-tokens", type=int, help="leave out attention rows that read more than this")
    parser.add_argument("--source", default="", help="a note on where the tables are from, for the YAML")
    parser.add_argument("--out", type=Path, help="write a YAML for --backend sim:FILE")
    args = parser.parse_args(argv)
    try:
        shape = find_model(args.model)
        tables = read_tables(args.folder, shape, args.prefix)
        done = calibrate(tables, shape, find_gpu(args.gpu), tile=args.tile, max_kv_tokens=args.max_kv_tokens)
    except BatchwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for regime, held_out in done.held_out.items():
        print(f"{regime:22} held out: {held_out!s:52} fitted: {done.fitted[regime]}")
    terms = as_yaml(done, args.source)
    print(terms)
    if args.out:
        indented = "".join(f"  {line}\n" for line in terms.splitlines())
        args.out.write_text(f"model: {args.model}\ngpu:\n  base: {args.gpu}\n{indented}", encoding="utf-8")
    return 0


def as_yaml(done: Calibration, source: str) -> str:
    """The fitted terms, with their residuals and the date."""
    terms = {}
    for term, constants in done.terms.items():
        judged = [f"{r}: {done.held_out[r]}" for r in REGIMES[term] if r in done.held_out]
        terms[term] = {
            **{name: _shorten(value) for name, value in constants.items()},
            **({"source": source} if source else {}),
            "residual": "held-out rows, " + "; ".join(judged),
            "date": datetime.date.today().isoformat(),
        }
    return yaml.dump(terms, Dumper=_Dumper, sort_keys=False, width=116)


def _shorten(value: float) -> float:
    """Four digits; what the fit drove to nothing is nothing."""
    if isinstance(value, int):
        return value
    return float(f"{value:.4g}") if value > 1e-15 else 0.0


class _Dumper(yaml.SafeDumper):
    """Writes large and small floats in scientific notation, as YAML 1.1 reads it back."""


def _represent(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    text = f"{value:.3e}" if 0 < abs(value) < 1e-3 or abs(value) >= 1e6 else f"{value:.4g}"
    return dumper.represent_scalar("tag:yaml.org,2002:float", text if "." in text else f"{text}.0")


_Dumper.add_representer(float, _represent)


if __name__ == "__main__":
    sys.exit(main())
