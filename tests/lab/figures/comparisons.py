"""Comparisons to draw: made by hand, and by the simulator."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from batchwright.config import EngineConfig
from batchwright.lab import Comparison, ab, compare, load_workload
from batchwright.lab.records import RequestRecord, StepRecord
from batchwright.lab.run_record import RunLimits, RunRecord
from batchwright.lab.window import Window
from batchwright.request import SLO
from lab.hand import request, run, step

CLIENTS = ("gold", "silver", "a client of a long name")


def arm(
    name: str, seed: int = 0, *, num: int = 80, shift: float = 1.0, tail: float = 0.3, tokens: int = 6, **values: Any
) -> RunRecord:
    """An arm of ``num`` requests, whose gaps are longer by ``shift``, and steps that say something."""
    load, own = np.random.default_rng(seed), np.random.default_rng([len(name), seed, round(shift * 100)])
    requests: list[RequestRecord] = []
    for i in range(num):
        gaps = load.lognormal(np.log(20), tail, size=tokens) * shift * np.exp(own.normal(0, 0.05, tokens))
        fields: dict[str, Any] = {"slo": SLO(ttft_s=0.03, tpot_s=0.02), "client_id": CLIENTS[i % 3]}
        times = (50 * i + np.cumsum(gaps)).tolist()
        requests.append(request(i, arrival_ms=50 * i, times_ms=times, **(fields | values)))
    return run(requests, steps(requests), arm=name, seed=seed, limits=RunLimits(8, 256, None, 4096, 100, 16))


def steps(requests: list[RequestRecord]) -> list[StepRecord]:
    ends = sorted(time / 1e6 for each in requests for time in each.token_times_ns)[::7]
    found = []
    for index, end in enumerate(ends):
        counts = {"num_waiting": index % 5, "num_running": index % 8, "free_blocks": 100 - index % 90}
        found.append(step(index, end - 5, end, num_prefill_tokens=index % 200, num_decodes=index % 8, **counts))
    return found


@cache
def pair() -> Comparison:
    """Two arms of one seed."""
    return compare([arm("prefill_first"), arm("stall_free", shift=1.4)])


@cache
def long_tails() -> Comparison:
    """Two arms with many values, some of them far from the others."""
    return compare([arm("a", num=700, tail=2.5), arm("b", num=700, tail=2.5, shift=1.5)])


@cache
def seeded() -> Comparison:
    """Two arms of three seeds."""
    return compare([arm(name, seed, shift=shift) for name, shift in (("a", 1.0), ("b", 1.3)) for seed in (0, 1, 2)])


@cache
def windowed() -> Comparison:
    """Two arms whose first and last requests do not count, which took far longer than the others."""
    found = []
    for name, shift in (("a", 1.0), ("b", 1.3)):
        made = arm(name, shift=shift)
        ends = [
            request(i, arrival_ms=50 * i, times_ms=[50 * i + 9000, 50 * i + 9900]) if i < 8 or i >= 72 else one
            for i, one in enumerate(made.requests)
        ]
        whole = run(ends, made.steps, arm=name, limits=made.limits)
        whole.window = Window("10%", "10%")
        found.append(whole)
    return compare(found)


@cache
def crowd() -> Comparison:
    """Seven arms with names that nobody should give."""
    names = (
        "base",
        "$x_1$ & 100% <script>alert(1)</script>",
        "策略",
        "_",
        "stall_free:chunk_size=512,a_very_long_parameter=0.123456789,another_one_that_is_longer_still=12",
        "C:\\new\\table ~ ^ {braces} #5",
        "f",
    )
    return compare([arm(name, shift=1 + 0.1 * place) for place, name in enumerate(names)])


@cache
def single() -> Comparison:
    """One arm."""
    return compare([arm("alone")])


@cache
def troubled() -> Comparison:
    """Arms in which requests were refused, failed, aborted or never ran, and one that took no step."""
    a = arm("a", num=30)
    b = arm("b", num=30)
    for place, status in ((3, "refused"), (5, "failed"), (8, "aborted"), (11, "unfinished")):
        record = b.requests[place]
        b.requests[place] = replace(
            request(place, arrival_ms=record.arrival_ns / 1e6, status=status, error="no <b>room</b>"),
            finish_ns=None if status in ("refused", "unfinished") else record.arrival_ns + 10_000_000,
        )
    c = arm("c", num=30)
    nothing = [replace(request(i, arrival_ms=r.arrival_ns / 1e6), slo=r.slo) for i, r in enumerate(c.requests)]
    return compare([a, b, replace(c, requests=nothing, steps=[], batches=c.batches[:0])])


@cache
def simulated() -> Comparison:
    """Two arms on the simulator, with evictions."""
    workload = load_workload("synthetic:rate=inf,n=40,prompt=uniform(60,200),output=uniform(20,60),clients=3,seed=3")
    rows = tuple(replace(row, slo=SLO(ttft_s=0.1, tpot_s=0.05)) for row in workload.rows)
    configs = {name: EngineConfig(policy=name, num_blocks=60) for name in ("vllm_v1", "stall_free")}
    return ab(configs, replace(workload, rows=rows))


EVERY = (pair, long_tails, seeded, crowd, single, troubled, simulated)
