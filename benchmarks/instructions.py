"""Instructions a request a step, where the machine can count them: they do not depend on who else uses it.

    python benchmarks/instructions.py [--num 256] [--block-size 16] [--peers prefill_first nano-vllm]

Each peer runs in a process of its own, once with few steps and once with more; the difference is what the steps took.
``perf stat`` counts where the kernel allows it; else ``valgrind --tool=callgrind`` does, a minute or so a peer.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys

from peers import Nano, Ours, nano_missing
from rows import Make, decodes

STEPS = 64


def make_of(peer: str) -> Make:
    return Nano if peer == "nano-vllm" else lambda *sizes: Ours(peer, *sizes)


def work(peer: str, num: int, block_size: int, steps: int) -> None:
    """What the counted process does: ``steps`` steps of decodes."""
    row = decodes(make_of(peer), num, block_size, steps=steps)
    row.work()


def count(command: list[str]) -> int | None:
    """Instructions of a command in user mode; None: nothing here can count them."""
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    if shutil.which("perf"):
        done = subprocess.run(
            ["perf", "stat", "-x", ",", "-e", "instructions:u", *command], capture_output=True, text=True, env=env
        )
        found = re.search(r"^(\d+),[^,]*,instructions:u", done.stderr, re.MULTILINE)
        if found:
            return int(found[1])
    if shutil.which("valgrind"):
        tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
        done = subprocess.run([*tool, *command], capture_output=True, text=True, env=env)
        found = re.search(r"Collected : (\d+)", done.stderr)
        if found:
            return int(found[1])
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=256)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--peers", nargs="+", default=["prefill_first", "vllm_v1", "nano-vllm"])
    parser.add_argument("--work", nargs=2, metavar=("PEER", "STEPS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work[0], args.num, args.block_size, int(args.work[1]))
        return 0
    sizes = ["--num", str(args.num), "--block-size", str(args.block_size)]
    for peer in args.peers:
        missing = nano_missing() if peer == "nano-vllm" else None
        if missing:
            print(f"{peer} left out: {missing}", file=sys.stderr)
            continue
        command = [sys.executable, __file__, *sizes, "--work", peer]
        few, many = count([*command, str(STEPS)]), count([*command, str(2 * STEPS)])
        if few is None or many is None:
            print("neither perf nor valgrind can count instructions here", file=sys.stderr)
            return 1
        print(f"{peer:<16} {(many - few) / STEPS / args.num:8.0f} instructions a request a step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
