"""The runs of an experiment, wherever they are executed, and what is said of those that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from batchwright.errors import ExperimentError
from batchwright.lab.closing import Failure
from batchwright.lab.endpoint.servers import Servers
from batchwright.lab.executors.executor import Executor, Keep, Outcome
from batchwright.lab.executors.task import Task
from batchwright.lab.run_record import RunRecord
from batchwright.lab.runner import Progress
from batchwright.lab.saved_runs import SavedRuns

RUNS = "runs"
"""The label under which progress is told of whole runs."""


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
    def failures(self) -> list[Failure]:
        """The runs that failed, in words."""
        return [
            Failure(outcome.task.arm, outcome.task.seed, f"{type(outcome.error).__name__}: {outcome.error}")
            for outcome in self.outcomes
            if outcome.error is not None
        ]

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
        num = len(self.runs)
        rest = f"; the other {'one' if num == 1 else num} went well" if num else ""
        return ExperimentError(f"{len(failed)} of {len(self.tasks)} runs failed: {said}{rest}", self.runs, errors)


def run_tasks(
    tasks: Sequence[Task],
    executor: Executor,
    progress: Progress | None = None,
    *,
    keep: Keep | None = None,
    saved: SavedRuns | None = None,
) -> Experiment:
    """Run all tasks; one that fails stops no other. Endpoints are asked first whether they are there.

    Args:
        tasks: what to run.
        executor: who runs them.
        progress: told now and then: the task's title, requests that have ended, requests in all. Where an arm has
            several runs, also ``RUNS``, runs that are done, runs in all.
        keep: given each outcome as it comes; what it returns is kept in its place.
        saved: writes each run down as it comes, and knows those that need not be made again.

    Raises:
        ConfigError: the executor cannot run them.
        OSError: a run cannot be written down.
        KeyboardInterrupt: it came before anything was done.
    """
    servers = Servers.ask(task.config for task in tasks)
    asked, tasks = tasks, servers.with_vocabulary(tasks)
    outcomes: dict[int, Outcome] = {}
    counted = progress if len({task.title for task in tasks}) < len(tasks) or any(t.point for t in tasks) else None
    places = {id(task): place for place, task in enumerate(tasks)}

    def take(outcome: Outcome) -> Outcome:
        place = places[id(outcome.task)]
        outcome = replace(outcome, task=asked[place])  # the very object that the caller knows
        outcomes[place] = keep(outcome) if keep is not None else outcome
        if counted is not None:
            counted(RUNS, len(outcomes), len(tasks))
        return outcomes[place]

    def save(outcome: Outcome) -> Outcome:
        if saved is not None and outcome.run is not None:
            saved.save(outcome.task, outcome.run)
        return take(outcome)

    if saved is not None:
        saved.plan(tasks)
        for task in tasks:
            run = saved.find(task)
            if run is not None:
                run.window = task.window
                take(Outcome(task, run))
    for place, task in enumerate(tasks):
        error = servers.error(task.config)
        if error is not None and place not in outcomes:
            take(Outcome(task, error=error))
    rest = [task for place, task in enumerate(tasks) if place not in outcomes]
    if rest:
        try:
            executor.run(rest, progress, save)
        except KeyboardInterrupt:
            if not any(outcome.run for outcome in outcomes.values()):
                raise
    return Experiment(asked, [outcomes[place] for place in sorted(outcomes)])
