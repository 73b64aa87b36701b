"""Latencies of a run as arrays, by vLLM's definitions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.records import RequestRecord
from batchwright.lab.run_record import RunRecord

LATENCIES = ("ttft", "tpot", "itl", "e2el")
"""Time to first token; time per output token after the first; gaps between tokens; end-to-end latency."""


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
    TPOT: it is left out here, not counted as 0.
    """
    finished = [i for i, r in enumerate(run.requests) if r.status == "finished" and len(r.token_times_ns)]
    records = [run.requests[i] for i in finished]
    owners = np.array(finished, dtype=np.int64)
    arrival = np.array([r.arrival_ns for r in records], dtype=np.int64)
    lengths = np.array([len(r.token_times_ns) for r in records], dtype=np.int64)
    times = _all_times(records)
    last = np.cumsum(lengths) - 1
    first = last - lengths + 1
    ttft = (times[first] - arrival) / 1e6
    e2el = (times[last] - arrival) / 1e6
    several = lengths > 1
    tpot = (times[last] - times[first])[several] / 1e6 / (lengths[several] - 1)
    within = np.ones(len(times), dtype=bool)  # gaps that end at a token which is not its request's first
    within[first] = False
    gaps = np.diff(times, prepend=0)[within] / 1e6
    return {
        "ttft": Samples(ttft, owners),
        "tpot": Samples(tpot, owners[several]),
        "itl": Samples(gaps, np.repeat(owners, lengths - 1)),
        "e2el": Samples(e2el, owners),
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


def _all_times(records: list[RequestRecord]) -> NDArray[np.int64]:
    if not records:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([np.frombuffer(r.token_times_ns, dtype=np.int64) for r in records])
