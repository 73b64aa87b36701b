"""The rounds of a search: runs whose results it waits for before it asks for more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from batchwright.lab.designs.replicates import slim
from batchwright.lab.executors import Executor, Outcome, Task
from batchwright.lab.experiment import RUNS, Experiment, run_tasks
from batchwright.lab.runner import Progress
from batchwright.lab.saved_runs import SavedRuns

Owner = TypeVar("Owner")


class Rounds:
    """Makes the runs of each round, and counts those of all rounds.

    Attributes:
        num_done: runs so far.
    """

    def __init__(self, executor: Executor, progress: Progress | None) -> None:
        """Takes who makes the runs, and whom to tell of them."""
        self._executor = executor
        self._progress = progress
        self.num_done = 0

    def run(
        self,
        asked: Sequence[tuple[Owner, Task]],
        take: Callable[[Owner, Outcome], None],
        num_all: int,
        *,
        saved: SavedRuns | None = None,
        keep_records: bool = False,
    ) -> Experiment:
        """Make the runs of one round.

        Args:
            asked: the tasks, each with what it is for.
            take: given what a task is for and what became of it, as soon as that is known.
            num_all: about how many runs there will be in all rounds.
            saved: as of :func:`~batchwright.lab.experiment.run_tasks`.
            keep_records: hold requests and steps of the runs in memory.

        Raises:
            ConfigError, OSError, KeyboardInterrupt: as of ``run_tasks``.
        """
        owners = {id(task): owner for owner, task in asked}

        def keep(outcome: Outcome) -> Outcome:
            self.num_done += 1
            take(owners[id(outcome.task)], outcome)
            if self._progress is not None:
                self._progress(RUNS, self.num_done, max(self.num_done, num_all))
            return outcome if keep_records or outcome.run is None else replace(outcome, run=slim(outcome.run))

        tasks = [task for _, task in asked]
        return run_tasks(tasks, self._executor, self._told(), keep=keep, saved=saved)

    def _told(self) -> Progress | None:
        """Progress without the count of runs of one round, which is not that of the whole."""
        progress = self._progress
        if progress is None:
            return None

        def report(label: str, done: int, total: int) -> None:
            if label != RUNS:
                progress(label, done, total)

        return report
