"""VTC: two clients that both ask for more than there is get equal service, whatever they send; under FCFS they do not.

    python benchmarks/reproduce/vtc_clients.py

Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, section 5.2 and Figure 3, and the artifact's suite
``overload`` (Ying1123/VTC-artifact, commit 192c2e2, fair_bench/exp_suite.py).

One comparison a seed: when each client starts is all that is drawn, and no specification of a workload draws it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from batchwright.config import EngineConfig
from batchwright.lab import RunRecord, Workload, WorkloadRow, ab
from reproduction import Reproduction, above, main, tell, times

MACHINE = Path(__file__).parent / "machines" / "llama-2-7b-a10g.yaml"
RATES = {"c0": 1.5, "c1": 3.0}
LENGTH = 256  # of each prompt and of each output
POOL = 10_000  # tokens: the artifact's --num-token
INPUT_WEIGHT, OUTPUT_WEIGHT = 1, 2
BOUND = 2 * max(INPUT_WEIGHT * LENGTH, OUTPUT_WEIGHT * POOL)
"""Theorem 4.4: by how much the service of two clients can differ while both have requests waiting."""


def two_clients(duration_s: float, seed: int) -> Workload:
    """Each client's requests at equal gaps, from a random start within the first gap."""
    rng = np.random.default_rng(seed)
    rows = []
    for client, rate in RATES.items():
        start = rng.random() / rate
        rows += [
            WorkloadRow(
                arrival_ns=round(1e9 * (start + number / rate)),
                num_prompt_tokens=LENGTH,
                num_output_tokens=LENGTH,
                max_tokens=LENGTH,
                client_id=client,
            )
            for number in range(int(rate * duration_s))
        ]
    rows.sort(key=lambda row: row.arrival_ns)
    name = f"two clients, seed {seed}"
    return Workload(name=name, rows=tuple(rows), source=name)


def service(run: RunRecord, client: str, times_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """What a client was served by each of these times: prompt tokens when they are admitted, outputs as they come."""
    admitted = [r for r in run.requests if r.client_id == client and r.first_scheduled_ns is not None]
    prompts = np.sort([r.first_scheduled_ns for r in admitted if r.first_scheduled_ns is not None])
    outputs = np.sort(np.concatenate([np.asarray(r.token_times_ns, dtype=np.int64) for r in admitted]))
    prompt_tokens = INPUT_WEIGHT * LENGTH * np.searchsorted(prompts, 1e9 * times_s, side="right")
    served: NDArray[np.int64] = prompt_tokens + OUTPUT_WEIGHT * np.searchsorted(outputs, 1e9 * times_s, side="right")
    return served


def first_token_s(run: RunRecord, client: str, until_s: float) -> float:
    """Mean response time of a client's requests: to the first token, of those that got it before arrivals end."""
    waits = [
        (r.token_times_ns[0] - r.arrival_ns) / 1e9
        for r in run.requests
        if r.client_id == client and len(r.token_times_ns) and r.token_times_ns[0] <= 1e9 * until_s
    ]
    return float(np.mean(waits))


def reproduce(seeds: int, quick: bool, jobs: int) -> Reproduction:
    """Both policies on the same two clients."""
    duration_s = 60.0 if quick else 360.0
    found = Reproduction(
        name="vtc_clients",
        title="VTC: service of two overloading clients, at 1.5 and 3 requests/s",
        source="Sheng et al., Fairness in Serving Large Language Models, OSDI 2024, section 5.2, Figure 3, Theorem "
        "4.4; its artifact, Ying1123/VTC-artifact at 192c2e2, suite overload",
        kind="direction",
        setup=(
            f"two clients at 1.5 and 3 requests/s in equal gaps for {duration_s:.0f} s, prompts and outputs of 256 "
            "tokens; Llama-2-7b on an A10G, 10,000 tokens of KV",
            "service: a prompt token counts 1, an output token 2; compared from 0 s to the last arrival, while both "
            "clients wait",
        ),
        same=(
            "rates, lengths, duration, pool, weights, model; requests are taken only if room for their whole answer is "
            "left, so nobody is evicted",
        ),
        other=(
            "prompts share steps with decodes; there a step is of prompts or of decodes",
            "room is reserved for prompt and answer at once; there for the largest sum that running requests come to",
            "the A10G's constants are guessed from its datasheet",
        ),
        seeds=seeds,
    )
    common = {
        "backend": f"sim:{MACHINE}",
        "num_blocks": POOL // 16,
        "block_size": 16,
        "prefix_cache": {"enabled": False},
    }
    policies = {"fcfs": "no_evict", "vtc": {"admission": "vtc", "reservation": "no_evict"}}
    configs = {name: EngineConfig.parse({**common, "policy": policy}) for name, policy in policies.items()}
    at_s = np.linspace(0, duration_s, 361)
    half = len(at_s) // 2
    figures: dict[str, dict[str, list[float]]] = {arm: {} for arm in configs}
    for seed in range(seeds):
        tell(f"seed {seed}")
        comparison = ab(configs, two_clients(duration_s, seed), seed=seed, jobs=jobs)
        for run in comparison.runs:
            few, many = (service(run, client, at_s) for client in RATES)
            apart = np.abs(many - few)
            values = {
                "end": apart[-1],
                "most": apart.max(),
                "growth": apart[half:].max() / max(apart[:half].max(), 1.0),
                "ratio": many[-1] / few[-1],
                "few_s": first_token_s(run, "c0", duration_s),
                "many_s": first_token_s(run, "c1", duration_s),
            }
            for name, value in values.items():
                figures[run.arm].setdefault(name, []).append(float(value))
    fcfs, vtc = figures["fcfs"], figures["vtc"]
    found.add("FCFS: service of the client at 3/s over that at 1.5/s", "2 (as they send)", fcfs["ratio"])
    found.add("VTC: the same", "1", vtc["ratio"])
    found.add("FCFS: difference of service at the end", "grows without bound (Figure 3)", fcfs["end"], 0)
    found.add("VTC: the same", "does not grow (Figure 3)", vtc["end"], 0)
    found.add("FCFS: largest difference, second half over first", "2 (a straight line)", fcfs["growth"])
    found.add("VTC: the same", "about 1", vtc["growth"])
    found.add("VTC: largest difference", f"at most {BOUND:,} (Theorem 4.4)", vtc["most"], 0)
    found.add("FCFS: mean time to the first token, client at 1.5/s", "not published", fcfs["few_s"], 1, " s")
    found.add("VTC: the same", "not published", vtc["few_s"], 1, " s")
    found.add("FCFS: mean time to the first token, client at 3/s", "not published", fcfs["many_s"], 1, " s")
    found.add("VTC: the same", "not published", vtc["many_s"], 1, " s")
    found.claim("the difference of service at the end is less under VTC", above(fcfs["end"], vtc["end"]))
    found.claim("under VTC it stays within the bound of Theorem 4.4", max(vtc["most"]) <= BOUND)
    found.claim(
        "it grows with time under FCFS, and not under VTC", min(fcfs["growth"]) > 1.5 > 1.25 > max(vtc["growth"])
    )
    found.claim(
        "FCFS serves in proportion to what is sent, VTC both alike (to a tenth)",
        all(abs(r - 2) < 0.2 for r in fcfs["ratio"]) and all(abs(r - 1) < 0.1 for r in vtc["ratio"]),
    )
    found.claim("who sends less waits less under VTC than under FCFS", times(vtc["few_s"], fcfs["few_s"]).high < 1)
    return found


if __name__ == "__main__":
    sys.exit(main(reproduce, __doc__))
