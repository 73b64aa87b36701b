"""FastServe: skip-join feedback queues against first come, first served, the heavier the tail of the lengths.

    python benchmarks/reproduce/fastserve_tails.py

Wu et al., "Fast Distributed Inference Serving for Large Language Models", 2023, arXiv:2305.05920 (FastServe; NSDI 2026
as "Iteration-Level Preemptive Scheduling for Large Language Model Inference"), and its artifact (LLMServe/FastServe,
commit 187a274, benchmarks/artifact-evaluation/overall, Figure 11).
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from statistics import NormalDist

from batchwright.config import EngineConfig
from batchwright.engine import Engine
from batchwright.lab import ab, load_workload
from reproduction import Estimate, Reproduction, above, less, main, spread, tell, times

MACHINE = Path(__file__).parent / "machines" / "opt-13b-a100.yaml"
MEANS = (161.31, 337.99)
"""Tokens of ShareGPT's prompts and outputs on average (Kwon et al., SOSP 2023, Figure 11)."""
SIGMAS = (0.0, 1.0, 1.35)
"""Of the lognormals: 1.35 is that of ShareGPT's prompts by mean 350 and median 141 (SGLang's pull request 13507)."""
RATES = (2.0, 3.0, 4.0)
OVERLOAD = 4.0
SLO_S = 0.3  # seconds a token, the line in Figure 11
LEVELS = "quantum=0.6,iteration_tokens=150,levels=16,starve_s=3"
"""FastServe's: 10 ms in the first level, twice as much in each, none the last, promoted after 3 s. An iteration of
OPT-13B takes about 16 ms here, and computes about 150 prompt tokens in that time."""
RECOMPUTING = "mlfq, recomputing"
SWAPPED = 4274
"""Blocks of 16 tokens that the artifact's swap space of 56 GB holds, at 819,200 bytes of K and V a token of OPT-13B."""
LONGEST = 1024  # tokens of a prompt and of an output: OPT takes 2,048 in all


def lengths(sigma: float) -> str:
    """Of the published means, whatever sigma is."""
    prompt, output = (f"lognormal({median(mean, sigma):.2f},{sigma},{LONGEST})" for mean in MEANS)
    return f"prompt={prompt},output={output}"


def median(mean: float, sigma: float) -> float:
    """Of the lognormal that has this mean when it is cut at ``LONGEST``, by bisection."""
    if not sigma:
        return mean
    below = NormalDist().cdf

    def cut_mean(middle: float) -> float:
        z = math.log(LONGEST / middle) / sigma
        return middle * math.exp(sigma**2 / 2) * below(z - sigma) + LONGEST * below(-z)

    low, high = 1.0, float(LONGEST)
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if cut_mean(middle) < mean else (low, middle)
    return low


def arms() -> dict[str, EngineConfig]:
    """FastServe's first come, first served; its feedback queues where K and V that are swapped out are as good as on
    the GPU; and where they are lost."""
    common = {
        "backend": f"sim:{MACHINE}",
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "prefix_cache": {"enabled": False},
    }
    fifo = EngineConfig.parse({**common, "policy": "vllm_v1"})
    queues = EngineConfig.parse({**common, "policy": f"mlfq:{LEVELS}"})
    with Engine(queues) as engine:
        on_gpu = engine.capacity.num_blocks
    swaps = queues.model_copy(update={"num_blocks": on_gpu + SWAPPED})
    return {"fifo": fifo, "mlfq": swaps, RECOMPUTING: queues}


def rate_at(latencies: list[float], rates: tuple[float, ...]) -> float:
    """The rate at which the latency a token crosses the SLO, linear between the rates that were run."""
    for (rate, low), (after, high) in zip(
        zip(rates, latencies, strict=True), zip(rates[1:], latencies[1:], strict=True), strict=False
    ):
        if low <= SLO_S < high:
            return rate + (after - rate) * (SLO_S - low) / (high - low)
    return rates[-1] if latencies[-1] <= SLO_S else rates[0]


