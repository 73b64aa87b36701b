"""Which rows of a workload belong together, and turns that wait for each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batchwright.lab.disjoint import DisjointSets
from batchwright.lab.links import Links
from batchwright.lab.row import WorkloadRow
from batchwright.lab.workload import Workload


def sessions_of(rows: Sequence[WorkloadRow]) -> list[list[int]]:
    """Rows of one session, of one program, or that wait for each other, together: their places, in order.

    Every other row stands alone. Sessions are in the order of their first rows.
    """
    sets = DisjointSets(len(rows))
    firsts: dict[tuple[str, str], int] = {}
    for place, row in enumerate(rows):
        for kind, name in (("session", row.session_id), ("program", row.program_id)):
            if name is not None:
                sets.join(place, firsts.setdefault((kind, name), place))
    for awaited, followers in Links.of(rows).followers.items():
        for follower in followers:
            sets.join(awaited, follower)
    return sets.groups()


def waiting_turns(workload: Workload, think_s: float | None = None) -> Workload:
    """The same requests, where each turn of a session waits for the turn before it.

    A trace has the times at which turns came, which followed from how fast they were answered then. Here the first turn
    of each session keeps its time, and each other one is offered when the one before has ended and its user has
    thought: as long as the row says (``think_s``); else ``think_s``; else as long as lay between the two arrivals in
    the trace, which is too long by the time that the answer took then. Rows that wait for others already stay as they
    are.

    Args:
        workload: with ``session_id`` in its rows; rows without are sessions of one turn.
        think_s: seconds of thought where a row does not say.
    """
    rows = list(workload.held())
    latest: dict[str, int] = {}  # place of the latest turn of each session
    for place, row in enumerate(rows):
        if row.session_id is None:
            continue
        before = latest.get(row.session_id)
        if before is not None and not row.after:
            gap_s = (row.arrival_ns - rows[before].arrival_ns) / 1e9
            thought = row.think_s or (gap_s if think_s is None else think_s)
            rows[before] = _named(rows[before], before)
            rows[place] = replace(row, after=(str(rows[before].row_id),), think_s=thought)
        latest[row.session_id] = place
    # Not before the time of the trace any more: an engine that is faster than that one was gets the next turn earlier.
    return workload.with_rows([replace(row, arrival_ns=0) if row.after else row for row in rows])


def _named(row: WorkloadRow, place: int) -> WorkloadRow:
    return row if row.row_id is not None else replace(row, row_id=f"turn {place}")
