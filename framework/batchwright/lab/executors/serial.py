"""Runs in this process, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from batchwright.lab.executors.executor import Executor, Keep, Outcome
from batchwright.lab.executors.installed import Installed
from batchwright.lab.executors.task import Task
from batchwright.lab.runner import Progress


class Serial(Executor):
    """One run after the other, in this process."""

    name: ClassVar[str] = "serial"

    @cached_property
    def _installed(self) -> Installed:
        return Installed()

    def run(self, tasks: Sequence[Task], progress: Progress | None = None, keep: Keep | None = None) -> list[Outcome]:
        """See :class:`Executor`."""
        outcomes: list[Outcome] = []
        for task in tasks:
            try:
                outcome = _outcome(task, progress, self._installed)
                outcomes.append(keep(outcome) if keep is not None else outcome)
            except KeyboardInterrupt:  # while it was made, before it ran
                if not any(outcome.run for outcome in outcomes):
                    raise
                break
            if outcome.run is not None and outcome.run.stopped == "interrupted":
                break
        return outcomes


def _outcome(task: Task, progress: Progress | None, installed: Installed) -> Outcome:
    try:
        return Outcome(task, task.run(progress, installed))
    except Exception as error:
        return Outcome(task, error=error)
