"""What a workload is like: counts, rates, burstiness, lengths, sessions, prefix reuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchwright.lab.prefix_reuse import PrefixReuse
from batchwright.lab.row import WorkloadRow
from batchwright.lab.sessions import sessions_of
from batchwright.lab.workload import Workload

QUANTILES = (0.5, 0.9, 0.99)
"""Of lengths, beside mean and extremes."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Some numbers, in short.

    Attributes:
        total, mean, low, p50, p90, p99, high: sum, mean, least, percentiles and largest.
    """

    total: int
    mean: float
    low: int
    p50: float
    p90: float
    p99: float
    high: int

    @classmethod
    def of(cls, values: Iterable[int]) -> Distribution | None:
        """Of these; None where there are none."""
        numbers = np.fromiter(values, dtype=np.int64)
        if not len(numbers):
            return None
        p50, p90, p99 = (float(q) for q in np.quantile(numbers, QUANTILES))
        return cls(int(numbers.sum()), float(numbers.mean()), int(numbers.min()), p50, p90, p99, int(numbers.max()))


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a workload is like.

    Attributes:
        name, hash: of the workload.
        num_requests: how many there are.
        span_s: seconds to the last arrival; of rows that wait for others, the earliest.
        rate: arrivals a second, of rows that wait for nobody; None: all at once.
        gap_cv: coefficient of variation of the gaps between these; None where there are fewer than two gaps. 1 is a
            Poisson process, more is burstier.
        peak_rate: arrivals a second in the busiest of 100 equal parts of the span, of rows that wait for nobody.
        prompts, outputs: tokens, of rows that say how many.
        num_texts: rows whose prompt is text, with lengths that a tokenizer has yet to tell.
        prefix_reuse: share of the prompt tokens that a cache without a bound would hold; None: there are texts.
        block_reuse: the same of the blocks that prefix ids stand for; None: there are none.
        num_sessions, num_programs: how many there are.
        turns: requests of a session or program.
        num_waiting: rows that wait for others.
        num_aborts: rows whose client may give up.
        clients, classes, priorities: requests of each, where there are any.
        num_declared, num_deadlines, num_objectives, num_predicted: rows with ``max_tokens``, ``deadline_s``, ``slo``,
            ``predicted_output_tokens``.
        arrivals_in_parts: arrivals in each of 100 equal parts of the span.
        notes: of the workload.
    """

    name: str
    hash: str
    num_requests: int
    span_s: float
    rate: float | None
    gap_cv: float | None
    peak_rate: float | None
    prompts: Distribution | None
    outputs: Distribution | None
    num_texts: int
    prefix_reuse: float | None
    block_reuse: float | None
    num_sessions: int
    num_programs: int
    turns: Distribution | None
    num_waiting: int
    num_aborts: int
    clients: dict[str, int]
    classes: dict[str, int]
    priorities: dict[str, int]
    num_declared: int
    num_deadlines: int
    num_objectives: int
    num_predicted: int
    arrivals_in_parts: list[int]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def inspect(workload: Workload) -> Inspection:
    """What a workload is like."""
    rows = workload.held()
    times = np.array([row.arrival_ns for row in rows if not row.after], dtype=np.int64)
    span_ns = int(max((row.arrival_ns for row in rows), default=0))
    parts = _in_parts(times, 100)
    reuse = PrefixReuse()
    num_texts = sum(not reuse.add(row) for row in rows)
    members = [len(session) for session in sessions_of(rows) if _is_unit(rows, session)]
    return Inspection(
        name=workload.name,
        hash=workload.hash,
        num_requests=len(rows),
        span_s=span_ns / 1e9,
        rate=len(times) / (int(times.max()) / 1e9) if len(times) and times.max() else None,
        gap_cv=_gap_cv(times),
        peak_rate=max(parts) / (int(times.max()) / 1e9 / len(parts)) if parts else None,
        prompts=Distribution.of(r.num_prompt_tokens for r in rows if r.num_prompt_tokens is not None),
        outputs=Distribution.of(r.num_output_tokens for r in rows if r.num_output_tokens is not None),
        num_texts=sum(row.prompt is not None and row.num_prompt_tokens is None for row in rows),
        prefix_reuse=reuse.share if not num_texts else None,
        block_reuse=reuse.share_of_pieces if not num_texts and reuse.num_pieces else None,
        num_sessions=len({row.session_id for row in rows} - {None}),
        num_programs=len({row.program_id for row in rows} - {None}),
        turns=Distribution.of(members),
        num_waiting=sum(bool(row.after) for row in rows),
        num_aborts=sum(row.gives_up for row in rows),
        clients=_counts(row.client_id for row in rows),
        classes=_counts(row.slo_class for row in rows),
        priorities=_counts(str(row.priority) for row in rows) if any(row.priority for row in rows) else {},
        num_declared=sum(row.max_tokens is not None for row in rows),
        num_deadlines=sum(row.deadline_s is not None for row in rows),
        num_objectives=sum(row.slo is not None for row in rows),
        num_predicted=sum(row.predicted_output_tokens is not None for row in rows),
        arrivals_in_parts=parts,
        notes=workload.notes,
    )


def _is_unit(rows: Sequence[WorkloadRow], places: list[int]) -> bool:
    first = rows[places[0]]
    return len(places) > 1 or first.session_id is not None or first.program_id is not None


def _counts(names: Iterable[str | None]) -> dict[str, int]:
    return dict(Counter(name for name in names if name is not None).most_common())


def _gap_cv(times: NDArray[np.int64]) -> float | None:
    gaps = np.diff(np.sort(times)).astype(np.float64)
    return float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else None


def _in_parts(times: NDArray[np.int64], num: int) -> list[int]:
    if not len(times) or not times.max():
        return []
    return [int(n) for n in np.histogram(times, bins=num, range=(0, int(times.max())))[0]]
