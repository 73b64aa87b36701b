"""Workloads that are offered together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batchwright.errors import WorkloadError
from batchwright.lab.row import WorkloadRow
from batchwright.lab.workload import Workload


def merge(workloads: Sequence[Workload], name: str = "") -> Workload:
    """All requests of several workloads, in order of arrival; of equals by workload.

    Clients of one name are one client. Sessions, programs, names of rows and prefixes are each workload's own: those of
    the second get ``2/`` in front, and share no token with those of the first.

    Args:
        workloads: one or more, each in its own time; offered in an open loop, all alike as to prompts that are too
            long.
        name: of the result; by default theirs, with ``+`` between.

    Raises:
        WorkloadError: there is none, or they are not offered alike.
    """
    if not workloads:
        raise WorkloadError("there is no workload to merge: give at least one")
    base = workloads[0]
    for other in workloads:
        if other.concurrency is not None:
            raise WorkloadError(
                f"workload {other.name!r} is a closed loop; merge first, and say then how many users there are"
            )
        if other.too_long != base.too_long:
            raise WorkloadError(f"too_long is {base.too_long!r} in one workload and {other.too_long!r} in another")
    rows: list[WorkloadRow] = []
    first_id = 0
    for number, workload in enumerate(workloads, start=1):
        own = workload.held()
        label = f"{number}/" if number > 1 else ""
        rows += (_labelled(row, label, first_id) for row in own)
        first_id += max((max(row.prefix_ids) for row in own if row.prefix_ids), default=-1) + 1
    joined = Workload(
        name=name or " + ".join(w.name for w in workloads),
        rows=(),
        source=" + ".join(w.source for w in workloads),
        too_long=base.too_long,
        notes=tuple(note for w in workloads for note in w.notes),
    )
    return joined.with_rows(rows)


def _labelled(row: WorkloadRow, label: str, first_id: int) -> WorkloadRow:
    if not label:
        return row

    def named(name: str | None) -> str | None:
        return None if name is None else label + name

    return replace(
        row,
        session_id=named(row.session_id),
        program_id=named(row.program_id),
        row_id=named(row.row_id),
        after=tuple(label + name for name in row.after),
        prefix_ids=tuple(first_id + prefix_id for prefix_id in row.prefix_ids),
    )
