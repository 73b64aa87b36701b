"""Runs in this process, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from batchwright.lab.executors.executor import Executor, Outcome
from batchwright.lab.executors.task import Task
from batchwright.lab.runner import Progress


class Serial(Executor):
    """One run after the other, in this process."""

    name: ClassVar[str] = "serial"

    def run(self, tasks: Sequence[Task], progress: Progress | None = None) -> list[Outcome]:
        """See :class:`Executor`."""
        outcomes: list[Outcome] = []
        for task in tasks:
            try:
                run = task.run(progress)
            except KeyboardInterrupt:  # while it was made, before it ran
                if not any(outcome.run for outcome in outcomes):
                    raise
                break
            except Exception as error:
                outcomes.append(Outcome(task, error=error))
                continue
            outcomes.append(Outcome(task, run))
            if run.stopped == "interrupted":
                break
        return outcomes
