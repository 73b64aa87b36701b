"""The runs of an experiment, wherever they are executed, and what is said of those that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchwright.errors import ExperimentError
from batchwright.lab.executors.executor import Executor, Outcome
from batchwright.lab.executors.task import Task
from batchwright.lab.run_record import RunRecord
from batchwright.lab.runner import Progress


@dataclass(frozen=True)
class Experiment:
    """What came of the runs of an experiment.

    Attributes:
        tasks: all that was to run.
        outcomes: of those that were begun.
    """

    tasks: Sequence[Task]
    outcomes: Sequence[Outcome]

    @property
    def runs(self) -> list[RunRecord]:
        """Records of the runs that did not fail, in the order of the tasks."""
        return [outcome.run for outcome in self.outcomes if outcome.run is not None]

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return len(self.outcomes) < len(self.tasks) or any(run.stopped == "interrupted" for run in self.runs)

    def error(self) -> Exception | None:
        """What to raise for the runs that failed; None: none did.

        Where all runs failed with the same words, the error itself. Else one that names arm and seed of each, and holds
        the records of the others.
        """
        failed = [(outcome.task, outcome.error) for outcome in self.outcomes if outcome.error is not None]
        if not failed:
            return None
        errors = [error for _, error in failed]
        if len(failed) == len(self.tasks) and len({str(error) for error in errors}) == 1:
            return errors[0]
        said = "; ".join(f"{task.label}: {type(error).__name__}: {error}" for task, error in failed)
        rest = f"; the other {len(self.runs)} are kept" if self.runs else ""
        return ExperimentError(f"{len(failed)} of {len(self.tasks)} runs failed: {said}{rest}", self.runs, errors)


def run_tasks(tasks: Sequence[Task], executor: Executor, progress: Progress | None = None) -> Experiment:
    """Run all tasks; one that fails stops no other.

    Raises:
        ConfigError: the executor cannot run them.
        KeyboardInterrupt: it came before anything was done.
    """
    return Experiment(tasks, executor.run(tasks, progress))
