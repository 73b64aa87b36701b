"""Latencies of a run as arrays, by vLLM's definitions where it has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.records import RequestRecord
from batchwright.lab.run_record import RunRecord

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Latency:
    """One kind of latency.

    Attributes:
        label: for tables.
        unit: of its values.
        doc: its definition, in a sentence.
    """

    label: str
    unit: str
    doc: str


LATENCY_KINDS = {
    "ttft": Latency("TTFT", "ms", "Time to first token: from arrival to the first output token, one a request."),
    "tpot": Latency(
        "TPOT", "ms", "Time per output token after the first: (E2EL - TTFT) / (output tokens - 1), one a request."
    ),
    "itl": Latency("ITL", "ms", "Inter-token latency (time between tokens): every gap between two tokens."),
    "e2el": Latency("E2EL", "ms", "End-to-end latency: from arrival to the last output token, one a request."),
    "max_itl": Latency("longest ITL", "ms", "The longest gap between two tokens of a request, one a request."),
    "norm_latency": Latency("normalized latency", "ms/token", "E2EL / output tokens, one a request."),
    "scheduling_delay": Latency(
        "scheduling delay", "ms", "From arrival to the start of the first step that ran it, one a request."
    ),
    "waiting": Latency(
        "time waiting", "ms", "The scheduling delay, and the time from each eviction to the next admission."
    ),
}
"""The kinds of latency, of finished requests."""

LATENCIES = tuple(LATENCY_KINDS)


@dataclass(frozen=True, slots=True)
class Samples:
    """Values of one latency.

    Attributes:
        values: float64[n], milliseconds.
        owners: int64[n]: which of the run's requests each belongs to; in ascending order.
    """

    values: NDArray[np.float64]
    owners: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.values)


def latency_samples(run: RunRecord) -> dict[str, Samples]:
    """Samples of each of ``LATENCIES``, over the requests that finished.

    As in ``vllm bench serve``: TTFT and E2EL count from arrival, one value a request; ITL is every gap between two
    tokens; TPOT is (E2EL - TTFT) / (output tokens - 1), one value a request. A request of one output token has no
    TPOT: it is left out here, not counted as 0. Normalized latency is that of Orca (Yu et al., OSDI 2022) and vLLM
    (Kwon et al., SOSP 2023): E2EL over output tokens.
    """
    finished = [i for i, r in enumerate(run.requests) if r.status == "finished" and len(r.token_times_ns)]
    records = [run.requests[i] for i in finished]
    owners = np.array(finished, dtype=np.int64)
    arrival = np.array([r.arrival_ns for r in records], dtype=np.int64)
    lengths = np.array([len(r.token_times_ns) for r in records], dtype=np.int64)
    times = all_times(records)
    last = np.cumsum(lengths) - 1
    first = last - lengths + 1
    ttft = (times[first] - arrival) / 1e6
    e2el = (times[last] - arrival) / 1e6
    several = lengths > 1
    tpot = (times[last] - times[first])[several] / 1e6 / (lengths[several] - 1)
    within = np.ones(len(times), dtype=bool)  # gaps that end at a token which is not its request's first
    within[first] = False
    gaps = np.diff(times, prepend=0)[within] / 1e6
    starts = (np.cumsum(lengths - 1) - (lengths - 1))[several]  # of each request's gaps
    longest = np.maximum.reduceat(gaps, starts) if len(starts) else gaps[:0]
    ran = np.array([r.first_scheduled_ns is not None for r in records], dtype=bool)
    delay, waiting = _waits([r for r in records if r.first_scheduled_ns is not None])
    return {
        "ttft": Samples(ttft, owners),
        "tpot": Samples(tpot, owners[several]),
        "itl": Samples(gaps, np.repeat(owners, lengths - 1)),
        "e2el": Samples(e2el, owners),
        "max_itl": Samples(longest, owners[several]),
        "norm_latency": Samples(e2el / lengths, owners),
        "scheduling_delay": Samples(delay / 1e6, owners[ran]),
        "waiting": Samples(waiting / 1e6, owners[ran]),
    }


def met_slo(record: RequestRecord) -> bool:
    """Whether a request finished, and within each objective that it has.

    An objective for TPOT is met where TPOT is undefined, at one output token.
    """
    if record.status != "finished" or not len(record.token_times_ns):
        return False
    slo, times = record.slo, record.token_times_ns
    if slo is None:
        return True
    if slo.ttft_s is not None and times[0] - record.arrival_ns > slo.ttft_s * 1e9:
        return False
    num_gaps = len(times) - 1
    return slo.tpot_s is None or num_gaps == 0 or (times[-1] - times[0]) / num_gaps <= slo.tpot_s * 1e9


def stretches_out(record: RequestRecord, end_ns: int) -> list[tuple[int, int]]:
    """When a request that had run waited again: from each eviction to the next admission.

    Args:
        record: of the request.
        end_ns: end of a stretch that no admission ended.

    Evictions before its first step, in the step that admitted it, are no stretches of their own: it had not run yet.
    """
    if not record.preempted_ns or record.first_scheduled_ns is None:
        return []
    ends = [*record.resumed_ns, *[end_ns] * (len(record.preempted_ns) - len(record.resumed_ns))]
    since = record.first_scheduled_ns
    return [(a, b) for a, b in zip(record.preempted_ns, ends, strict=True) if a >= since]


def end_of(run: RunRecord) -> int:
    """When a run ended, in nanoseconds from its start; of a part of one, where the part ends."""
    return max(run.duration_ns, run.steps[-1].end_ns if len(run.steps) else 0)


def _waits(records: list[RequestRecord]) -> tuple[Ints, Ints]:
    """Nanoseconds from arrival to the first step, and those in which it waited in all; of requests that ran."""
    begun = [r.first_scheduled_ns or 0 for r in records]
    delay = np.array(begun, dtype=np.int64) - np.array([r.arrival_ns for r in records], dtype=np.int64)
    out = np.zeros(len(records), dtype=np.int64)
    for place, record in enumerate(records):
        if record.preempted_ns:
            out[place] = sum(b - a for a, b in stretches_out(record, record.finish_ns or 0))
    return delay, delay + out


def all_times(records: Sequence[RequestRecord]) -> Ints:
    """int64[n]: the times of all tokens of these requests, one request behind the other."""
    return np.frombuffer(b"".join([r.token_times_ns for r in records]), dtype=np.int64)
