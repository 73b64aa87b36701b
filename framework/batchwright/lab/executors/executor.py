"""What an executor is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from batchwright.errors import ConfigError
from batchwright.lab.endpoint.address import is_endpoint
from batchwright.lab.executors.installed import Installed
from batchwright.lab.executors.task import Task
from batchwright.lab.runner import Progress

if TYPE_CHECKING:
    from batchwright.lab.run_record import RunRecord


@dataclass(frozen=True)
class Outcome:
    """What became of one task: a record or an error.

    Attributes:
        task: which.
        run: its record; None: it failed.
        error: what it failed with.
    """

    task: Task
    run: RunRecord | None = None
    error: Exception | None = None


Keep = Callable[[Outcome], Outcome]
"""Given each outcome as soon as it is there, in the process that asked; what it returns is kept in its place."""


class Executor(ABC):
    """Runs tasks; their records are the same whoever runs them.

    Attributes:
        name: as a user would write it.
    """

    name: ClassVar[str]

    def __enter__(self) -> Self:
        """Hold what serves several calls of ``run``, such as processes, until the end of the block."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Let it go."""
        return

    @abstractmethod
    def run(self, tasks: Sequence[Task], progress: Progress | None = None, keep: Keep | None = None) -> list[Outcome]:
        """Run all tasks.

        A task that fails stops no other. After Ctrl-C no further one begins, those that run are ended, and what is done
        is kept.

        Args:
            tasks: what to run.
            progress: told now and then: the task's title, requests that have ended, requests in all.
            keep: writes an outcome down, say, or sheds what is not needed any more.

        Returns:
            An outcome for each task that was begun and came to anything, in the order of the tasks.

        Raises:
            ConfigError: these tasks cannot be run by this executor.
            KeyboardInterrupt: it came before anything was done.
        """


def check_sendable(tasks: Sequence[Task], executor: str) -> None:
    """Whether tasks can leave this process, and run beside each other.

    Raises:
        ConfigError: one has options that stay here, or a backend in real time; the message names it.
    """
    installed = Installed()
    for task in tasks:
        config = task.config
        plugins = installed.without(config.no_plugins)
        if is_endpoint(config.backend) or not plugins.backend(config.backend.partition(":")[0]).virtual_time:
            raise ConfigError(
                f"{task.label}: {config.backend} runs in real time, and runs beside each other would take it from each "
                "other; leave jobs and executor out, or use a simulator, such as sim:llama-3.1-8b@h100"
            )
        given = [name for name, value in task.local.items() if value]
        if given:
            raise ConfigError(
                f"{task.label}: {', '.join(given)} are objects of this process, and executor {executor!r} runs in "
                "others; name plugins in the config instead (plugins: [NAME]), or use executor 'serial'"
            )
