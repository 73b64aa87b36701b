"""Other workloads like one: sessions drawn from it again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from batchwright.errors import WorkloadError
from batchwright.lab.row import WorkloadRow
from batchwright.lab.sessions import sessions_of
from batchwright.lab.workload import Workload


def resampled(workload: Workload, seed: int, *, block: int | None = None) -> Workload:
    """A bootstrap of whole sessions: as many, drawn with replacement, in blocks of sessions that follow each other.

    A session is drawn with the time that passed since the one before it began, so that arrivals are drawn too; within
    it nothing changes. Blocks keep what neighbours have in common, such as a burst (the circular block bootstrap:
    Politis and Romano, in LePage and Billard, Exploring the Limits of Bootstrap, 1992). Times are scaled so that the
    last session begins when it did. Of a session that is drawn twice each copy has its own names, and prefixes that no
    other session has are each copy's own; prompts that are given stay equal.

    Args:
        workload: to draw from; rows without a session, program or links are sessions of one.
        seed: of what is drawn.
        block: sessions of a block; None: the square root of their number. 1 draws each by itself.

    Raises:
        WorkloadError: ``block`` is not a whole number of at least 1.
    """
    rows = workload.held()
    sessions = sessions_of(rows)
    num = len(sessions)
    size = block if block is not None else math.isqrt(num) or 1
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise WorkloadError(f"block must be a whole number of at least 1, not {size!r}")
    if not num:
        return workload
    begins = np.array([rows[session[0]].arrival_ns for session in sessions], dtype=np.int64)
    gaps = np.diff(begins, prepend=0)
    rng = np.random.default_rng([seed, num])
    firsts = rng.integers(num, size=-(-num // size))
    drawn = ((firsts[:, None] + np.arange(size)) % num).ravel()[:num]
    times = np.cumsum(gaps[drawn])
    if times[-1]:
        times = np.rint(times * (int(begins[-1]) / int(times[-1]))).astype(np.int64)
    copies = _Copies(rows, sessions)
    found = [
        row for number, when in zip(drawn.tolist(), times.tolist(), strict=True) for row in copies.next(number, when)
    ]
    return replace(workload.with_rows(found), name=f"{workload.name} (resampled, seed {seed})")


class _Copies:
    """Copies of sessions that share with others what the original shares."""

    def __init__(self, rows: tuple[WorkloadRow, ...], sessions: list[list[int]]) -> None:
        self._rows = rows
        self._sessions = sessions
        self._num_copies = [0] * len(sessions)
        owner: dict[int, int | None] = {}  # a prefix id to its only session
        for number, session in enumerate(sessions):
            for place in session:
                for prefix_id in rows[place].prefix_ids:
                    if owner.setdefault(prefix_id, number) != number:
                        owner[prefix_id] = None
        self._owner = owner
        self._free_id = max(owner, default=-1) + 1

    def next(self, number: int, begin_ns: int) -> Iterator[WorkloadRow]:
        """One more copy of a session, that begins at this time."""
        num = self._num_copies[number]
        self._num_copies[number] += 1
        session = self._sessions[number]
        shift = begin_ns - self._rows[session[0]].arrival_ns
        ids: dict[int, int] = {}
        for place in session:
            row = self._rows[place].later(shift)
            yield self._renamed(row, number, f" #{num}", ids) if num else row

    def _renamed(self, row: WorkloadRow, number: int, label: str, ids: dict[int, int]) -> WorkloadRow:
        for prefix_id in row.prefix_ids:
            if prefix_id not in ids:
                if self._owner[prefix_id] == number:
                    ids[prefix_id] = self._free_id
                    self._free_id += 1
                else:
                    ids[prefix_id] = prefix_id

        def named(name: str | None) -> str | None:
            return None if name is None else name + label

        return replace(
            row,
            session_id=named(row.session_id),
            program_id=named(row.program_id),
            row_id=named(row.row_id),
            after=tuple(name + label for name in row.after),
            prefix_ids=tuple(ids[prefix_id] for prefix_id in row.prefix_ids),
        )
