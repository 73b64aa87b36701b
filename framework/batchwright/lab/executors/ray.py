"""Runs over Ray: the cores of one machine, or of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from batchwright.errors import BackendError, ConfigError
from batchwright.lab.executors.executor import Executor, Keep, Outcome, check_sendable
from batchwright.lab.executors.installed import Installed
from batchwright.lab.executors.processes import pack_error, unpack_error
from batchwright.lab.executors.task import Task
from batchwright.lab.interrupts import Interrupts
from batchwright.lab.runner import Progress

_LOOK_S = 0.2
_INSTALLED = Installed()
"""Of a process of Ray's, which runs one task after the other."""


class Ray(Executor):
    """Each run a Ray task of one core.

    It joins the cluster that ``RAY_ADDRESS`` or ``ray.init`` names, else starts one on this machine for the time of the
    experiment. Nodes of a cluster need Batchwright, the plugins and the files that are named, under the same paths.
    """

    name: ClassVar[str] = "ray"

    def __init__(self, jobs: int | None = None) -> None:
        """Takes how many runs at a time; None: as many as there are cores.

        Raises:
            ConfigError: Ray is not installed.
        """
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ConfigError(
                f"executor 'ray' needs Ray, which cannot be imported here ({error}): pip install 'batchwright[ray]', "
                "or use executor 'processes'"
            ) from None
        self._ray: Any = ray
        self.jobs = jobs

    def run(self, tasks: Sequence[Task], progress: Progress | None = None, keep: Keep | None = None) -> list[Outcome]:
        """See :class:`Executor`; progress is told of whole runs."""
        check_sendable(tasks, self.name)
        ray = self._ray
        own = not ray.is_initialized()
        if own:
            local = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": self.jobs, "include_dashboard": False}
            ray.init(log_to_driver=False, **local)
        try:
            return self._run(tasks, progress, keep)
        finally:
            if own:
                ray.shutdown()

    def _run(self, tasks: Sequence[Task], progress: Progress | None, keep: Keep | None) -> list[Outcome]:
        ray = self._ray
        remote = ray.remote(num_cpus=1, max_retries=0)(_run)
        most = self.jobs if self.jobs is not None else len(tasks)
        waiting = list(range(len(tasks)))
        running: dict[Any, int] = {}
        outcomes: dict[int, Outcome] = {}
        stopped = False
        try:
            with Interrupts() as interrupts:
                while (waiting or running) and not interrupts.asked:
                    while waiting and len(running) < most:
                        place = waiting.pop(0)
                        running[remote.remote(tasks[place], os.getcwd())] = place
                    ready, _ = ray.wait(list(running), timeout=_LOOK_S)
                    for reference in ready:
                        place = running.pop(reference)
                        outcome = self._outcome(tasks[place], reference)
                        outcomes[place] = keep(outcome) if keep is not None else outcome
                        if progress is not None:
                            total = len(tasks[place].workload)
                            progress(tasks[place].title, total, total)
                stopped = interrupts.asked
        except KeyboardInterrupt:
            stopped = True
        for reference in running:
            ray.cancel(reference, force=True)
        if stopped and not any(outcome.run for outcome in outcomes.values()):
            raise KeyboardInterrupt
        return [outcomes[place] for place in sorted(outcomes)]

    def _outcome(self, task: Task, reference: Any) -> Outcome:
        try:
            run, failed = self._ray.get(reference)
        except Exception as error:  # of Ray: a node or a process went away
            return Outcome(task, error=BackendError(f"Ray lost it: {type(error).__name__}: {error}"))
        return Outcome(task, run=run) if failed is None else Outcome(task, error=unpack_error(*failed))


def _run(task: Task, folder: str) -> tuple[Any, Any]:
    """Where the task is run: a record, or an error as bytes and words."""
    if os.path.isdir(folder):  # files of policies are named from there
        os.chdir(folder)
    try:
        return task.run(installed=_INSTALLED), None
    except Exception as error:
        return None, pack_error(error)
