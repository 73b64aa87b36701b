"""Do differences between policies agree in sign: a real model on the CPU, and the simulator fitted to that machine?

    python benchmarks/fidelity.py runs --record a --workload synthetic:...    # what the simulator is calibrated on
    python benchmarks/agree_cpu.py runs/a.json [--only stall_free] [--rounds 3] [--json FILE]

Six pairs of policies, each on a workload on which its paper says that they differ. The simulator runs each arm once;
the model runs both arms in turns, ``--rounds`` times, and the arm that begins changes from round to round. A pair
differs by more than noise when the interval leaves out 0 in every round, on one side. ``--json`` adds to what the file
holds, so that pairs can be run one by one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import BatchwrightError
from batchwright.lab import Comparison, Verdict, compare, load_workload, run_arm
from batchwright.lab.agree import AGREE, compare_backends
from judgement import machine
from simulator_fit import Fit, fit_simulator

MODEL = "cpu:smollm2-135m"
FILE = Path(__file__).parent / "results" / "agree_cpu.json"


@dataclass(frozen=True)
class Pair:
    """Two policies and where they differ.

    Attributes:
        base, other: the policies; the second is compared with the first.
        metric: what the pair is held to.
        workload: what both are offered.
        settings: of both engines.
        why: what is expected, and from where.
    """

    base: str
    other: str
    metric: str
    workload: str
    settings: Mapping[str, Any]
    why: str

    @property
    def name(self) -> str:
        """The second policy's."""
        return self.other.partition(":")[0]


PAIRS = (
    Pair(
        "prefill_first",
        "stall_free:chunk_size=64",
        "p99_itl_ms",
        "synthetic:rate=4,n=20,prompt=uniform(64,160),output=uniform(10,20),seed=1",
        {},
        "prompts in chunks stall no decode (Sarathi-Serve)",
    ),
    Pair(
        "vllm_v1",
        "static_batch",
        "mean_ttft_ms",
        "synthetic:rate=6,n=30,prompt=uniform(16,32),output=lognormal(10,0.8,40),seed=2",
        {"max_num_seqs": 8},
        "who comes late waits for the longest of the batch (Orca)",
    ),
    Pair(
        "vllm_v1",
        "sjf",
        "mean_e2el_ms",
        "synthetic:rate=inf,n=90,prompt=uniform(4,16),output=lognormal(5,1.2,64),seed=3",
        {"max_num_seqs": 4, "max_num_residents": 4, "predict": "oracle"},
        "the shortest first has the least mean latency",
    ),
    Pair(
        "vllm_v1",
        "lpm",
        "mean_ttft_ms",
        "synthetic:rate=inf,n=32,prompt=8,output=4,prefix=192,prefixes=8,seed=4",
        {"max_num_seqs": 2, "max_num_residents": 2, "num_blocks": 40},
        "the longest cached prefix first computes fewer prompt tokens (SGLang)",
    ),
    Pair(
        "vllm_v1",
        "no_evict",
        "mean_ttft_ms",
        "synthetic:rate=inf,n=24,prompt=16,output=48,seed=5",
        {"num_blocks": 24, "max_num_seqs": 16},
        "room set aside to the end starts fewer at once (TensorRT-LLM)",
    ),
    Pair(
        "vllm_v1",
        "mlfq",
        "mean_ttft_ms",
        "synthetic:rate=inf,n=60,prompt=8,output=lognormal(6,1.3,96),seed=6",
        {"max_num_seqs": 4, "max_num_residents": 4},
        "nobody waits for a long answer to begin his own (FastServe)",
    ),
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calibrated_on", type=Path, help="a recorded run of the model on this machine")
    parser.add_argument("--backend", default=MODEL, help="the real one (default: %(default)s)")
    parser.add_argument("--only", choices=[pair.name for pair in PAIRS], help="one pair")
    parser.add_argument("--rounds", type=int, default=3, help="real runs of each arm (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write the figures, as to {FILE.name}")
    args = parser.parse_args(argv)
    pairs = [pair for pair in PAIRS if args.only in (None, pair.name)]
    held = True
    try:
        with tempfile.TemporaryDirectory() as scratch:
            fit = fit_simulator(args.calibrated_on, None, Path(scratch) / "machine.yaml")
            for pair in pairs:
                row = run_pair(pair, f"sim:{fit.target}", args.backend, args.rounds)
                held = held and bool(row["holds"])
                print(said(row), flush=True)
                if args.json:
                    add(args.json, row, fit)
    except BatchwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if held else 1


def run_pair(pair: Pair, simulator: str, real: str, rounds: int) -> dict[str, Any]:
    """The pair on both backends: the metric's difference on each, and whether the signs agree.

    Args:
        pair: of policies.
        simulator, real: the backends.
        rounds: how often the real one runs both arms.

    Raises:
        BatchwrightError: something of it cannot be had.
    """
    simulated = _compare(pair, simulator, False)
    runs = [compare_backends(simulated, _compare(pair, real, bool(i % 2))) for i in range(rounds)]
    agreements = [run.agreement(pair.metric) for run in runs]
    return {
        "pair": pair.name,
        "base": pair.base,
        "other": pair.other,
        "metric": pair.metric,
        "workload": pair.workload,
        "settings": dict(pair.settings),
        "why": pair.why,
        "simulated": _short(agreements[0].verdicts[0]),
        "real": [_short(a.verdicts[1]) for a in agreements],
        "signs": [a.sign for a in agreements],
        "intervals_overlap": [a.overlap for a in agreements],
        "holds": all(a.sign == AGREE for a in agreements),
        "contradictions": sorted({a.metric for run in runs for a in run.opposite}),
    }


def _compare(pair: Pair, backend: str, other_first: bool) -> Comparison:
    """Both arms, one after the other."""
    workload = load_workload(pair.workload)
    arms = [pair.base, pair.other]
    runs = {}
    for policy in reversed(arms) if other_first else arms:
        config = EngineConfig.parse({**pair.settings, "policy": policy, "backend": backend})
        runs[policy] = run_arm(config, workload, arm=policy, declared="exact")
    return compare([runs[policy] for policy in arms])


def _short(verdict: Verdict) -> dict[str, Any]:
    interval = verdict.interval
    values = {
        "base": verdict.base,
        "value": verdict.value,
        "relative": verdict.relative,
        "low": interval and interval.relative_low,
        "high": interval and interval.relative_high,
    }
    rounded = {name: None if value is None else float(f"{value:.4g}") for name, value in values.items()}
    return {**rounded, "verdict": verdict.words}


def said(row: Mapping[str, Any]) -> str:
    """A row as a line or two."""
    real = ", ".join(_interval(one) for one in row["real"])
    return (
        f"{row['other']} - {row['base']}, {row['metric']}: simulated {_interval(row['simulated'])}; real {real}: "
        f"{'agree' if row['holds'] else ' '.join(row['signs'])}"
    )


def _interval(one: Mapping[str, Any]) -> str:
    if one["relative"] is None or one["low"] is None:
        return str(one["verdict"])
    return f"{100 * one['relative']:+.0f}% [{100 * one['low']:+.0f}, {100 * one['high']:+.0f}]"


def add(path: Path, row: Mapping[str, Any], fit: Fit) -> None:
    """Put a row into a file, in the place of an older one of its pair."""
    rows = {old["pair"]: old for old in json.loads(path.read_text(encoding="utf-8"))["rows"]} if path.is_file() else {}
    rows[row["pair"]] = row
    ordered = [rows[pair.name] for pair in PAIRS if pair.name in rows]
    text = json.dumps({**machine(), "calibrated": list(fit.said), "rows": ordered}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
