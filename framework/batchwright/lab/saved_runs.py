"""Runs that are written down as they come, and found again when an experiment goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from batchwright.errors import WorkloadError
from batchwright.lab.executors.installed import Installed
from batchwright.lab.files.folder import Folder
from batchwright.lab.files.keys import plugins_of, task_key
from batchwright.lab.files.manifest import run_labels
from batchwright.lab.files.releases import differing_releases, releases_of

if TYPE_CHECKING:
    from batchwright.lab.executors.task import Task
    from batchwright.lab.run_record import RunRecord


class SavedRuns:
    """The runs of one experiment in its folder.

    Args:
        folder: of the experiment.
        resume: take runs that are there, and whole, and made from the very same things, instead of making them again.
        tell: told in a sentence, once, of each upgrade for which runs that are there are made again.

    Attributes:
        num_found: runs that were taken from the folder.
    """

    def __init__(self, folder: Folder, *, resume: bool = False, tell: Callable[[str], None] | None = None) -> None:
        self.folder = folder
        self.resume = resume
        self.num_found = 0
        self._labels: dict[tuple[str, ...], str] = {}
        self._installed = Installed()
        self._tell = tell
        self._told: set[str] = set()

    def plan(self, tasks: Sequence[Task]) -> list[str]:
        """Labels of further tasks; a task that was planned before keeps its own."""
        for task in tasks:
            self._labels.setdefault(run_parts(task), "")
        self._labels = dict(zip(self._labels, run_labels(self._labels), strict=True))
        return [self.label(task) for task in tasks]

    def label(self, task: Task) -> str:
        """The name of a task's run in the folder."""
        return self._labels[run_parts(task)]

    def find(self, task: Task) -> RunRecord | None:
        """The run of a task, if it may be taken; one that cannot be read any more is made again."""
        if not self.resume:
            return None
        try:
            label = self.label(task)
            if self.folder.key(label) != task_key(task, self._installed):
                return None
            if differing := differing_releases(self.folder.releases(label), self._releases(task)):
                self._say(f"{self.folder.path}: runs are made again, since they were made with others: {differing}")
                return None
            run = self.folder.read_run(label)
        except WorkloadError:
            return None
        self.num_found += 1
        return run

    def save(self, task: Task, run: RunRecord) -> None:
        """Write a run down. One that was interrupted gets no key: nobody takes it for a whole one.

        Raises:
            OSError: it cannot be written.
        """
        whole = run.stopped != "interrupted"
        key = task_key(task, self._installed) if whole else None
        self.folder.write_run(self.label(task), run, key=key, releases=self._releases(task))

    def _releases(self, task: Task) -> dict[str, str]:
        return releases_of(task.config, plugins_of(task, self._installed))

    def _say(self, sentence: str) -> None:
        if self._tell is not None and sentence not in self._told:
            self._told.add(sentence)
            self._tell(sentence)


def run_parts(task: Task) -> tuple[str, ...]:
    """What tells a run from the others of its experiment, in words."""
    return (task.arm, *((task.point,) if task.point else ()), f"seed {task.seed}")
