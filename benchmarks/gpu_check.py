"""Everything that needs a GPU, in one script: equality with float32 on the CPU, then speed. Needs no network.

    make gpu-check                      # on a machine with a CUDA GPU; under 4 minutes
    python benchmarks/gpu_check.py [--json FILE] [--only equality|speed] [--kernels triton,sdpa]

Equality: tiny models with random weights, with every attention kernel that can run, each dtype, with CUDA graphs and
without, over chunks, mixed batches, shared prefixes and evictions. Speed: Qwen3-0.6B's shape on nano-vLLM's benchmark,
with CUDA graphs and without. What cannot run is skipped, with the reason. One JSON file has it all.

Exit status: 0 all is equal; 1 something differs or fails; 3 there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import transformers

import gpu_equality
import gpu_speed
from batchwright_backends.torch.kernels.choice import KERNELS

RESULTS = Path(__file__).parent / "results" / "gpu_check.json"
LIMIT_S = 225.0
"""All of it; what has not run by then is skipped."""
EQUALITY_S = 110.0
DIFFERS, NO_GPU = 1, 3
PACKAGES = ("torch", "transformers", "triton", "flash-attn", "flash-attn-3", "flash-attn-4", "fa3-fwd")


def where(device: str) -> dict[str, Any]:
    """What this machine is."""
    out: dict[str, Any] = {"python": platform.python_version(), "packages": {}}
    for name in PACKAGES:
        try:
            out["packages"][name] = version(name)
        except PackageNotFoundError:
            continue
    if device == "cuda":
        properties: Any = torch.cuda.get_device_properties(0)
        out |= {
            "gpu": properties.name,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
        }
    return out


def run_equality(args: argparse.Namespace, time_left: Callable[[], float]) -> list[dict[str, Any]]:
    """All comparisons, printed as they come."""
    records = []
    for record in gpu_equality.check_all(args.device, args.models, args.kernels, time_left):
        what = f"{record['model']}, {record['kernel']}, {record['dtype']}, graphs {'on' if record['graphs'] else 'off'}"
        how = f"mean error {record['mean error']:.2g}" if "mean error" in record else ""
        print(f"  {record['result']:8} {what}: {record.get('why', how)}", flush=True)
        records.append(record)
    return records


def run_speed(args: argparse.Namespace, time_left: Callable[[], float]) -> list[dict[str, Any]]:
    """The benchmark, with graphs and without: twice half of the time that is left."""
    runs = []
    for number, graphs in enumerate(("auto", False)):
        share = time_left() / (2 - number)
        if share <= 5 or (args.device == "cpu" and graphs is False):
            runs.append({"cuda_graphs": graphs, "result": "skipped", "why": "the time is up" if share <= 5 else "cpu"})
            continue
        requests = gpu_speed.make_requests(args.requests, args.least, args.most)
        found = gpu_speed.measure(args.device, args.shape, requests, share - 4, cuda_graphs=graphs)
        runs.append({"cuda_graphs": graphs, **found})
        steps = found["steps"]
        print(f"  {found['output_tokens_per_s']:.0f} output tokens/s, {found['notes']}", flush=True)
        for kind in ("decodes", "with prompts"):
            print(f"    {kind}: {json.dumps(steps.get(kind))}", flush=True)
        print(f"    share outside the device: {steps['share outside the device']}", flush=True)
    return runs


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    titles = [kernel.title for kernel in KERNELS]
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the results go")
    parser.add_argument("--only", choices=["equality", "speed"])
    parser.add_argument("--kernels", default=",".join(titles), help=f"of {', '.join(titles)}")
    parser.add_argument("--models", default=",".join(gpu_equality.MODELS), help="tiny models to compare")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds that all may take")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: only to try the script")
    parser.add_argument("--shape", default="qwen3-0.6b", choices=list(gpu_speed.SHAPES))
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--least", type=int, default=100, help="tokens of a prompt, and of an output, at least")
    parser.add_argument("--most", type=int, default=1024, help="the same, at most")
    args = parser.parse_args(arguments)
    args.kernels, args.models = args.kernels.split(","), args.models.split(",")
    if args.device == "cuda" and not torch.cuda.is_available():
        print(f"no GPU: torch {torch.__version__} finds no CUDA device, so nothing was checked", file=sys.stderr)
        return NO_GPU
    start = time.perf_counter()

    def time_left(limit: float = args.limit) -> float:
        return limit - (time.perf_counter() - start)

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    report: dict[str, Any] = {
        "where": where(args.device),
        "date": time.strftime("%Y-%m-%d"),
        "equality": [],
        "speed": [],
    }
    print(json.dumps(report["where"]))
    if args.only != "speed":
        print("equality with float32 on the CPU:")
        most = args.limit if args.only else min(args.limit, EQUALITY_S)
        report["equality"] = run_equality(args, lambda: time_left(most))
    if args.only != "equality":
        print(f"speed, {args.shape}, {args.requests} requests:")
        try:
            report["speed"] = run_speed(args, time_left)
        except Exception as error:  # the comparisons are worth keeping
            report["speed"] = [{"result": "fails", "why": f"{type(error).__name__}: {error}"}]
            print(f"  fails: {report['speed'][0]['why']}")
    report["seconds"] = time.perf_counter() - start
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    results = [r["result"] for r in [*report["equality"], *report["speed"]] if "result" in r]
    counts = ", ".join(f"{results.count(r)} {r}" for r in dict.fromkeys(results))
    print(f"{counts or 'done'} in {report['seconds']:.0f} s; {args.json}")
    return DIFFERS if "differs" in results or "fails" in results else 0


if __name__ == "__main__":
    sys.exit(main())
