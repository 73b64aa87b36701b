"""What a whole A/B with its report costs beside its simulation alone.

    python benchmarks/report_cost.py TRACE.csv [--seeds 5] [--rounds 3] [--json FILE]

The A/B is two policies on an Azure LLM trace with so many seeds, ``batchwright ab A B --out DIR``: from reading the
trace to records on disk, verdicts and report.html. The simulation alone is the same runs in one process, timed from the
first to the last, with their records in memory and nothing made of them. Both take turns in each round, each in a
process of its own; figures are seconds of a core, so that a busy machine says the same as an idle one.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import committed

ARMS = ("prefill_first", "stall_free")
SLO = "ttft=1.0,tpot=0.05"
LIMIT = 3.0
"""What the whole may cost, in simulations alone."""


def simulate(trace: str, num_seeds: int) -> dict[str, Any]:
    """The runs alone: seconds of this process, and what they were."""
    import time

    from batchwright.config import EngineConfig
    from batchwright.lab import load_workload
    from batchwright.lab.executors import Task
    from batchwright.lab.repetition import repeated

    workload = load_workload(trace)
    tasks = repeated([Task(arm, EngineConfig(policy=arm), workload, 0, {}) for arm in ARMS], range(num_seeds))
    start = time.process_time()
    runs = [task.run() for task in tasks]
    seconds = time.process_time() - start
    return {"seconds": seconds, "runs": len(runs), "requests": sum(len(run.requests) for run in runs)}


def whole(trace: str, num_seeds: int) -> dict[str, Any]:
    """The command: seconds of its process, and the size of its page."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "batchwright", "ab", *ARMS, "--workload", trace, "--seeds", str(num_seeds)]
        subprocess.run([*command, "--slo", SLO, "--out", str(out), "--quiet"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return {"seconds": seconds, "page_bytes": (out / "report.html").stat().st_size}


def measure(trace: str, num_seeds: int, rounds: int) -> dict[str, Any]:
    """All rounds, and the ratio of the medians."""
    alone: list[dict[str, Any]] = []
    with_report: list[dict[str, Any]] = []
    for number in range(rounds):
        command = [sys.executable, __file__, trace, "--seeds", str(num_seeds), "--alone"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        alone.append(json.loads(done.stdout))
        with_report.append(whole(trace, num_seeds))
        print(
            f"round {number + 1}: simulation alone {alone[-1]['seconds']:.1f} s, "
            f"with everything {with_report[-1]['seconds']:.1f} s",
            flush=True,
        )
    simulation, everything = (statistics.median(each["seconds"] for each in found) for found in (alone, with_report))
    return {
        "trace": Path(trace).name,
        "arms": list(ARMS),
        "seeds": num_seeds,
        "runs": alone[0]["runs"],
        "requests": alone[0]["requests"],
        "simulation_s": [each["seconds"] for each in alone],
        "with_report_s": [each["seconds"] for each in with_report],
        "ratio": everything / simulation,
        "page_bytes": with_report[0]["page_bytes"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(simulate(options.trace, options.seeds)))
        return 0
    found = measure(options.trace, options.seeds, options.rounds)
    print(
        f"{found['runs']} runs, {found['requests']:,} requests: the whole A/B takes {found['ratio']:.2f} times the "
        f"simulation alone (at most {LIMIT:g}); report.html has {found['page_bytes'] / 1e6:.2f} MB"
    )
    if options.json is not None:
        where = {"python": platform.python_version(), "processor": committed.processor()}
        options.json.write_text(json.dumps({**where, **found}, indent=1) + "\n", encoding="utf-8")
    return 0 if found["ratio"] <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
