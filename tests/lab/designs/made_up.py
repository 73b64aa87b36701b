"""An executor that makes runs up: latencies are a function of the task, so that designs can be tested without runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from batchwright.lab.executors import Executor, Keep, Outcome, Task
from batchwright.lab.run_record import RunRecord

from ..hand import offered, request, run

Ttft = Callable[[Task], float]
"""Seconds to the first token, of all requests of a run."""


class MadeUp(Executor):
    """Every request of a run has the TTFT that a function of its task says; ITL is 10 ms.

    Attributes:
        tasks: all that was run.
    """

    name = "made up"

    def __init__(self, ttft: Ttft, most: int = 10**6) -> None:
        self._ttft = ttft
        self._most = most
        self.tasks: list[Task] = []

    def run(self, tasks: Sequence[Task], progress: Any = None, keep: Keep | None = None) -> list[Outcome]:
        """Runs all, or so many that ``most`` is reached: as if it were interrupted then."""
        found: list[Outcome] = []
        for task in tasks:
            if len(self.tasks) == self._most:
                if not found:
                    raise KeyboardInterrupt
                break
            self.tasks.append(task)
            try:
                outcome = Outcome(task, self._record(task))
            except Exception as error:
                outcome = Outcome(task, error=error)
            found.append(keep(outcome) if keep is not None else outcome)
        return found

    def _record(self, task: Task) -> RunRecord:
        ms = 1000 * self._ttft(task)
        arrivals = [row.arrival_ns / 1e6 for row in task.workload.rows]
        requests = [
            request(i, arrival_ms=at, times_ms=[at + ms, at + ms + 10], slo=row.slo)
            for i, (at, row) in enumerate(zip(arrivals, task.workload.rows, strict=True))
        ]
        made = run(requests, arm=task.arm, seed=task.seed)
        return replace(made, offered=[offered(r) for r in requests])


def rate_of(task: Task) -> float:
    """Requests a second of a task's workload."""
    return task.workload.rate
