"""What a run's load was like: who waited, how full the KV pool was, how near the arm came to its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.run_record import RunRecord
from batchwright.lab.step_records import column
from batchwright.lab.window import measured

GROWTH = 1.5
"""Backlog in the last quarter of the arrivals over that in the first, from which on it counts as growing."""

CONTENTION = 0.9
"""Share of time over the second half of the arrivals with somebody left out, from which on an arm cannot keep up."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one run, or the mean of several.

    Attributes:
        waited: share of steps after which somebody waited; of a run with a window, of the steps in it.
        kv_full: share of steps that evicted somebody, or left fewer free blocks than an average prompt takes; likewise.
        utilization: estimated share of the arm's capacity, of all its replicas, that the workload asks for; None where
            it cannot be told.
        overloaded: a backlog built up and was never worked off while requests arrived; of several runs, in most.
        arrival_span_s: seconds between the first and the last arrival.
    """

    waited: float
    kv_full: float
    utilization: float | None
    overloaded: bool
    arrival_span_s: float

    @classmethod
    def of(cls, run: RunRecord) -> Load:
        """The load of a run."""
        arrivals = [r.arrival_ns for r in run.requests]
        # Users of a closed loop wait for their answers: they cannot offer more than the arm can do.
        closed = run.workload.get("arrivals") == "closed"
        counted = measured(run)
        return cls(
            waited=_share(column(counted.steps, "num_waiting") > 0),
            kv_full=_kv_full(counted),
            utilization=None if closed else _utilization(run),
            overloaded=not closed and _overloaded(run),
            arrival_span_s=(max(arrivals) - min(arrivals)) / 1e9 if arrivals else 0.0,
        )

    @classmethod
    def mean(cls, loads: Sequence[Load]) -> Load:
        """Of the runs of several seeds."""
        if len(loads) == 1:
            return loads[0]
        known = [load.utilization for load in loads if load.utilization is not None]
        return cls(
            waited=fmean(load.waited for load in loads),
            kv_full=fmean(load.kv_full for load in loads),
            utilization=fmean(known) if known else None,
            overloaded=sum(load.overloaded for load in loads) * 2 > len(loads),
            arrival_span_s=fmean(load.arrival_span_s for load in loads),
        )


def _share(flags: NDArray[np.bool_]) -> float:
    return float(flags.mean()) if len(flags) else 0.0


def _kv_full(run: RunRecord) -> float:
    lengths = [r.num_prompt_tokens for r in run.requests if r.status != "refused"]
    if not lengths or not run.steps:
        return 0.0
    prompt_blocks = -(-sum(lengths) // (len(lengths) * run.limits.block_size))
    return _share((column(run.steps, "num_preempted") > 0) | (column(run.steps, "free_blocks") < prompt_blocks))


def _utilization(run: RunRecord) -> float | None:
    """Arrival rate times the time that a request takes of a full batch.

    At saturation a request costs its share of the steps' fixed time, one in ``max_num_batched_tokens`` for each prompt
    token that the cache does not hold and one in the largest batch of decodes for each output token, and the time that
    each of these tokens adds to a step.
    """
    ran = [r for r in run.requests if r.status == "finished"]
    if len(ran) < 2 or len(run.steps) < 2:
        return None
    span_ns = max(r.arrival_ns for r in ran) - min(r.arrival_ns for r in ran)
    if not span_ns:
        return None
    base, per_prompt, per_output = _step_costs(run)
    prompt = sum(r.num_prompt_tokens - r.num_cached_tokens for r in ran) / len(ran)
    output = sum(r.num_output_tokens for r in ran) / len(ran)
    limits = run.limits
    held = sum(r.num_prompt_tokens + r.num_output_tokens / 2 for r in ran) / len(ran)
    largest = min(
        limits.max_num_seqs,
        limits.max_num_residents or limits.max_num_seqs,
        max(1.0, limits.num_blocks * limits.block_size / held),
    )
    request_ns = prompt * (per_prompt + base / limits.max_num_batched_tokens) + output * (per_output + base / largest)
    return float(request_ns * (len(ran) - 1) / span_ns / run.num_replicas)


def _step_costs(run: RunRecord) -> tuple[float, float, float]:
    """Nanoseconds of a step, of a prompt token and of a decode: a step takes a + b * prompt tokens + c * decodes.

    a and c are fitted to steps of decodes only, b is what prompts add to that. One fit of all would let a decode pay
    for the part of a prompt's time that is not linear.
    """
    prefill = column(run.steps, "num_prefill_tokens").astype(np.float64)
    decodes = column(run.steps, "num_decodes").astype(np.float64)
    elapsed = (column(run.steps, "end_ns") - column(run.steps, "start_ns")).astype(np.float64)
    alone = prefill == 0
    if not alone.any():
        columns = np.stack([np.ones_like(prefill), prefill, decodes], axis=1)
        base, per_prompt, per_output = np.linalg.lstsq(columns, elapsed, rcond=None)[0].tolist()
        return max(base, 0.0), max(per_prompt, 0.0), max(per_output, 0.0)
    num, time = decodes[alone], elapsed[alone]
    spread = float(((num - num.mean()) ** 2).sum())
    slope = float(((num - num.mean()) * (time - time.mean())).sum()) / spread if spread else 0.0
    per_output = max(slope, 0.0)
    base = max(float(time.mean() - per_output * num.mean()), 0.0)
    added = float((elapsed - base - per_output * decodes)[~alone].sum())
    return base, max(added / prefill.sum(), 0.0) if prefill.any() else 0.0, per_output


def _overloaded(run: RunRecord) -> bool:
    """Whether the backlog grew over the arrivals, with somebody left out nearly all the time of their second half.

    Latencies then grow with the length of the run, and measure that. Both signs are needed: a burst that is worked off
    grows for a while, a busy arm that keeps up has a queue that does not grow, and a run that is short beside its
    latencies fills up to its end, but nobody is left out in it.
    """
    taken = [r for r in run.requests if r.status != "refused"]
    if len(taken) < 8 or not run.steps:
        return False
    arrivals = np.array([r.arrival_ns for r in taken], dtype=np.int64)
    begin, end = int(arrivals.min()), int(arrivals.max())
    if begin == end:
        return _left_out(run, begin, run.duration_ns) >= 0.5
    ends = np.array([run.duration_ns if r.finish_ns is None else r.finish_ns for r in taken], dtype=np.int64)

    def backlog(since: int, until: int) -> float:
        here = np.minimum(ends, until) - np.maximum(arrivals, since)
        return float(np.maximum(here, 0).sum()) / (until - since)

    quarter = (end - begin) / 4
    first, last = backlog(begin, begin + round(quarter)), backlog(end - round(quarter), end)
    return last > GROWTH * first and _left_out(run, (begin + end) // 2, end) >= CONTENTION


def _left_out(run: RunRecord, begin_ns: int, end_ns: int) -> float:
    """Share of step time between two moments in which somebody waited, or was resident beyond what a batch holds."""
    start, end = column(run.steps, "start_ns"), column(run.steps, "end_ns")
    within = (end > begin_ns) & (start < end_ns)
    crowded = (column(run.steps, "num_waiting") > 0) | (column(run.steps, "num_running") > run.limits.max_num_seqs)
    took = end - start
    total = int(took[within].sum())
    return int(took[within & crowded].sum()) / total if total else 0.0
