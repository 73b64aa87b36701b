"""Highest response ratio next against first come, first served and longest prefix match, where prompts share prefixes.

    python benchmarks/reproduce/hrrn_sessions.py

sgl-project/sglang, pull request 32911 (add the HRRN schedule policy), its table for a concurrency of 100.
"""

from __future__ import annotations

import sys

import numpy as np

from batchwright.config import EngineConfig
from batchwright.lab import RequestRecord, RunRecord, Workload, load_workload, run_arm, summarize
from reproduction import Reproduction, above, main, tell, times

POLICIES = {"fcfs": "no_evict", "lpm": "lpm", "hrrn": "hrrn"}
"""FCFS is the one that orders by arrival and is like the other two in all else: answers are one token, so what it
reserves is the prompt."""
PUBLISHED = {
    "mean": {"fcfs": "24.2", "lpm": "16.4", "hrrn": "7.5"},
    "p50": {"fcfs": "13.4", "lpm": "5.6", "hrrn": "4.5"},
    "p90": {"fcfs": "50.9", "lpm": "32.8", "hrrn": "9.6"},
    "p99": {"fcfs": "60.5", "lpm": "213.3", "hrrn": "55.5"},
}
INPUT = {"fcfs": "119,023", "lpm": "148,458", "hrrn": "166,135"}
USERS = 100
HEAVY = "turns=uniform(1,10),prompt=lognormal(600,2.0,30000)"
LOADS = {
    "light": ("turns=uniform(1,20),prompt=lognormal(600,1.0)", None),
    "heavy": (HEAVY, None),
    "heavy, all cached": (HEAVY, 60_000),
}
"""What a turn adds to what was said: about 1,000 tokens; or a median of 600 and a heavy tail, as what tools answer. And
blocks of 64 tokens: as many as the GPU holds, or more than all sessions need."""


def sessions(load: str, n: int, users: int, seed: int) -> Workload:
    """A user has sessions of several turns, one after the other."""
    spec = f"{LOADS[load][0]},output=1,prefix=2000,prefixes=10,think=exponential(5)"
    return load_workload(f"synthetic:rate=inf,n={n},{spec},seed={seed}").closed(users)


def config(policy: str, num_blocks: int | None) -> EngineConfig:
    """An engine that computes prompts only, with the same cache in each arm; None: as many blocks as the GPU holds."""
    return EngineConfig.parse(
        {
            "policy": policy,
            "backend": "sim:llama-3.1-8b@h100",
            "max_num_batched_tokens": 8192,
            "num_blocks": num_blocks,
            "block_size": 64,
            "prefix_cache": {"visible": "computed", "reuse": "uncached_first", "duplicates": "newest"},
        }
    )


def amid(run: RunRecord) -> list[RequestRecord]:
    """Requests that arrived between a tenth and nine tenths of the run, while all users are there."""
    start, end = 0.1 * run.duration_ns, 0.9 * run.duration_ns
    return [r for r in run.requests if start <= r.arrival_ns <= end and len(r.token_times_ns)]


def reproduce(seeds: int, quick: bool) -> Reproduction:
    """Three policies on two loads."""
    n, users = (30, 15) if quick else (300, USERS)
    found = Reproduction(
        name="hrrn_sessions",
        title="HRRN against FCFS and longest prefix match where prompts share prefixes",
        source="sgl-project/sglang, pull request 32911, description: table for conc=100",
        kind="order",
        setup=(
            f"{users} users at once, {n} sessions; a turn waits for the one before and 5 s on average; ten shared "
            "beginnings of 2,000 tokens",
            "loads: 1 to 20 turns that add 1,000 tokens each (light), and 1 to 10 turns that add a median of 600 "
            "with a heavy tail (heavy)",
            "Llama-3.1-8B on one H100 as an instance that computes prompts: answers of one token, 8,192 tokens a step; "
            "its pool holds half of the light load's sessions, and less of the heavy one's; then one that holds all",
        ),
        same=("a closed loop of 100, prompts that share prefixes, an instance for prompts alone, the policies' rules",),
        other=(
            "its requests are production traffic that is not published: lengths, turns, pauses and the share that the "
            "cache holds are ours, so three loads are run (of the same model, SGLang's issue 31954 has 96% of hits)",
            "its model is GLM-5.2 on 8 B200 for prompts, and 8 for decodes",
            "HRRN's waiting counts in seconds, there in prompt tokens computed meanwhile",
        ),
        seeds=seeds,
    )
    for load, (_, num_blocks) in LOADS.items():
        if quick and load != "heavy":
            continue
        ttft: dict[str, dict[str, list[float]]] = {figure: {} for figure in PUBLISHED}
        rates: dict[str, list[float]] = {}
        hits: dict[str, list[float]] = {}
        for seed in range(seeds):
            workload = sessions(load, n, users, seed)
            for arm, policy in POLICIES.items():
                tell(f"{load}, {arm}, seed {seed}")
                run = run_arm(config(policy, 700 if quick else num_blocks), workload, arm=arm, declared="exact")
                requests = amid(run)
                waits = np.array([r.token_times_ns[0] - r.arrival_ns for r in requests]) / 1e9
                shown = dict(zip(PUBLISHED, [waits.mean(), *np.percentile(waits, [50, 90, 99])], strict=True))
                for figure, value in shown.items():
                    ttft[figure].setdefault(arm, []).append(float(value))
                hits.setdefault(arm, []).append(100 * float(summarize(run)["cache_hit_rate"] or 0))
                rates.setdefault(arm, []).append(sum(r.num_prompt_tokens for r in requests) / (0.8 * run.duration_s))
        for figure, by_arm in ttft.items():
            for arm, values in by_arm.items():
                found.add(f"{load}, {figure} TTFT, {arm}", f"{PUBLISHED[figure][arm]} s", values, 2, " s")
        for arm in POLICIES:
            found.add(f"{load}, prompt tokens/s, {arm}", INPUT[arm], rates[arm], 0)
        for arm in POLICIES:
            found.add(f"{load}, cache hits, {arm}", "not published", hits[arm], 1, "%")
        mean, p99 = ttft["mean"], ttft["p99"]
        found.claim(f"{load}: mean TTFT of LPM below FCFS's", above(mean["fcfs"], mean["lpm"]))
        found.claim(f"{load}: mean TTFT of HRRN below FCFS's", above(mean["fcfs"], mean["hrrn"]))
        found.claim(f"{load}: mean TTFT of HRRN below LPM's", above(mean["lpm"], mean["hrrn"]))
        found.claim(f"{load}: p99 TTFT of LPM above FCFS's", above(p99["lpm"], p99["fcfs"]))
        no_worse = times(p99["hrrn"], p99["fcfs"]).mean < 1.1
        found.claim(f"{load}: p99 TTFT of HRRN no more than a tenth above FCFS's", no_worse)
        more = above(rates["lpm"], rates["fcfs"]) and above(rates["hrrn"], rates["fcfs"])
        found.claim(f"{load}: prompt tokens a second of LPM and HRRN above FCFS's", more)
    return found


if __name__ == "__main__":
    sys.exit(main(reproduce, __doc__, seeds=3))
