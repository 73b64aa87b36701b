"""Other workloads like one: sessions drawn from it again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from batchwright.errors import WorkloadError
from batchwright.lab.row import WorkloadRow
from batchwright.lab.sessions import sessions_of
from batchwright.lab.workload import Workload


def resampled(workload: Workload, seed: int, *, block: int | None = None, num: int | None = None) -> Workload:
    """A bootstrap of whole sessions: drawn with replacement, in blocks of sessions that follow each other.

    A session is drawn with the time that passed since the one before it began, so that arrivals are drawn too; within
    it nothing changes. Blocks keep what neighbours have in common, such as a burst (the circular block bootstrap:
    Politis and Romano, in LePage and Billard, Exploring the Limits of Bootstrap, 1992). Times are scaled so that
    sessions begin at the same rate.

    Of a session that is drawn twice each copy has its own names. What a block shares within itself stays shared. A
    prefix that a session was the first to have is new in every further copy of that session, and in the block around
    it: none finds in the cache what another copy of itself left there. One that others had before it keeps its id, and
    may be found still. Prompts that are given stay equal.

    Args:
        workload: to draw from; rows without a session, program or links are sessions of one.
        seed: of what is drawn.
        block: sessions of a block; None: the square root of their number. 1 draws each by itself.
        num: sessions to draw; None: as many as there are. Fewer are the first of more.

    Raises:
        WorkloadError: ``block`` or ``num`` is not a whole number of at least 1.
    """
    rows = workload.held()
    sessions = sessions_of(rows)
    there = len(sessions)
    size = min(_whole("block", block if block is not None else math.isqrt(there) or 1), max(there, 1))
    wanted = _whole("num", num if num is not None else there) if there else 0
    if not wanted:
        return workload
    begins = np.array([rows[session[0]].arrival_ns for session in sessions], dtype=np.int64)
    gaps = np.diff(begins, prepend=0)
    rng = np.random.default_rng([seed, there])
    firsts = rng.integers(there, size=-(-wanted // size))
    drawn = ((firsts[:, None] + np.arange(size)) % there).ravel()[:wanted]
    times = np.cumsum(gaps[drawn])
    if times[-1]:
        times = np.rint(times * (int(begins[-1]) * wanted / there / int(times[-1]))).astype(np.int64)
    copies = _Copies(rows, sessions)
    found: list[WorkloadRow] = []
    for start in range(0, wanted, size):
        found += copies.next(drawn[start : start + size].tolist(), times[start : start + size].tolist())
    return replace(workload.with_rows(found), name=f"{workload.name} (resampled, seed {seed})")


def _whole(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise WorkloadError(f"{name} must be a whole number of at least 1, not {value!r}")
    return value


class _Copies:
    """Copies of blocks of sessions, which share with others what the originals share."""

    def __init__(self, rows: tuple[WorkloadRow, ...], sessions: list[list[int]]) -> None:
        self._rows = rows
        self._sessions = sessions
        self._num_copies = [0] * len(sessions)
        self._brought_by: dict[int, int] = {}  # a prefix id to the session that had it first
        session_of = {place: number for number, session in enumerate(sessions) for place in session}
        for place, row in enumerate(rows):
            for prefix_id in row.prefix_ids:
                self._brought_by.setdefault(prefix_id, session_of[place])
        self._free_id = max(self._brought_by, default=-1) + 1

    def next(self, block: Sequence[int], begins_ns: Sequence[int]) -> Iterator[WorkloadRow]:
        """One more copy of these sessions, which begin at these times."""
        again = {number for number in block if self._num_copies[number]}
        ids: dict[int, int] = {}
        for number, begin_ns in zip(block, begins_ns, strict=True):
            num = self._num_copies[number]
            self._num_copies[number] += 1
            session = self._sessions[number]
            shift = begin_ns - self._rows[session[0]].arrival_ns
            for place in session:
                yield self._copy(self._rows[place].later(shift), f" #{num}" if num else "", again, ids)

    def _copy(self, row: WorkloadRow, label: str, again: set[int], ids: dict[int, int]) -> WorkloadRow:
        for prefix_id in row.prefix_ids:
            if prefix_id not in ids:
                ids[prefix_id] = self._named(prefix_id, again)
        prefix_ids = tuple(ids[prefix_id] for prefix_id in row.prefix_ids)
        if not label:
            return row if prefix_ids == row.prefix_ids else replace(row, prefix_ids=prefix_ids)

        def named(name: str | None) -> str | None:
            return None if name is None else name + label

        return replace(
            row,
            session_id=named(row.session_id),
            program_id=named(row.program_id),
            row_id=named(row.row_id),
            after=tuple(name + label for name in row.after),
            prefix_ids=prefix_ids,
        )

    def _named(self, prefix_id: int, again: set[int]) -> int:
        """The id of a prefix in a copy of a block: a new one where a session brings it that was copied before."""
        if self._brought_by[prefix_id] not in again:
            return prefix_id
        self._free_id += 1
        return self._free_id - 1
