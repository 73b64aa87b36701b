"""Shortest-first gains less over first come, first served, the larger the token budget of a step.

    python benchmarks/reproduce/sjf_budget.py

inference-sim/inference-sim, issue 339, and hypotheses/h-liveness/FINDINGS.md (pull request 335), rounds 2, 2b and 2c:
another simulator, of vLLM.

One comparison a seed: every seed draws another mix, with predictions, and no specification of a workload has these.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np

from batchwright.config import EngineConfig
from batchwright.lab import Workload, WorkloadRow, ab
from reproduction import Reproduction, above, less, main, tell

BUDGETS = (2048, 4096, 8192, 16_384, 32_768, 65_536)
SHORT, LONG = (32, 64), (512, 256)  # tokens of prompt and output
RATE = 280.0  # requests/s over four replicas


def mixed(n: int, rate: float, seed: int) -> Workload:
    """Half short, half long, as two Poisson streams; what is predicted is the prompt, by which the source sorts."""
    rng = np.random.default_rng(seed)
    rows = []
    for prompt, output in (SHORT, LONG):
        arrivals = np.zeros(n // 2) if math.isinf(rate) else np.cumsum(rng.exponential(2 / rate, n // 2))
        rows += [
            WorkloadRow(
                arrival_ns=round(1e9 * at),
                num_prompt_tokens=prompt,
                num_output_tokens=output,
                predicted_output_tokens=prompt,
            )
            for at in arrivals
        ]
    order = rng.permutation(n // 2 * 2)
    rows = sorted((rows[place] for place in order), key=lambda row: row.arrival_ns)
    name = f"mixed, seed {seed}"
    return Workload(name=name, rows=tuple(rows), source=name)


def gains(
    n: int, rate: float, seats: int, budgets: Sequence[int], seeds: int, jobs: int
) -> dict[int, dict[str, list[float]]]:
    """Budget to what shortest-first saves, as a share of mean E2EL and TTFT, and the latency without it in seconds."""
    found: dict[int, dict[str, list[float]]] = {}
    for budget in budgets:
        common = {
            "backend": "sim:llama-3.1-8b@h100x2",
            "replicas": 4,
            "router": "least_outstanding",
            "max_num_seqs": seats,
            "max_num_batched_tokens": budget,
            "prefix_cache": {"enabled": False},
        }
        policies = {"fcfs": "vllm_v1", "sjf": "sjf:ageing=0"}
        configs = {name: EngineConfig.parse({**common, "policy": policy}) for name, policy in policies.items()}
        values: dict[str, dict[str, list[float]]] = {metric: {} for metric in ("mean_e2el_ms", "mean_ttft_ms")}
        for seed in range(seeds):
            tell(f"{seats} seats, budget {budget}, seed {seed}")
            summaries = ab(configs, mixed(n, rate, seed), seed=seed, jobs=jobs).summaries
            for metric, by_arm in values.items():
                for arm in configs:
                    by_arm.setdefault(arm, []).append(float(summaries[arm][metric] or math.nan))
        e2el, ttft = values["mean_e2el_ms"], values["mean_ttft_ms"]
        found[budget] = {
            "e2el": [100 * share for share in less(e2el["fcfs"], e2el["sjf"]).values],
            "ttft": [100 * share for share in less(ttft["fcfs"], ttft["sjf"]).values],
            "fcfs_s": [ms / 1e3 for ms in e2el["fcfs"]],
        }
    return found


def reproduce(seeds: int, quick: bool, jobs: int) -> Reproduction:
    """The source's own load, the same without its limit of seats, and one that builds a queue by the budget alone."""
    n = 64 if quick else 2000
    few = min(n, 400)  # enough where all come at once
    ends = (BUDGETS[0], BUDGETS[-1])
    found = Reproduction(
        name="sjf_budget",
        title="Shortest-first against FCFS as the token budget grows from 2,048 to 65,536",
        source="inference-sim/inference-sim, issue 339; hypotheses/h-liveness/FINDINGS.md of pull request 335, rounds "
        "2, 2b and 2c: a simulator of vLLM",
        kind="direction",
        setup=(
            f"{n:,} requests, half of 32 tokens in and 64 out, half of 512 in and 256 out; four replicas of "
            "Llama-3.1-8B on two H100, least outstanding first; vllm_v1 against sjf on the prompt's length, no ageing",
            "three loads: 280 requests/s and 8 requests at most a step, as in the source; the same with 256 at most; "
            f"{few} requests at once, with no limit that binds but the budget",
        ),
        same=("lengths, mix, rate, number of requests, replicas, routing, the limit of 8, what shortest means",),
        other=(
            "our constants of the two H100; there a step takes 6.9 ms, 17.7 us more for each prompt token, 2.8 us for "
            "each decode",
            "the third load is ours: with 8 seats the budget cannot bind, since 8 prompts of 512 tokens are 4,096",
        ),
        seeds=seeds,
    )
    seats8 = gains(n, RATE, 8, ends, seeds, jobs)
    seats256 = gains(n, RATE, 256, ends, seeds, jobs)
    queue = gains(few, math.inf, few, ends if quick else BUDGETS, seeds, jobs)
    small, large = ends
    theirs = {small: ("31%", "33.1 s"), large: ("about 0", "112.2 s")}
    for budget in ends:
        found.add(f"8 seats, budget {budget:,}: mean E2EL saved", theirs[budget][0], seats8[budget]["e2el"], 1, "%")
        found.add(
            f"8 seats, budget {budget:,}: mean E2EL of FCFS", theirs[budget][1], seats8[budget]["fcfs_s"], 1, " s"
        )
    for budget in ends:
        there = "0 (no queue)" if budget == small else "not published"
        found.add(f"256 seats, budget {budget:,}: mean E2EL saved", there, seats256[budget]["e2el"], 1, "%")
    for budget, values in queue.items():
        found.add(f"all at once, budget {budget:,}: mean TTFT saved", "not published", values["ttft"], 1, "%")
    for budget, values in queue.items():
        found.add(f"all at once, budget {budget:,}: mean E2EL saved", "not published", values["e2el"], 1, "%")
    found.claim(
        "with 8 seats, shortest-first saves time at a budget of 2,048", above(seats8[small]["e2el"], [0.0] * seeds)
    )
    found.claim(
        "with 8 seats, that is gone at 65,536 (below a tenth of it)",
        max(seats8[large]["e2el"]) < 0.1 * min(seats8[small]["e2el"]),
    )
    found.claim(
        "with 256 seats nobody waits, and the order changes nothing (below 1%)",
        max(abs(v) for values in seats256.values() for v in values["e2el"]) < 1,
    )
    found.claim(
        "where the budget alone makes the queue, the gain in TTFT shrinks from 2,048 to 65,536",
        above(queue[small]["ttft"], queue[large]["ttft"]),
    )
    return found


if __name__ == "__main__":
    sys.exit(main(reproduce, __doc__, seeds=3))
