"""What a step costs: schedulers side by side, interleaved in one run.

    python benchmarks/scheduler.py [--rounds 15] [--json FILE]

Rows of decodes give microseconds a request a step (``schedule`` and ``update``); the prompt row gives milliseconds of
one admission. Every timed step asserts its batch size. Peers take turns within each round; medians and the ratio of
medians are printed. Set ``NANO_VLLM`` to a checkout of GeeeekExplorer/nano-vllm to have it in the table.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from peers import Nano, Ours, Peer, nano_missing

Make = Callable[[int, int, int, int], Peer]


class Row:
    """Something to time: ``prepare`` (not timed), then ``work``; ``divisor`` nanoseconds make one of its unit."""

    def __init__(self, prepare: Callable[[], None], work: Callable[[], None], divisor: float) -> None:
        self.prepare, self.work, self.divisor = prepare, work, divisor

    def run(self) -> float:
        """Time it once."""
        gc.collect()
        gc.disable()
        try:
            self.prepare()  # after the collector, which leaves nothing of anybody's in the caches
            start = time.perf_counter_ns()
            self.work()
            return (time.perf_counter_ns() - start) / self.divisor
        finally:
            gc.enable()


def decodes(make: Make, num_requests: int, block_size: int) -> Row:
    """A running batch of decodes; µs a request a step."""
    steps = max(32, 8192 // num_requests)  # long enough to be steady: each request crosses block edges of 16 twice
    length = 64 * steps
    per_request = -(-(200 + length) // block_size) + 2
    peer = make(per_request * num_requests, block_size, num_requests, num_requests * 400)
    rng = random.Random(1)
    for i in range(num_requests):
        peer.add([rng.randrange(50_000) for _ in range(100 + i % 64)], length)
    while (n := peer.schedule()) != num_requests:
        peer.update([1] * n)
    peer.update([1] * n)
    tokens = [7] * num_requests

    def work() -> None:
        for _ in range(steps):
            n = peer.schedule()
            assert n == num_requests, f"{peer.name}: a batch of {n}, expected {num_requests}"
            peer.update(tokens)

    return Row(lambda: None, work, 1e3 * steps * num_requests)


def cached_prompt(make: Make, num_blocks: int, behind: int) -> Row:
    """A 4096-token prompt whose 255 cached blocks of 16 lie in a free list of ``num_blocks``; ms of its admission.

    Args:
        make: of the peer.
        num_blocks: of the pool.
        behind: blocks that stand before the hits in the free list.
    """
    peer = make(num_blocks, 16, 16, 8192)
    rng = random.Random(2)
    prompt = [rng.randrange(50_000) for _ in range(4096)]
    cold = [rng.randrange(50_000) for _ in range(4096)]

    def one(tokens: list[int]) -> None:
        peer.add(tokens, 1)
        assert peer.schedule() == 1
        peer.update([1])

    def prepare() -> None:
        """Bring the hits from the end of the free list, where the last run left them, to where they are wanted."""
        if first:
            first.clear()
            one(prompt)
        else:
            peer.update([1])
        count = num_blocks - 256 - behind - 256
        while count > 0:  # take blocks from the head of the free list and put them at its end
            size = min(count, 500)
            one([rng.randrange(50_000) for _ in range(size * 16 - 1)])
            count -= size
        one(cold)  # an admission like it before: a scheduler at work, not one just woken
        peer.add(prompt, 1)

    def work() -> None:
        assert peer.schedule() == 1

    first = [True]
    return Row(prepare, work, 1e6)


def measure(rows: list[tuple[str, str, dict[str, Row]]], rounds: int) -> list[dict[str, Any]]:
    out = []
    for label, unit, runs in rows:
        times: dict[str, list[float]] = {name: [] for name in runs}
        for row in runs.values():
            row.run()  # warm-up
        for _ in range(rounds):
            for name, row in runs.items():
                times[name].append(row.run())
        medians = {name: statistics.median(values) for name, values in times.items()}
        out.append({"row": label, "unit": unit, "medians": medians})
        nano = medians.get("nano-vllm")
        cells = [
            f"{name} {value:.3f}" + (f" ({value / nano:.2f}x)" if nano and name != "nano-vllm" else "")
            for name, value in medians.items()
        ]
        print(f"{label:<44} {unit:<6} " + " | ".join(cells), flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--policies", nargs="+", default=["prefill_first", "vllm_v1", "stall_free:chunk_size=1000000"])
    parser.add_argument("--decodes", nargs="*", type=int, default=[64, 256, 1024])
    args = parser.parse_args()
    makes: dict[str, Make] = {}
    for policy in args.policies:
        makes[policy.partition(":")[0]] = lambda *a, p=policy: Ours(p, *a)
    missing = nano_missing()
    if missing:
        print(f"nano-vllm left out: {missing}", file=sys.stderr)
    else:
        makes["nano-vllm"] = Nano
    rows: list[tuple[str, str, dict[str, Row]]] = []
    for block_size in (16, 256):
        for n in args.decodes:
            runs = {name: decodes(make, n, block_size) for name, make in makes.items()}
            rows.append((f"{n} decodes, block size {block_size}", "µs", runs))
    for label, behind in (("old end", 0), ("old end + 1,000", 1000), ("middle", 30_000)):
        runs = {
            name: cached_prompt(make, 60_000, behind)
            for name, make in makes.items()
            if name in ("prefill_first", "nano-vllm")
        }
        rows.append((f"255 hits at the {label} of 60,000 free", "ms", runs))
    figures = measure(rows, args.rounds)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"python": sys.version.split()[0], "rounds": args.rounds, "rows": figures}, file, indent=1)


if __name__ == "__main__":
    main()
