"""How often verdicts are false, and how often they find what is there.

Two arms of one policy, each with noise of its own in its step times (5%), are compared over 20 seeds: whatever is
called better or worse then is false. In a second round one arm's simulator takes 3% longer for every step, which is to
be found. The runs of each comparison are also judged by the first of their seeds only: that is what seeds are worth.

    python benchmarks/aa.py                     # 200 pairs and 100 with a shift; a quarter of an hour on two cores
    python benchmarks/aa.py --pairs 20 --shifted 10 --json ''
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from batchwright import EngineConfig
from batchwright.errors import ConfigError
from batchwright.lab import Comparison, RunRecord, ab, compare, load_workload
from batchwright.lab.family import PRIMARY
from batchwright.lab.metrics import METRICS
from batchwright.lab.shown import SHOWN
from batchwright.lab.verdict import BETTER, WORSE
from batchwright.plugins import Plugins, load_plugins
from batchwright.version import __version__
from batchwright_backends.sim.gpus import find_gpu

RESULTS = Path(__file__).parent / "results" / "aa.json"
WORKLOAD = "synthetic:rate=60,n=30,prompt=lognormal(128,0.6),output=uniform(4,12)"
MODEL, GPU, POLICY = "llama-3.1-8b", "h100", "vllm_v1"
NOISE = 0.05
SHIFT = 1.03
DECLARED = "mean_itl_ms"
"""The metric in which a shift of step times is looked for, and whose verdicts are counted one by one."""

_RATES = ("flops", "bandwidth", "io_bandwidth", "logits_per_s")


@dataclass(frozen=True)
class Setting:
    """What all pairs have in common.

    Attributes:
        seeds: runs of each arm.
        subsets: numbers of seeds by which each comparison is judged.
        shift: step times of the second arm over those of the first.
    """

    seeds: int
    subsets: tuple[int, ...]
    shift: float


def machine(factor: float) -> dict[str, Any]:
    """A ``sim:FILE`` whose steps all take so many times as long: every time longer, every rate lower."""
    gpu = find_gpu(GPU).model_dump()
    for term, constants in gpu.items():
        if not isinstance(constants, dict):
            continue
        for name, value in constants.items():
            if name in _RATES:
                gpu[term][name] = value / factor
            elif name.endswith("_s"):
                gpu[term][name] = value * factor
    return {"model": MODEL, "gpu": gpu}


def compare_pair(number: int, setting: Setting) -> dict[str, Any]:
    """One comparison, judged by the first of its seeds, by more of them, and by all."""
    with tempfile.TemporaryDirectory() as folder:
        arms: dict[str, EngineConfig] = {}
        for place, (name, factor) in enumerate((("one", 1.0), ("two", setting.shift))):
            path = Path(folder) / f"{name}.yaml"
            path.write_text(yaml.safe_dump(machine(factor)), encoding="utf-8")
            noise = {"noise": NOISE, "noise_seed": 2 * number + place}
            arms[name] = EngineConfig.parse(
                {
                    "policy": POLICY,
                    "backend": f"sim:{path}",
                    "backend_options": noise,
                    "num_blocks": 600,
                    "max_model_len": 2048,
                }
            )
        whole = ab(
            arms,
            load_workload(WORKLOAD),
            seed=1000 * number,  # no pair has the workloads of another
            seeds=setting.seeds,
            installed=_installed(),
        )
    _check_differ(whole)
    found = {num: whole if num == setting.seeds else compare(_first(whole, num)) for num in setting.subsets}
    return {
        "verdicts": {
            num: {v.metric: v.words for v in judged.verdicts if v.words in (BETTER, WORSE)}
            for num, judged in found.items()
        },
        "relative": whole.verdict(DECLARED).relative,
        "half_width": {num: _half_width(judged) for num, judged in found.items()},
    }


@cache
def _installed() -> Plugins:
    return load_plugins()


def _check_differ(comparison: Comparison) -> None:
    """An A/A of equal records would prove nothing."""
    one, two = (comparison.of(arm) for arm in comparison.arms)
    for seed, run in one.items():
        times = [[r.token_times_ns for r in of.requests] for of in (run, two[seed])]
        if times[0] == times[1]:
            raise AssertionError(f"both arms have the same token times in seed {seed}: their noise is not their own")
    if len({run.workload["hash"] for run in one.values()}) < len(one):
        raise AssertionError("two seeds have one workload")


def _first(comparison: Comparison, num: int) -> list[RunRecord]:
    return [run for arm in comparison.arms for run in list(comparison.of(arm).values())[:num]]


def _half_width(comparison: Comparison) -> float | None:
    interval = comparison.verdict(DECLARED).interval
    if interval is None or interval.relative_low is None or interval.relative_high is None:
        return None
    return (interval.relative_high - interval.relative_low) / 2


def false_verdicts(pairs: Sequence[dict[str, Any]], num: int) -> dict[str, Any]:
    """How many pairs have a false verdict, by where it stands."""
    words = [pair["verdicts"][num] for pair in pairs]
    by_metric = Counter(metric for found in words for metric in found)
    return {
        "declared": by_metric[DECLARED],
        "primary": sum(any(metric in PRIMARY for metric in found) for found in words),
        "table": sum(any(metric in SHOWN for metric in found) for found in words),
        "all": sum(bool(found) for found in words),
        "by_metric": dict(sorted(by_metric.items(), key=lambda item: (-item[1], item[0]))),
        "half_width": _median([pair["half_width"][num] for pair in pairs]),
    }


def found_shifts(pairs: Sequence[dict[str, Any]], num: int) -> dict[str, Any]:
    """How many pairs show the shift, as what it is."""
    words = [pair["verdicts"][num].get(DECLARED) for pair in pairs]
    return {"found": words.count(WORSE), "wrong_way": words.count(BETTER)}


def _median(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return median(known) if known else None


def run_pairs(numbers: Sequence[int], setting: Setting, jobs: int, what: str) -> list[dict[str, Any]]:
    """All comparisons, over processes; tells how far it is."""
    results: list[dict[str, Any]] = []
    begun = time.monotonic()
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for result in pool.map(compare_pair, numbers, repeat(setting)):
            results.append(result)
            if len(results) % 10 == 0:
                took = time.monotonic() - begun
                print(f"{what}: {len(results)} of {len(numbers)}, {took:.0f} s", file=sys.stderr, flush=True)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and write; exit code 1 where verdicts are false too often, or a shift is missed too often."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200, help="comparisons of equal arms")
    parser.add_argument("--shifted", type=int, default=100, help="comparisons in which one arm is 3%% slower")
    parser.add_argument("--seeds", type=int, default=20, help="runs of each arm")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", default=str(RESULTS), help="file for the figures; '' writes none")
    args = parser.parse_args(arguments)
    if min(args.pairs, args.shifted, args.seeds, args.jobs) < 1:
        raise ConfigError("pairs, shifted, seeds and jobs must be at least 1")
    subsets = tuple(sorted({num for num in (1, 3, 5, 10) if num < args.seeds} | {args.seeds}))
    equal = run_pairs(range(args.pairs), Setting(args.seeds, subsets, 1.0), args.jobs, "equal arms")
    numbers = range(args.pairs, args.pairs + args.shifted)
    shifted = run_pairs(numbers, Setting(args.seeds, subsets, SHIFT), args.jobs, "3% slower")
    value = {
        "batchwright": __version__,
        "python": platform.python_version(),
        "setting": {
            "workload": WORKLOAD,
            "model": MODEL,
            "gpu": GPU,
            "policy": POLICY,
            "noise": NOISE,
            "shift": SHIFT,
            "declared": DECLARED,
            "seeds": args.seeds,
            "num_metrics": len(METRICS),
        },
        "pairs": args.pairs,
        "shifted": args.shifted,
        "by_seeds": {
            str(num): {"false": false_verdicts(equal, num), "shift": found_shifts(shifted, num)} for num in subsets
        },
        "median_shift": _median([pair["relative"] for pair in shifted]),
    }
    report(value)
    if args.json:
        Path(args.json).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    last = value["by_seeds"][str(args.seeds)]
    return 0 if within(last, args.pairs, args.shifted) else 1


def within(found: dict[str, Any], pairs: int, shifted: int) -> bool:
    """Whether false verdicts are 5% within binomial error (at most 16 of 200), and 90% of the shifts are found."""
    most = pairs * 0.05 + 1.96 * math.sqrt(pairs * 0.05 * 0.95)
    seldom = max(found["false"]["declared"], found["false"]["table"]) <= most
    return seldom and found["shift"]["found"] >= 0.9 * shifted


def report(value: dict[str, Any]) -> None:
    """The figures as a table."""
    print(f"{value['pairs']} pairs of equal arms, {value['shifted']} with one arm 3% slower; {WORKLOAD}")
    print(f"{'seeds':>5} {'+- ITL %':>9} {'false ITL':>10} {'primary':>8} {'table':>6} {'all':>5} {'3% found':>9}")
    for num, found in value["by_seeds"].items():
        false, shift = found["false"], found["shift"]
        width = "-" if false["half_width"] is None else f"{100 * false['half_width']:.2f}"
        print(
            f"{num:>5} {width:>9} {false['declared']:>10} {false['primary']:>8} {false['table']:>6} {false['all']:>5} "
            f"{shift['found']:>9}"
        )


if __name__ == "__main__":
    sys.exit(main())