def reproduce(seeds: int, quick: bool, jobs: int) -> Reproduction:
    """Rates up to overload with ShareGPT's tail, and one rate with lighter tails."""
    n = 40 if quick else 400
    rates = RATES[1:] if quick else RATES
    sigmas = (SIGMAS[0], SIGMAS[-1]) if quick else SIGMAS
    found = Reproduction(
        name="fastserve_tails",
        title="FastServe: skip-join feedback queues against FIFO under heavy tails",
        source="Wu et al., FastServe, arXiv:2305.05920, abstract and section 6 (NSDI 2026); its artifact, "
        "LLMServe/FastServe at 187a274, Figure 11",
        kind="direction",
        setup=(
            f"OPT-13B on one A100, at most 16 requests and 2,048 tokens a step, {n} requests, Poisson; lognormal "
            "lengths of the means of ShareGPT, 161 in and 338 out, and a sigma of 1.35",
            f"then at {OVERLOAD:g} requests/s with sigmas from 0 (all alike) to 1.35, at the same means",
        ),
        same=(
            "model, limits of a step, number of requests, mean lengths, the measure (latency over output tokens, bound "
            "of 0.3 s), quanta that double, promotion after 3 s",
        ),
        other=(
            "lengths are drawn, not ShareGPT's own: its means are published, and its prompts' sigma",
            "K and V are swapped to host memory there, ahead of need: here the pool is larger by its swap space, as if "
            "that cost nothing; beside it stands the GPU's own pool, where who loses its blocks is recomputed",
            "quanta count iterations of the same length; there 10 ms by profile",
            "published gains are over vLLM and Orca as they then were; the arm here is FIFO with the same engine",
        ),
        seeds=seeds,
    )
    configs = arms()
    points = {(rate, sigmas[-1]) for rate in rates} | {(OVERLOAD, sigma) for sigma in sigmas}
    values: dict[tuple[str, float, float], dict[str, list[float]]] = {}
    for rate, sigma in sorted(points):
        tell(f"rate {rate:g}, sigma {sigma:g}")
        load = load_workload(f"synthetic:rate={rate},n={n},{lengths(sigma)}")
        asked = {arm: config for arm, config in configs.items() if arm != RECOMPUTING or rate == OVERLOAD}
        comparison = ab(asked, load, seeds=seeds, jobs=jobs)
        for arm in asked:
            token, whole = (spread(comparison, arm, f"mean_{name}_ms", 1e3) for name in ("norm_latency", "e2el"))
            values[arm, rate, sigma] = {"token": token, "whole": whole}
    heavy = sigmas[-1]
    for rate in rates:
        for arm in ("fifo", "mlfq"):
            found.add(
                f"{arm} at {rate:g} requests/s: s a token", "in a figure", values[arm, rate, heavy]["token"], 3, " s"
            )
    at = {
        arm: [rate_at([values[arm, rate, heavy]["token"][seed] for rate in rates], rates) for seed in range(seeds)]
        for arm in ("fifo", "mlfq")
    }
    found.add(
        f"rate at 0.3 s a token (of {rates[-1]:g} at most), mlfq over fifo",
        "up to 31.4x over vLLM",
        times(at["mlfq"], at["fifo"]),
        2,
        "x",
    )
    saved: dict[tuple[str, float], Estimate] = {}
    for arm in ("mlfq", RECOMPUTING):
        for sigma in sigmas:
            by_seed = less(values["fifo", OVERLOAD, sigma]["whole"], values[arm, OVERLOAD, sigma]["whole"]).values
            saved[arm, sigma] = Estimate(tuple(100 * share for share in by_seed))
            theirs = "up to 80% of Orca's" if (arm, sigma) == ("mlfq", heavy) else "not published"
            found.add(f"sigma {sigma:g}: mean completion time saved by {arm}", theirs, saved[arm, sigma], 1, "%")
    fifo, mlfq = (values[arm, OVERLOAD, heavy] for arm in ("fifo", "mlfq"))
    found.claim("under the heavy tail, latency a token is less than FIFO's", above(fifo["token"], mlfq["token"]))
    found.claim("under the heavy tail, mean completion time is less than FIFO's", above(fifo["whole"], mlfq["whole"]))
    found.claim("a higher rate keeps 0.3 s a token", above(at["mlfq"], at["fifo"]))
    found.claim(
        "the gain in completion time is larger under the heaviest tail than with equal lengths",
        above(saved["mlfq", heavy].values, saved["mlfq", sigmas[0]].values),
    )
    return found


if __name__ == "__main__":
    sys.exit(main(reproduce, __doc__, seeds=3))
