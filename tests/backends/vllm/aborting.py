"""Clients that leave at random."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from vllm.v1.request import RequestStatus  # pyright: ignore[reportMissingImports]

from backends.vllm.runs import Run, check_answers, load, offer


class Aborting:
    """Aborts some of a run's requests whenever it is called.

    Attributes:
        gone: the ids of those that were there.
    """

    def __init__(self, run: Run, rows: Sequence[tuple[Any, ...]], data: st.DataObject) -> None:
        self._core = run.core
        self._rows = rows
        self._data = data
        self.gone: set[str] = set()

    def __call__(self) -> None:
        while self._data.draw(st.booleans()):
            name = self._data.draw(st.sampled_from(self._rows))[0]
            for ended in self._core.finish_requests([name, "nobody"], RequestStatus.FINISHED_ABORTED):
                assert ended.request_id == name and ended.status == RequestStatus.FINISHED_ABORTED
                self.gone.add(name)


def check_aborts(run: Run, seed: int, data: st.DataObject) -> None:
    """Requests come one a step and some are aborted, between steps and within them: the others get their tokens."""
    rows = load(seed, 8)
    abort = Aborting(run, rows, data)
    for row in rows:
        offer(run, row)
        run.step(abort)
        abort()
    run.finish()
    assert abort.gone.isdisjoint(run.ends)
    check_answers(run, [row for row in rows if row[0] not in abort.gone])
