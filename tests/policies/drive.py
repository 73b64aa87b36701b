"""Jobs through a scheduler on a clock of its own: what tests of single policies share."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from batchwright import Limits, Policy, PrefixCache, Request, SamplingParams, Scheduler
from batchwright.resolve import resolve_policy
from toolbox import check_empty, check_whole, prompt_of

STEP_S, PROMPT_TOKEN_S, DECODE_S = 0.010, 0.00005, 0.00005


def seconds(num_prefill_tokens: int, num_decodes: int) -> float:
    """How long a step takes here: about an 8B model's on one GPU."""
    return STEP_S + PROMPT_TOKEN_S * num_prefill_tokens + DECODE_S * num_decodes


@dataclass
class Job:
    """A request to come: ``prompt`` is a length or token ids, ``output`` how long it really runs, hidden."""

    name: str
    prompt: int | Sequence[int]
    output: int
    at: float = 0.0
    max_tokens: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    def request(self) -> Request:
        tokens = prompt_of(self.name, self.prompt) if isinstance(self.prompt, int) else list(self.prompt)
        params = SamplingParams(max_tokens=self.max_tokens or self.output, ignore_eos=True)
        return Request(self.name, tokens, params, arrival_ns=round(self.at * 1e9), **self.fields)


@dataclass
class Outcome:
    """What became of jobs."""

    scheduler: Scheduler
    requests: dict[str, Request] = field(default_factory=dict)
    token_times: dict[str, list[float]] = field(default_factory=dict)
    batches: list[list[tuple[str, int]]] = field(default_factory=list)
    admissions: list[tuple[int, str]] = field(default_factory=list)
    evictions: list[tuple[int, str]] = field(default_factory=list)
    num_prefill_tokens: int = 0

    def latency(self, name: str) -> float:
        return self.token_times[name][-1] - self.requests[name].arrival_s

    def latencies(self) -> list[float]:
        return [self.latency(name) for name in self.requests]

    @property
    def mean_latency(self) -> float:
        return sum(self.latencies()) / len(self.requests)

    def first_token(self, name: str) -> float:
        return self.token_times[name][0] - self.requests[name].arrival_s

    def gaps(self) -> list[float]:
        return [b - a for times in self.token_times.values() for a, b in pairwise(times)]

    @property
    def num_recomputed(self) -> int:
        return sum(r.num_recomputed for r in self.requests.values())


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def make_scheduler(
    policy: Policy | Mapping[str, Any],
    *,
    S: int = 8,  # noqa: N803 - the scenarios' names
    T: int = 512,  # noqa: N803
    P: int = 1000,  # noqa: N803
    bs: int = 16,
    residents: int | None = None,
    **settings: Any,
) -> Scheduler:
    """A scheduler with the settings that the policy wants."""
    active = resolve_policy(policy)
    wanted = active.defaults(Limits(max_num_seqs=S, max_num_batched_tokens=T))
    cache = {key.partition(".")[2]: value for key, value in wanted.items() if key.startswith("prefix_cache.")}
    residents = residents if residents is not None else wanted.get("max_num_residents")
    limits = Limits(max_num_seqs=S, max_num_batched_tokens=T, max_num_residents=residents)
    settings.setdefault("prefix_cache", PrefixCache(**cache))
    settings.setdefault("predict_s", lambda batch: seconds(*_split(batch)))
    return Scheduler(active, num_blocks=P, block_size=bs, limits=limits, **settings)


def _split(batch: Any) -> tuple[int, int]:
    counts = batch.num_scheduled.tolist()
    decodes = sum(r.is_decode for r in batch._requests)
    return sum(counts) - decodes, decodes


def run(
    policy: Policy | Mapping[str, Any],
    jobs: Sequence[Job],
    *,
    until: float | None = None,
    watch: Callable[[Outcome, float], None] | None = None,
    max_steps: int = 20_000,
    **settings: Any,
) -> Outcome:
    """Run jobs to their end, or until a time; ``watch`` is called after every step. Checks for leaks at the end."""
    scheduler = make_scheduler(policy, **settings)
    outcome = Outcome(scheduler)
    to_come = sorted(jobs, key=lambda job: job.at)[::-1]
    now = 0.0
    for _ in range(max_steps):
        if until is not None and now >= until:
            check_whole(scheduler)
            return outcome
        if not scheduler.has_unfinished():
            if not to_come:
                check_empty(scheduler)
                assert scheduler.num_observer_faults == 0
                return outcome
            now = max(now, to_come[-1].at)
        while to_come and to_come[-1].at <= now:
            job = to_come.pop()
            request = outcome.requests[job.name] = job.request()
            outcome.token_times[job.name] = []
            scheduler.add(request, num_output_tokens=job.output)
        residents = set(scheduler.running)
        batch = scheduler.schedule(round(now * 1e9))
        step = scheduler.step
        outcome.batches.append([(r.request_id, r.num_scheduled) for r in step.batch])
        outcome.admissions += [(step.index, r.request_id) for r in step.batch if r not in residents]
        outcome.evictions += [(step.index, r.request_id) for r in step.preempted]
        outcome.num_prefill_tokens += step.num_prefill_tokens
        now += seconds(step.num_prefill_tokens, step.num_decodes)
        scheduler.update(batch, [7] * sum(batch.samples.tolist()), round(now * 1e9))
        for request in step.sampled:
            outcome.token_times[request.request_id].append(now)
        if watch is not None:
            watch(outcome, now)
    raise AssertionError(f"not done after {max_steps} steps: {len(scheduler.waiting)} waiting")


def heavy_tail(num: int, seed: int = 0, *, rate: float = 2.0, prompt: int = 64, long: int = 400) -> list[Job]:
    """Poisson arrivals; nine short answers to one long one."""
    rng = random.Random(seed)
    at = 0.0
    jobs = []
    for k in range(num):
        at += rng.expovariate(rate)
        output = long if rng.random() < 0.1 else rng.randint(5, 25)
        jobs.append(Job(f"j{k}", prompt, output, at, max_tokens=2 * long))
    return jobs
