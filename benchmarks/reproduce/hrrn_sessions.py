"""Highest response ratio next against first come, first served and longest prefix match, where prompts share prefixes.

    python benchmarks/reproduce/hrrn_sessions.py

sgl-project/sglang, pull request 32911 (add the HRRN schedule policy), its table for a concurrency of 100; the rules by
commit 00550cd, python/sglang/srt/managers/schedule_policy.py.

Its requests are production traffic, of which nothing is published but the table. Five loads are run. The first three
are of one application: what a turn adds is of one distribution, and what is cached grows with the turns, so that the
longest match first is near the shortest remainder first. The other two (apps) were designed after those were known, and
written down here before they were run once. In them match and remainder do not depend on each other:

- by Little's law 100 requests at once take 100 · (mean prompt) / (prompt tokens a second) seconds each, which is the
  mean TTFT and what comes after it. The table's four rows (FCFS, LPM, HRRN, and DFS-weight with 19.0 s and 141,790
  tokens/s) are fitted best by a mean prompt of 66,000 tokens and 30 s from the first token to the next request. Here
  both are about a quarter of that, 16,500 tokens and 7.5 s, which asks for as many prompt tokens a second.
- one deployment serves many applications. Four groups of five have system prompts of 250, 1,000, 4,000 and 16,000
  tokens, and sessions of 1 to 12 turns whose own parts are alike in all: a median of 600 tokens with a heavy tail, as
  what tools answer. Who has the longest match has no shorter remainder than others.
- one request in ten is alone and matches nothing (of the same model, SGLang's issue 31954 has 5% of cold requests,
  which wait longest under LPM), with a median of 2,000 tokens.
- ``hrrn`` runs without its constant (``base_tokens=0``) in all loads: the source has none.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from batchwright.config import EngineConfig
from batchwright.lab import Workload, ab, load_workload
from reproduction import Reproduction, above, main, paired, spread, tell, times

POLICIES = {"fcfs": "no_evict", "lpm": "lpm", "hrrn": "hrrn:base_tokens=0"}
"""FCFS is the one that orders by arrival and is like the other two in all else: answers are one token, so what it
reserves is the prompt."""
PUBLISHED = {
    "mean": {"fcfs": "24.2", "lpm": "16.4", "hrrn": "7.5"},
    "median": {"fcfs": "13.4", "lpm": "5.6", "hrrn": "4.5"},
    "p90": {"fcfs": "50.9", "lpm": "32.8", "hrrn": "9.6"},
    "p99": {"fcfs": "60.5", "lpm": "213.3", "hrrn": "55.5"},
}
Figures = dict[str, list[float]]
"""By arm, one a seed."""
INPUT = {"fcfs": "119,023", "lpm": "148,458", "hrrn": "166,135"}
USERS = 100
SYSTEM_PROMPTS = (250, 1000, 4000, 16_000)  # tokens


@dataclass(frozen=True)
class Load:
    """What is offered, and to how large a pool.

    Attributes:
        sessions: turns and what each adds: about 1,000 tokens; or a median of 600 and a heavy tail, as what tools
            answer.
        num_blocks: of 64 tokens; None: as many as the GPU holds.
        is_mixed: whether there are applications with system prompts of four lengths, and requests that are alone; else
            ten shared beginnings of 2,000 tokens.
    """

    sessions: str
    num_blocks: int | None = None
    is_mixed: bool = False

    def text(self, n: int) -> str:
        """Its specification, with so many sessions."""
        if not self.is_mixed:
            return f"synthetic:rate=inf,n={n},{self.sessions},output=1,prefix=2000,prefixes=10"
        few = n // len(SYSTEM_PROMPTS)
        one = f"synthetic:rate={few / 100},n={few},{self.sessions},output=1,prefixes=5"
        shared = [f"{one},prefix={tokens},seed={100 * number}" for number, tokens in enumerate(SYSTEM_PROMPTS, start=1)]
        alone = f"synthetic:rate={3 * few / 100},n={3 * few},prompt=lognormal(2000,1.5,30000),output=1"
        return " + ".join([*shared, alone])

    def workload(self, n: int, users: int) -> Workload:
        """So many sessions, of so many users at once; each has one session after the other."""
        return load_workload(self.text(n)).closed(users)


HEAVY = "turns=uniform(1,10),prompt=lognormal(600,2.0,30000),think=exponential(5)"
APPS = "turns=uniform(1,12),prompt=lognormal(600,1.8,30000),think=exponential(10)"
"""10 s between turns are 7.5 s a request: three in four are not the first of a session."""
ALL = 60_000  # blocks: more than all sessions need
LOADS = {
    "light": Load("turns=uniform(1,20),prompt=lognormal(600,1.0),think=exponential(5)"),
    "heavy": Load(HEAVY),
    "heavy, all cached": Load(HEAVY, ALL),
    "apps": Load(APPS, is_mixed=True),
    "apps, all cached": Load(APPS, ALL, is_mixed=True),
}


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


def reproduce(seeds: int, quick: bool, jobs: int) -> Reproduction:
    """Three policies on each load."""
    n, mixed, users = (30, 32, 15) if quick else (300, 400, USERS)
    found = Reproduction(
        name="hrrn_sessions",
        title="HRRN against FCFS and longest prefix match where prompts share prefixes",
        source="sgl-project/sglang, pull request 32911, description: table for conc=100",
        kind="order",
        setup=(
            f"{users} users at once, {n} sessions; a turn waits for the one before and 5 s on average; the first and "
            "the last tenth of the requests do not count",
            "loads of one application, ten shared beginnings of 2,000 tokens: 1 to 20 turns that add 1,000 tokens each "
            "(light), and 1 to 10 turns that add a median of 600 with a heavy tail (heavy)",
            f"loads of many (apps), {mixed} sessions: four groups of five with system prompts of 250 to 16,000 tokens, "
            "1 to 12 turns that add a median of 600 with a heavy tail, whatever the group, 10 s between turns; one "
            "request in ten is alone, with a median of 2,000 tokens and no match",
            "Llama-3.1-8B on one H100 as an instance that computes prompts: answers of one token, 8,192 tokens a step; "
            "its pool holds half of the light load's sessions, and less of the others'; then one that holds all",
        ),
        same=("a closed loop of 100, prompts that share prefixes, an instance for prompts alone, the policies' rules",),
        other=(
            "its requests are production traffic that is not published: lengths, turns, pauses and the share that the "
            "cache holds are ours, so five loads are run (of the same model, SGLang's issue 31954 has 96% of hits)",
            "in the loads of many applications the mean prompt and the time between requests are a quarter of what the "
            "source's throughputs and mean TTFTs come to by Little's law, 66,000 tokens and 30 s",
            "its model is GLM-5.2 on 8 B200 for prompts, and 8 for decodes",
            "HRRN's waiting counts in seconds, there in prompt tokens computed meanwhile; and there requests that "
            "share an uncached prefix with one before them go last",
        ),
        seeds=seeds,
    )
    for load, of in LOADS.items():
        if quick and load not in ("heavy", "apps"):
            continue
        tell(load)
        configs = {arm: config(policy, 700 if quick else of.num_blocks) for arm, policy in POLICIES.items()}
        workload = of.workload(mixed if of.is_mixed else n, users)
        comparison = ab(configs, workload, seeds=seeds, jobs=jobs, declared="exact", warmup="10%", cooldown="10%")
        ttft = {
            figure: {arm: spread(comparison, arm, f"{figure}_ttft_ms", 1e3) for arm in POLICIES} for figure in PUBLISHED
        }
        tokens = {}
        for arm in POLICIES:
            whole, answers = (spread(comparison, arm, f"{which}_throughput") for which in ("total_token", "output"))
            tokens[arm] = list(paired(whole, answers, lambda a, b: a - b).values)
        for figure, by_arm in ttft.items():
            for arm, values in by_arm.items():
                found.add(f"{load}, {figure} TTFT, {arm}", f"{PUBLISHED[figure][arm]} s", values, 2, " s")
        for arm in POLICIES:
            found.add(f"{load}, prompt tokens/s, {arm}", INPUT[arm], tokens[arm], 0)
        for arm in POLICIES:
            found.add(
                f"{load}, cache hits, {arm}", "not published", spread(comparison, arm, "cache_hit_rate", 0.01), 1, "%"
            )
        claims(found, load, ttft["mean"], ttft["p99"], tokens)
    return found


def claims(found: Reproduction, load: str, mean: Figures, p99: Figures, tokens: Figures) -> None:
    """What the table says of mean and p99, in full, and of prompt tokens a second."""
    found.claim(f"{load}: mean TTFT of LPM below FCFS's", above(mean["fcfs"], mean["lpm"]))
    found.claim(f"{load}: mean TTFT of HRRN below FCFS's", above(mean["fcfs"], mean["hrrn"]))
    found.claim(f"{load}: mean TTFT of HRRN below LPM's", above(mean["lpm"], mean["hrrn"]))
    found.claim(f"{load}: p99 TTFT of LPM above FCFS's", above(p99["lpm"], p99["fcfs"]))
    found.claim(f"{load}: p99 TTFT of HRRN below LPM's", above(p99["lpm"], p99["hrrn"]))
    no_worse = times(p99["hrrn"], p99["fcfs"]).high < 1.1
    found.claim(f"{load}: p99 TTFT of HRRN no more than a tenth above FCFS's", no_worse)
    found.claim(f"{load}: prompt tokens a second of LPM above FCFS's", above(tokens["lpm"], tokens["fcfs"]))
    found.claim(f"{load}: prompt tokens a second of HRRN above FCFS's", above(tokens["hrrn"], tokens["fcfs"]))
    found.claim(f"{load}: prompt tokens a second of HRRN above LPM's", above(tokens["hrrn"], tokens["lpm"]))


if __name__ == "__main__":
    sys.exit(main(reproduce, __doc__, seeds=3))
