"""How fast the simulator simulates: requests a second on a real trace, beside DynoSim, and over a million requests.

    python benchmarks/sim_speed.py TRACE.csv [--dynosim PYTHON] [--rates 1 8] [--rounds 5] [--json FILE]
    python benchmarks/sim_speed.py --growth 10000 100000 1000000 [--json FILE]

The first form replays an Azure LLM trace under ``vllm_v1``, Llama-3.1-8B on one H100: step by step, with leaps, and by
DynoSim (ai-dynamo-runtime; PYTHON is the interpreter of an environment that has it) with the same limits and pool. They
take turns in each round, every one on the same single core, in a process of its own that is warm: the figures are
seconds of that core, from reading the trace to the last record. The second form streams the records of synthetic
requests to disk, and gives the cost of a request and the memory at the peak for each number of them.

DynoSim has its own model of step times, so it does not take the same steps; its figures say how long it works for a
request. An Azure trace has no content, so every prompt is its own: where prefixes are cached nobody hits.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import committed

BACKEND = "sim:llama-3.1-8b@h100"
SETTINGS = {"policy": "vllm_v1", "backend": BACKEND, "max_num_seqs": 256, "max_num_batched_tokens": 8192}
MOONCAKE_BLOCK = 512
MODES = ("step by step", "with leaps", "dynosim")
GROWTH = "synthetic:rate=20,n={n},prompt=uniform(16,256),output=uniform(8,64)"


# Ours ------------------------------------------------------------------------------------------------------------


def ours(trace: str, speedup: float, limit: int | None, *, leap: bool, cached: bool) -> dict[str, float]:
    """One replay: seconds of this process, and what it did."""
    from batchwright.config import EngineConfig
    from batchwright.lab import load_workload, run_arm
    from batchwright.lab.step_records import column

    start = time.process_time()
    workload = load_workload(trace, speedup=speedup, limit=limit)
    config = EngineConfig.parse({**SETTINGS, "prefix_cache": {"enabled": cached}})
    run = run_arm(config, workload, leap=leap)
    seconds = time.process_time() - start
    decodes = column(run.steps, "num_decodes")
    return {
        "seconds": seconds,
        "num_requests": len(run.requests),
        "num_steps": len(run.steps),
        "num_leapt": run.num_leapt,
        "mean_batch": float(decodes.mean()),
        "simulated_s": run.duration_s,
    }


def grown(num: int) -> dict[str, float]:
    """So many synthetic requests, streamed to disk."""
    from batchwright.config import EngineConfig
    from batchwright.lab import load_workload, stream_arm

    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        workload = load_workload(GROWTH.format(n=num), lazy=True)
        run = stream_arm(EngineConfig.parse(SETTINGS), workload, Path(folder, "run.jsonl"))
        seconds = time.process_time() - start
        size = run.path.stat().st_size
    return {
        "seconds": seconds,
        "num_requests": num,
        "finished": run.num_requests.get("finished", 0),
        "num_steps": run.num_steps,
        "num_leapt": run.num_leapt,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "file_mib": size / 2**20,
    }


# DynoSim ---------------------------------------------------------------------------------------------------------

DYNOSIM = """
import json, sys, time
from dynamo.llm import MockEngineArgs
from dynamo.replay.api import run_trace_replay
for line in sys.stdin:
    ask = json.loads(line)
    args = MockEngineArgs.from_json(json.dumps(ask["engine"]))
    start, wall = time.process_time(), time.perf_counter()
    report = run_trace_replay(ask["trace"], extra_engine_args=args, arrival_speedup_ratio=ask["speedup"])
    seconds = time.process_time() - start
    print("=>" + json.dumps({"seconds": seconds, "wall_s": time.perf_counter() - wall, "report": str(report)[:400]}))
    sys.stdout.flush()
