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


def decodes(make: Make, num_requests: int, block_size: int) -> Callable[[], float]:
    """A running batch of decodes; each call times some steps and gives µs a request a step."""
    steps = max(4, 2048 // num_requests)
    per_request = -(-(200 + 64 * steps * 16) // block_size) + 2
    peer = make(per_request * num_requests, block_size, num_requests, num_requests * 400)
    rng = random.Random(1)
    for i in range(num_requests):
        peer.add([rng.randrange(50_000) for _ in range(100 + i % 64)], 64 * steps * 16)
    while (n := peer.schedule()) != num_requests:
        peer.update([1] * n)
    peer.update([1] * n)
    tokens = [7] * num_requests

    def run() -> float:
        gc.collect()
        gc.disable()
        try:
            start = time.perf_counter_ns()
            for _ in range(steps):
                n = peer.schedule()
                assert n == num_requests, f"{peer.name}: a batch of {n}, expected {num_requests}"
                peer.update(tokens)
            return (time.perf_counter_ns() - start) / 1e3 / steps / num_requests
        finally:
            gc.enable()

    return run


def cached_prompt(make: Make, num_blocks: int, behind: int) -> Callable[[], float]:
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

    def churn(count: int) -> None:
        """Take blocks from the head of the free list and put them at its end."""
        while count > 0:
            size = min(count, 500)
            peer.add([rng.randrange(50_000) for _ in range(size * 16 - 1)], 1)
            n = peer.schedule()
            assert n == 1
            peer.update([1])
            count -= size

    peer.add(prompt, 1)
    assert peer.schedule() == 1
    peer.update([1])  # ended: its 256 blocks are free, and cached

    def run() -> float:
        # The hits were put at the end of the list; bring them to where they are wanted.
        churn(num_blocks - 256 - behind - 256)
        gc.collect()
        gc.disable()
        peer.add(cold, 1)  # an admission like it before: a scheduler at work, not one just woken
        assert peer.schedule() == 1
        peer.update([1])
        peer.add(prompt, 1)
        try:
            start = time.perf_counter_ns()
            n = peer.schedule()
            took = (time.perf_counter_ns() - start) / 1e6
            assert n == 1
        finally:
            gc.enable()
        peer.update([1])
        return took

    return run


def measure(rows: list[tuple[str, str, dict[str, Callable[[], float]]]], rounds: int) -> list[dict[str, Any]]:
    out = []
    for label, unit, runs in rows:
        times: dict[str, list[float]] = {name: [] for name in runs}
        for run in runs.values():
            run()  # warm-up
        for _ in range(rounds):
            for name, run in runs.items():
                times[name].append(run())
        medians = {name: statistics.median(values) for name, values in times.items()}
        out.append({"row": label, "unit": unit, "medians": medians})
        nano = medians.get("nano-vllm")
        cells = [
            f"{name} {value:.3f}" + (f" ({value / nano:.2f}×)" if nano and name != "nano-vllm" else "")
            for name, value in medians.items()
        ]
        print(f"{label:<44} {unit:<6} " + " | ".join(cells), flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument(
        "--policies", nargs="+", default=["prefill_first", "vllm_v1", "stall_free:chunk_size=1000000"]
    )
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
    rows: list[tuple[str, str, dict[str, Callable[[], float]]]] = []
    for block_size in (16, 256):
        for n in args.decodes:
            runs = {name: decodes(make, n, block_size) for name, make in makes.items()}
            rows.append((f"{n} decodes, block size {block_size}", "µs", runs))
    for label, behind in (("old end", 0), ("middle", 30_000)):
        runs = {
            name: cached_prompt(make, 60_000, behind)
            for name, make in makes.items()
            if name in ("prefill_first", "nano-vllm")
        }
        rows.append((f"4096 tokens, 255 hits at the {label} of 60,000 free", "ms", runs))
    figures = measure(rows, args.rounds)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"python": sys.version.split()[0], "rounds": args.rounds, "rows": figures}, file, indent=1)


if __name__ == "__main__":
    main()
