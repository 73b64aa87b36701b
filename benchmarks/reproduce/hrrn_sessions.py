"""Highest response ratio next against first come, first served and longest prefix match, where prompts share prefixes.

    python benchmarks/reproduce/hrrn_sessions.py

sgl-project/sglang, pull request 32911 (add the HRRN schedule policy), its table for a concurrency of 100.
"""

from __future__ import annotations

import sys

import numpy as np

from batchwright.config import EngineConfig
from batchwright.lab import RequestRecord, RunRecord, Workload, load_workload, run_arm, summarize
from reproduction import Reproduction, above, less, main, tell, times

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
POOLS = {"half": None, "all": 60_000}
"""Blocks of 16 tokens: what the GPU holds, about half of what the users' sessions come to; and more than all of it."""


def sessions(n: int, users: int, seed: int) -> Workload:
    """A user has sessions of 1 to 20 turns, one after the other; a turn adds about 1,000 tokens to what was said."""
    spec = "turns=uniform(1,20),prompt=lognormal(600,1.0),output=1,prefix=2000,prefixes=10,think=exponential(5)"
    return load_workload(f"synthetic:rate=inf,n={n},{spec},seed={seed}").closed(users)


def config(policy: str, num_blocks: int | None) -> EngineConfig:
    """An engine that computes prompts only, with the same cache in each arm."""
    return EngineConfig.parse(
        {
            "policy": policy,
            "backend": "sim:llama-3.1-8b@h100",
            "max_num_batched_tokens": 8192,
            "num_blocks": num_blocks,
            "block_size": 16,
            "prefix_cache": {"visible": "computed", "reuse": "uncached_first", "duplicates": "newest"},
        }
    )


def amid(run: RunRecord) -> list[RequestRecord]:
    """Requests that arrived between a tenth and nine tenths of the run, while all users are there."""
    start, end = 0.1 * run.duration_ns, 0.9 * run.duration_ns
    return [r for r in run.requests if start <= r.arrival_ns <= end and len(r.token_times_ns)]


def reproduce(seeds: int, quick: bool) -> Reproduction:
    """Three policies, and two sizes of the cache."""
    n, users = (40, 20) if quick else (400, USERS)
    pools = {"half": 6000} if quick else POOLS
    found = Reproduction(
        name="hrrn_sessions",
        title="HRRN against FCFS and longest prefix match on sessions that share prefixes",
        source="sgl-project/sglang, pull request 32911, description: table for conc=100",
        kind="order",
        setup=(
            f"{users} users at once, each with sessions of 1 to 20 turns; a turn waits for the one before, and 5 s on "
            "average; ten shared beginnings of 2,000 tokens, and about 1,000 more with each turn",
            "Llama-3.1-8B on one H100 as an instance that computes prompts: answers of one token, 8,192 tokens a step; "
            "a pool that holds about half of all sessions, and one that holds all",
        ),
        same=("a closed loop of 100, prompts that share prefixes, an instance for prompts alone, the policies' rules",),
        other=(
            "its requests are production traffic that is not published: lengths, turns, pauses and the share that the "
            "cache holds are ours",
            "its model is GLM-5.2 on 8 B200 for prompts, and 8 for decodes",
            "HRRN's waiting counts in seconds, there in prompt tokens computed meanwhile",
        ),
        seeds=seeds,
    )
    for pool, num_blocks in pools.items():
        ttft: dict[str, dict[str, list[float]]] = {figure: {} for figure in PUBLISHED}
        rates: dict[str, list[float]] = {}
        hits: dict[str, list[float]] = {}
        for seed in range(seeds):
            load = sessions(n, users, seed)
            for arm, policy in POLICIES.items():
                tell(f"pool {pool}, {arm}, seed {seed}")
                run = run_arm(config(policy, num_blocks), load, arm=arm, declared="exact")
                requests = amid(run)
                waits = np.array([r.token_times_ns[0] - r.arrival_ns for r in requests]) / 1e9
                shown = dict(zip(PUBLISHED, [waits.mean(), *np.percentile(waits, [50, 90, 99])], strict=True))
                for figure, value in shown.items():
                    ttft[figure].setdefault(arm, []).append(float(value))
                hits.setdefault(arm, []).append(100 * float(summarize(run)["cache_hit_rate"] or 0))
                rates.setdefault(arm, []).append(sum(r.num_prompt_tokens for r in requests) / (0.8 * run.duration_s))
        main_pool = pool == "half"
        for figure, by_arm in ttft.items():
            for arm, values in by_arm.items():
                theirs = f"{PUBLISHED[figure][arm]} s" if main_pool else "not published"
                found.add(f"pool of {pool}, {figure} TTFT, {arm}", theirs, values, 2, " s")
        for arm in POLICIES:
            theirs = f"{INPUT[arm]}" if main_pool else "not published"
            found.add(f"pool of {pool}, prompt tokens/s, {arm}", theirs, rates[arm], 0)
        for arm in POLICIES:
            found.add(f"pool of {pool}, cache hits, {arm}", "not published", hits[arm], 1, "%")
        if main_pool:
            mean, p99 = ttft["mean"], ttft["p99"]
            for arm in ("lpm", "hrrn"):
                theirs = {"lpm": "32%", "hrrn": "69%"}[arm]
                found.add(
                    f"mean TTFT less than FCFS's, {arm}",
                    theirs,
                    [100 * v for v in less(mean["fcfs"], mean[arm]).values],
                    0,
                    "%",
                )
            found.add("p99 TTFT of LPM over FCFS's", "3.5x", times(p99["lpm"], p99["fcfs"]), 2, "x")
            found.add("p99 TTFT of HRRN over FCFS's", "0.92x", times(p99["hrrn"], p99["fcfs"]), 2, "x")
            found.claim("mean TTFT: HRRN below LPM", above(mean["lpm"], mean["hrrn"]))
            found.claim("mean TTFT: LPM below FCFS", above(mean["fcfs"], mean["lpm"]))
            found.claim("p99 TTFT: LPM far above FCFS", above(p99["lpm"], p99["fcfs"]))
            found.claim("p99 TTFT: HRRN below LPM", above(p99["lpm"], p99["hrrn"]))
            found.claim(
                "p99 TTFT: HRRN no worse than FCFS (below 1.1 times)", times(p99["hrrn"], p99["fcfs"]).mean < 1.1
            )
            found.claim(
                "prompt tokens a second: HRRN above LPM, LPM above FCFS",
                above(rates["hrrn"], rates["lpm"]) and above(rates["lpm"], rates["fcfs"]),
            )
    return found


if __name__ == "__main__":
    sys.exit(main(reproduce, __doc__, seeds=3))
