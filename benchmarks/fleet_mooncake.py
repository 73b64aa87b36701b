"""Routers on the Mooncake conversation trace: cache hits and latencies of a fleet, side by side.

    python benchmarks/fleet_mooncake.py ../shared/data/traces/mooncake_conversation_trace.jsonl

The trace (kvcache-ai/Mooncake; Qin et al., FAST 2025; Apache-2.0) has 12,031 requests in 59 minutes with hashes of
their prompts' blocks of 512 tokens. Every router gets the very same requests, with the same policy, model and GPU in
each replica. Beside them stands what one cache of the size of all replicas' would hold, and one without a
bound. Simulated time: figures do not depend on the machine that runs this.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchwright.config import EngineConfig
from batchwright.lab import Workload, load_workload, summarize
from batchwright.lab.executors import Task, choose_executor
from batchwright.lab.experiment import run_tasks

ROUTERS = ("round_robin", "random", "random:choices=2", "least_outstanding", "prefix_aware")
ROWS = {
    "Cache hits (%)": ("cache_hit_rate", 100, 1),
    "Mean TTFT (ms)": ("mean_ttft_ms", 1, 0),
    "Median TTFT (ms)": ("median_ttft_ms", 1, 0),
    "P90 TTFT (ms)": ("p90_ttft_ms", 1, 0),
    "P99 TTFT (ms)": ("p99_ttft_ms", 1, 0),
    "P99 ITL (ms)": ("p99_itl_ms", 1, 1),
    "Mean E2EL (ms)": ("mean_e2el_ms", 1, 0),
    "Busiest replica / mean": ("busy_imbalance", 1, 3),
    "Preemptions": ("num_preemptions", 1, 0),
    "Finished": ("completed", 1, 0),
    "Refused": ("num_refused", 1, 0),
}
"""Row of the table to metric, scale and decimals."""


def unbounded_hit_rates(workload: Workload) -> tuple[float, float]:
    """What one cache without a bound holds: share of the prompt tokens, and of the prompts' blocks.

    A block is held if it came before, and all blocks in front of it did.
    """
    seen: set[int] = set()
    hit_tokens = hit_blocks = tokens = blocks = 0
    for row in workload.rows:
        length = row.num_prompt_tokens or 0  # the trace has lengths, and no prompts
        for place, block in enumerate(row.prefix_ids):
            if block not in seen:
                break
            hit_tokens += min(row.prefix_block_size, length - place * row.prefix_block_size)
            hit_blocks += 1
        seen.update(row.prefix_ids)
        tokens += length
        blocks += len(row.prefix_ids)
    return hit_tokens / tokens, hit_blocks / blocks


def pooled_hit_rate(workload: Workload, num_tokens: int) -> float:
    """Share of the prompt tokens that one cache of so many tokens holds which drops what was used longest ago.

    With the size of all replicas' caches together, about what a router could reach at best: nothing is held twice, and
    a prompt is there as soon as it has arrived.
    """
    held: OrderedDict[int, None] = OrderedDict()
    hits = tokens = 0
    for row in workload.rows:
        size, length = row.prefix_block_size, row.num_prompt_tokens or 0
        for place, block in enumerate(row.prefix_ids):
            if block not in held:
                break
            hits += min(size, length - place * size)
        tokens += length
        for block in reversed(row.prefix_ids):  # the end of a prompt goes before its beginning
            held[block] = None
            held.move_to_end(block)
        while len(held) * size > num_tokens:
            held.popitem(last=False)
    return hits / tokens


def compare_routers(
    workload: Workload, routers: Sequence[str], replicas: int, jobs: int, **settings: Any
) -> dict[str, Any]:
    """Metrics by router; each run has its seconds of this machine beside them."""
    tasks = [
        Task(
            router, EngineConfig(replicas=replicas, router=router, **settings), workload, options={"max_seconds": None}
        )
        for router in routers
    ]
    executor = choose_executor("processes" if jobs > 1 else "serial", jobs)
    start = time.perf_counter()
    found: dict[str, Any] = {}
    for place in range(0, len(tasks), jobs):  # a few at a time: a record of all steps takes some hundred megabytes
        experiment = run_tasks(tasks[place : place + jobs], executor, _tell)
        error = experiment.error()
        if error is not None:
            raise error
        for run in experiment.runs:
            pool = run.limits.num_blocks * run.limits.block_size
            found[run.arm] = {**summarize(run), "num_steps": len(run.steps), "kv_tokens": replicas * pool}
    print(f"\r{time.perf_counter() - start:.0f} s, {jobs} at a time" + " " * 40, file=sys.stderr)
    return found


def _tell(arm: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{arm}: {done} of {total} requests" + " " * 20, end="", file=sys.stderr, flush=True)


def table(found: dict[str, Any]) -> str:
    """Routers in columns, metrics in rows."""
    width = max(map(len, ROWS)) + 2
    lines = [" " * width + "".join(f"{router:>20}" for router in found)]
    for title, (name, scale, decimals) in ROWS.items():
        cells = ["-" if s[name] is None else f"{s[name] * scale:,.{decimals}f}" for s in found.values()]
        lines.append(f"{title:<{width}}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)


def _blocks(text: str) -> int | None:
    return None if text == "auto" else int(text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="mooncake_conversation_trace.jsonl")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--routers", nargs="+", default=list(ROUTERS), metavar="ROUTER")
    parser.add_argument("--policy", default="vllm_v1")
    parser.add_argument("--backend", default="sim:llama-3.1-8b@h100")
    parser.add_argument("--speedup", type=float, default=1.0)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--max-num-batched-tokens", type=int, default=8192)
    parser.add_argument(
        "--num-blocks",
        type=_blocks,
        nargs="+",
        default=[None],
        metavar="BLOCKS",
        help="KV blocks of a replica, one size or several: a whole number, or auto, what fits its GPU (the default)",
    )
    parser.add_argument("--jobs", type=int, default=1, help="routers at a time")
    parser.add_argument("--json", type=Path, default=None, help="also write the figures there")
    args = parser.parse_args(argv)
    workload = load_workload(args.trace, speedup=args.speedup, limit=args.limit)
    settings = {
        "policy": args.policy,
        "backend": args.backend,
        "max_num_batched_tokens": args.max_num_batched_tokens,
    }
    bound, of_blocks = unbounded_hit_rates(workload)
    print(f"{workload.name}: {len(workload)} requests, {args.replicas} replicas of {args.policy} on {args.backend}")
    sizes: list[dict[str, Any]] = []
    for num_blocks in args.num_blocks:
        found = compare_routers(workload, args.routers, args.replicas, args.jobs, num_blocks=num_blocks, **settings)
        kv_tokens = next(iter(found.values()))["kv_tokens"]
        pooled = pooled_hit_rate(workload, kv_tokens)
        print(table(found))
        print(f"one cache of the size of all ({kv_tokens:,} tokens): {100 * pooled:.1f}% of the prompt tokens")
        sizes.append({"replicas": args.replicas, "pooled": pooled, "unbounded": bound, "routers": found})
    print(f"one cache without a bound: {100 * bound:.1f}% of the prompt tokens ({100 * of_blocks:.1f}% of the blocks)")
    if args.json is not None:
        about = {"workload": workload.name, "hash": workload.hash, "speedup": args.speedup, **settings}
        args.json.write_text(json.dumps({**about, "sizes": sizes}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