"""


def mooncake(trace: str, limit: int | None, path: Path) -> int:
    """The trace in the form that DynoSim reads; every prompt is its own. Returns how many requests it has."""
    from batchwright.lab import load_workload

    rows = load_workload(trace, limit=limit).rows
    number = 0
    with path.open("w") as file:
        for row in rows:
            num = -(-(row.num_prompt_tokens or 0) // MOONCAKE_BLOCK)
            ids = list(range(number, number + num))
            number += num
            line = {
                "timestamp": row.arrival_ns / 1e6,
                "input_length": row.num_prompt_tokens,
                "output_length": row.num_output_tokens,
                "hash_ids": ids,
            }
            file.write(json.dumps(line) + "\n")
    return len(rows)


def engine_of_dynosim(num_blocks: int, *, cached: bool) -> dict[str, Any]:
    """The same limits and the same pool."""
    return {
        "engine_type": "vllm",
        "num_gpu_blocks": num_blocks,
        "block_size": 16,
        "max_num_seqs": SETTINGS["max_num_seqs"],
        "max_num_batched_tokens": SETTINGS["max_num_batched_tokens"],
        "enable_prefix_caching": cached,
        "enable_chunked_prefill": True,
    }


# Measuring -------------------------------------------------------------------------------------------------------


class Worker:
    """A warm process that answers one line of JSON with another."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps(question) + "\n")
        stdin.flush()
        return self._answer(stdout)

    def _answer(self, stdout: IO[str]) -> dict[str, Any]:
        for line in stdout:
            if line.startswith("=>"):
                answer: dict[str, Any] = json.loads(line[2:])
                return answer
        raise RuntimeError(f"it ended with exit code {self._process.wait()}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve() -> None:
    """What a worker of ours does."""
    for line in sys.stdin:
        ask = json.loads(line)
        found = grown(ask["grow"]) if "grow" in ask else ours(**ask)
        print("=>" + json.dumps(found), flush=True)


def one_core() -> None:
    """This process and those that it starts use one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def beside(args: argparse.Namespace) -> list[dict[str, Any]]:
    from batchwright.config import EngineConfig
    from batchwright.engine import Engine

    with Engine(EngineConfig.parse(SETTINGS)) as engine:
        num_blocks = engine.capacity.num_blocks
    mine = [sys.executable, __file__, "--serve"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.jsonl")
        num = mooncake(args.trace, args.limit, path)
        workers = {mode: Worker(mine) for mode in MODES[:2]}
        if args.dynosim:
            workers["dynosim"] = Worker([args.dynosim, "-c", DYNOSIM])
        engine_args = engine_of_dynosim(num_blocks, cached=args.cached)
        for rate in args.rates:
            own = {"trace": args.trace, "speedup": rate, "limit": args.limit, "cached": args.cached}
            asks: dict[str, dict[str, Any]] = {
                "step by step": {**own, "leap": False},
                "with leaps": {**own, "leap": True},
                "dynosim": {"trace": str(path), "speedup": rate, "engine": engine_args},
            }
            answers: dict[str, list[dict[str, Any]]] = {mode: [] for mode in workers}
            for number in range(args.rounds + args.warm_up):
                for mode, worker in workers.items():
                    answer = worker.ask(asks[mode])
                    if number >= args.warm_up:
                        answers[mode].append(answer)
            rows.append(row_of(rate, num, answers))
        for worker in workers.values():
            worker.close()
    return rows


def row_of(rate: float, num: int, answers: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    rates = {mode: sorted(num / answer["seconds"] for answer in found) for mode, found in answers.items()}
    medians = {mode: statistics.median(values) for mode, values in rates.items()}
    leapt = answers["with leaps"][-1]
    ratios = {"with leaps/step by step": medians["with leaps"] / medians["step by step"]}
    if "dynosim" in medians:
        ratios |= {f"{mode}/dynosim": medians[mode] / medians["dynosim"] for mode in MODES[:2]}
        print("dynosim reports:", answers["dynosim"][-1]["report"], file=sys.stderr)
    row = {
        "row": f"{rate:g} times the trace's rate",
        "unit": "requests/s",
        "medians": medians,
        "ratios": ratios,
        "num_requests": num,
        "num_steps": leapt["num_steps"],
        "share_leapt": round(leapt["num_leapt"] / leapt["num_steps"], 4),
        "mean_batch": round(leapt["mean_batch"], 1),
    }
    print(f"{row['row']}: {num} requests, {row['num_steps']} steps, {row['mean_batch']} decodes a step")
    for mode, values in rates.items():
        print(f"  {mode:<13} {medians[mode]:9,.0f} requests/s  ({values[0]:,.0f} to {values[-1]:,.0f})")
    print(f"  {row['share_leapt']:.1%} of the steps leapt; " + ", ".join(f"{k} {v:.2f}" for k, v in ratios.items()))
    return row


def growth(numbers: Sequence[int]) -> list[dict[str, Any]]:
    rows = []
    for num in numbers:
        worker = Worker([sys.executable, __file__, "--serve"])  # a fresh one: its peak of memory is of this run
        found = worker.ask({"grow": num})
        worker.close()
        each = found["seconds"] / num * 1e6
        print(
            f"{num:>9,} requests: {each:7.1f} µs each, {found['seconds']:8.1f} s, {found['num_steps']:,} steps, "
            f"peak {found['peak_mib']:.0f} MiB, file {found['file_mib']:.0f} MiB",
            flush=True,
        )
        if found["finished"] != num:
            raise RuntimeError(f"{num - found['finished']} requests did not finish")
        rows.append({"row": f"{num:,}", "unit": "µs", "medians": {"a request": each}, "ratios": {}, **found})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", help="an Azure LLM trace")
    parser.add_argument("--rates", nargs="+", type=float, default=[1, 8], help="arrival times are divided by these")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds that are not counted")
    parser.add_argument("--limit", type=int, help="the first so many requests only")
    parser.add_argument("--cached", action="store_true", help="with prefix caches, in both")
    parser.add_argument("--dynosim", metavar="PYTHON", help="an interpreter that can import dynamo.replay")
    parser.add_argument("--growth", nargs="+", type=int, metavar="N", help="so many requests, streamed to disk")
    parser.add_argument("--json", type=Path, help="write the figures to this file; rows of the other form stay in it")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return 0
    if not args.trace and not args.growth:
        parser.error("give a trace, or --growth")
    one_core()
    rows = growth(args.growth) if args.growth else beside(args)
    if args.json:
        kept = json.loads(args.json.read_text())["rows"] if args.json.is_file() else []
        committed.write(args.json, [*(r for r in kept if r["unit"] != rows[0]["unit"]), *rows], args.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
