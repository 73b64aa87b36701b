"""How evenly clients were served while they competed: Jain's index, and the largest service gap.

Service is that of VTC (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, section 3): a processed
prompt token counts 1, an output token 2, each divided by the weight of its client. What the prefix cache held was not
processed. A client is backlogged while a request of its own waits. Only then does a scheduler owe it anything, and
whoever finishes all requests serves all demand under any policy, so service is compared over such times only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.records import RequestRecord
from batchwright.lab.run_record import RunRecord
from batchwright.lab.samples import all_times, end_of, stretches_out

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
"""What a token counts: the paper's w_p and w_q."""

MAX_POINTS = 4096
"""Moments at which service is compared; where tokens came at more moments, evenly taken ones of them."""

MAX_CLIENTS = 32
"""Clients that are compared pair by pair: those with the most service."""


@dataclass(frozen=True)
class Service:
    """What each client got, and when it had requests waiting.

    Attributes:
        clients: their names; None: of requests without one.
        times_ns: int64[p]: moments.
        served: float64[clients, p]: service up to each.
        backlogged: bool[clients, p - 1]: whether a request of its own waited throughout, between two moments.
    """

    clients: Sequence[str | None]
    times_ns: NDArray[np.int64]
    served: Floats
    backlogged: Bools

    @classmethod
    def of(cls, run: RunRecord) -> Service:
        """Of a run."""
        by_client: dict[str | None, list[RequestRecord]] = {}
        for record in run.requests:
            if record.status != "refused":
                by_client.setdefault(record.client_id, []).append(record)
        events = [_events(records) for records in by_client.values()]
        times = np.unique(np.concatenate([np.zeros(1, dtype=np.int64), *(when for when, _ in events)]))
        if len(times) > MAX_POINTS:
            times = times[np.linspace(0, len(times) - 1, MAX_POINTS).round().astype(np.int64)]
        served = np.stack([_cumulated(when, what, times) for when, what in events]) if events else np.zeros((0, 1))
        waited = [_covered(_waits(records, end_of(run)), times) for records in by_client.values()]
        backlogged = np.stack(waited) if waited else np.zeros((0, 0), dtype=bool)
        return cls(list(by_client), times, served, backlogged)


def fairness_metrics(run: RunRecord) -> dict[str, float | int | None]:
    """``jain_fairness`` and ``max_service_gap``; both None where no two clients ever competed."""
    if len({r.client_id for r in run.requests if r.status != "refused"}) < 2:
        return {"jain_fairness": None, "max_service_gap": None}
    service = Service.of(run)
    return {"jain_fairness": jain_index(rates(service)), "max_service_gap": largest_gap(service)}


def rates(service: Service) -> Floats:
    """float64[n]: service a second of each client that competed, while it and another had a backlog."""
    contended = service.backlogged & (service.backlogged.sum(axis=0) > 1)
    seconds = contended @ (np.diff(service.times_ns) / 1e9)
    got = (np.diff(service.served, axis=1) * contended).sum(axis=1)
    found: Floats = got[seconds > 0] / seconds[seconds > 0]
    return found


def jain_index(values: Floats) -> float | None:
    """Jain's index (Jain, Chiu and Hawe, DEC TR-301, 1984): (Σx)² / (n·Σx²), from 1/n to 1; None of no value."""
    squares = float((values**2).sum())
    if not len(values):
        return None
    return float(values.sum()) ** 2 / (len(values) * squares) if squares else 1.0


def largest_gap(service: Service) -> float | None:
    """The largest |W_f(t1, t2) - W_g(t1, t2)| over pairs of clients and times in which both were backlogged throughout.

    None where no two clients ever were at once.
    """
    most = np.argsort(-service.served[:, -1], kind="stable")[:MAX_CLIENTS].tolist()
    largest: float | None = None
    for f, g in combinations(most, 2):
        both = service.backlogged[f] & service.backlogged[g]
        if not both.any():
            continue
        difference = service.served[f] - service.served[g]
        edges = np.flatnonzero(np.diff(both, prepend=False, append=False))
        for begin, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            within = difference[begin : end + 1]
            largest = max(largest or 0.0, float(within.max() - within.min()))
    return largest


def _events(records: Sequence[RequestRecord]) -> tuple[NDArray[np.int64], Floats]:
    """When a client got what; prompts with their first token."""
    ran = [r for r in records if len(r.token_times_ns)]
    if not ran:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    lengths = np.array([len(r.token_times_ns) for r in ran])
    weights = np.array([r.weight for r in ran])
    prompts = np.array([r.num_prompt_tokens - r.num_cached_tokens for r in ran])
    when = all_times(ran)
    what = np.repeat(OUTPUT_WEIGHT / weights, lengths)
    what[np.cumsum(lengths) - lengths] += PROMPT_WEIGHT * prompts / weights
    order = np.argsort(when, kind="stable")
    return when[order], what[order]


def _cumulated(when: NDArray[np.int64], what: Floats, times: NDArray[np.int64]) -> Floats:
    sums = np.concatenate([np.zeros(1), np.cumsum(what)])
    return sums[np.searchsorted(when, times, side="right")]


def _waits(records: Sequence[RequestRecord], end_ns: int) -> list[tuple[int, int]]:
    """When a request of these waited, as disjoint stretches in order."""
    found: list[tuple[int, int]] = []
    for record in records:
        if record.first_scheduled_ns is None and record.token_times_ns:
            continue  # since when it ran is not known, as on a server elsewhere
        end = record.finish_ns if record.finish_ns is not None else end_ns
        found.append((record.arrival_ns, end if record.first_scheduled_ns is None else record.first_scheduled_ns))
        if record.preempted_ns:
            found += stretches_out(record, end)
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(found):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _covered(stretches: Sequence[tuple[int, int]], times: NDArray[np.int64]) -> Bools:
    """bool[p - 1]: whether one stretch covers the time between two moments."""
    if not stretches:
        return np.zeros(len(times) - 1, dtype=bool)
    begins, ends = np.array(stretches, dtype=np.int64).T
    place = np.searchsorted(begins, times[:-1], side="right") - 1
    covered: Bools = (place >= 0) & (ends[place] >= times[1:])
    return covered
