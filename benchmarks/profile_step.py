"""Where the time of a decode step goes: input preparation, the model's forward, sampling, bookkeeping.

    python benchmarks/profile_step.py [--model smollm2-135m] [--batch 32] [--dtype bfloat16] [--temperature 0.8]

All requests have prompts of one length; steps in which all of them decode are timed, after a few that are not. Medians
are printed, and the share of the step that is not the model's forward. Bookkeeping is all that is left of
``Engine.step()``: schedule, results, stops, outputs.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from typing import Any

import torch

from batchwright import Engine, EngineConfig, Request, SamplingParams
from phases import PHASES, medians, serving

WARM_UP = 3


def profile(
    backend: str, batch: int, num_prompt: int, steps: int, params: dict[str, Any], options: dict[str, Any]
) -> dict[str, float]:
    """Medians of the phases of a decode step, in milliseconds, and ``outside``: the share beside the forward."""
    config = EngineConfig(
        backend=backend,
        num_blocks=options.pop("num_blocks", None),
        max_num_seqs=batch,
        max_num_batched_tokens=max(2048, batch),
        backend_options=options,
    )
    with Engine(config) as engine:
        size = engine.capacity.vocab_size
        rng = random.Random(0)
        sampling = SamplingParams(max_tokens=steps + WARM_UP + 1, ignore_eos=True, seed=0, **params)
        requests = [Request(f"r{i}", [rng.randrange(size) for _ in range(num_prompt)], sampling) for i in range(batch)]
        with serving(engine, requests) as watch:
            while engine.has_unfinished():
                watch.step()
    decodes = [s for s in watch.steps if s.is_decode and s.num_rows == batch][WARM_UP:]
    assert decodes, "no step had all requests decoding"
    out = medians(decodes)
    out["outside"] = 1 - out["forward"] / out["step"]
    return out


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="as after cpu: or cuda:")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, default=32, help="requests that decode together")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--steps", type=int, default=40, help="steps that are timed")
    parser.add_argument("--dtype", default=None, choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=None, help="of torch on CPU")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--json", action="store_true", help="print the medians as JSON")
    args = parser.parse_args(arguments)
    options = {"dtype": args.dtype, "num_threads": args.threads}
    params = {"temperature": args.temperature, "top_p": args.top_p}
    found = profile(
        f"{args.device}:{args.model}",
        args.batch,
        args.prompt,
        args.steps,
        params,
        {k: v for k, v in options.items() if v is not None},
    )
    if args.json:
        print(json.dumps(found))
        return 0
    what = f"{args.device}:{args.model}, {args.batch} decodes, {torch.get_num_threads()} threads"
    print(f"{what}; medians of {args.steps} steps")
    for phase in PHASES:
        print(f"  {phase:20}{found[phase]:9.3f} ms {found[phase] / found['step']:7.1%}")
    print(f"  {'step':20}{found['step']:9.3f} ms")
    print(f"outside the model's forward: {found['outside']:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
