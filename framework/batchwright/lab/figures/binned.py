"""Counts that steps leave behind, over bins of time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.run_record import RunRecord
from batchwright.lab.step_records import column

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Binned:
    """A quantity over time; all float64[bins].

    Attributes:
        mean: over the time of each bin; NaN where it is not defined.
        low, high: smallest and largest in it; equal to ``mean`` where they cannot be told.
    """

    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class TimeLines:
    """One run over time, in the bins between ``edges_ns`` (int64[bins + 1]).

    Attributes:
        waiting, running: requests that wait, and residents, of all replicas.
        kv_use: share of KV blocks that somebody holds, the mean of all replicas.
        tokens: tokens of a step, the mean of the steps that end in a bin.
    """

    edges_ns: Ints
    waiting: Binned
    running: Binned
    kv_use: Binned
    tokens: Binned


def time_lines(run: RunRecord, edges_ns: Ints) -> TimeLines:
    """The time lines of a run; bins after its end are NaN."""
    replica, end = column(run.steps, "replica"), column(run.steps, "end_ns")
    own = [replica == r for r in range(run.num_replicas)] if run.num_replicas > 1 else [np.ones(len(end), dtype=bool)]
    over = edges_ns[:-1] >= (run.duration_ns if len(end) else 0)

    def counted(name: str, first: float = 0.0) -> Binned:
        values = column(run.steps, name).astype(np.float64)
        each = [_binned(end[mine], values[mine], edges_ns, first) for mine in own]
        if len(each) == 1:
            return _cut(each[0], over)
        mean = np.sum([one.mean for one in each], axis=0)
        return _cut(Binned(mean, mean, mean), over)  # extremes of a sum are not the sum of extremes

    free = counted("free_blocks", float(run.limits.num_blocks))
    total = run.limits.num_blocks * len(own)
    tokens = (column(run.steps, "num_prefill_tokens") + column(run.steps, "num_decodes")).astype(np.float64)
    return TimeLines(
        edges_ns,
        counted("num_waiting"),
        counted("num_running"),
        Binned(1 - free.mean / total, 1 - free.high / total, 1 - free.low / total),
        _per_step(end, tokens, edges_ns),
    )


def _binned(times: Ints, values: Floats, edges: Ints, first: float) -> Binned:
    """A step function that is ``first`` until the first of ``times`` and then the value that stands with each."""
    at = np.concatenate([[min(int(edges[0]), 0)], times])
    value = np.concatenate([[first], values])
    last = max(int(at[-1]), int(edges[-1]))
    widths = np.diff(np.append(at, last)).astype(np.float64)
    area = np.concatenate([[0.0], np.cumsum(value * widths)])
    mean = np.diff(np.interp(edges, np.append(at, last), area)) / np.diff(edges)
    carried = value[np.searchsorted(at, edges[:-1], side="right") - 1]
    low, high = carried.copy(), carried.copy()
    inside = (times >= edges[0]) & (times < edges[-1])
    bins = np.searchsorted(edges, times[inside], side="right") - 1
    np.minimum.at(low, bins, values[inside])
    np.maximum.at(high, bins, values[inside])
    return Binned(mean, low, high)


def _per_step(times: Ints, values: Floats, edges: Ints) -> Binned:
    inside = (times >= edges[0]) & (times <= edges[-1])
    bins = np.minimum(np.searchsorted(edges, times[inside], side="right") - 1, len(edges) - 2)
    counts = np.bincount(bins, minlength=len(edges) - 1)
    sums = np.bincount(bins, values[inside], minlength=len(edges) - 1)
    mean = np.full(len(counts), np.nan)
    np.divide(sums, counts, out=mean, where=counts > 0)
    return Binned(mean, mean, mean)


def _cut(binned: Binned, over: NDArray[np.bool_]) -> Binned:
    return Binned(*(np.where(over, np.nan, values) for values in (binned.mean, binned.low, binned.high)))
