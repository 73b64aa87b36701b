"""Which executor a name and a number of jobs mean."""

from __future__ import annotations

from batchwright.errors import ConfigError, did_you_mean
from batchwright.lab.executors.executor import Executor

EXECUTORS = ("serial", "processes", "ray")
"""Names of the executors."""


def choose_executor(name: str | None = None, jobs: int | None = None) -> Executor:
    """The executor of that name.

    Args:
        name: one of ``EXECUTORS``; None: processes where ``jobs`` is more than 1, else this one.
        jobs: runs at a time; None leaves it to the executor.

    Raises:
        ConfigError: there is none of that name, ``jobs`` is out of its range, or it needs what is not installed.
    """
    if jobs is not None and (not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1):
        raise ConfigError(f"jobs must be a whole number of at least 1, not {jobs!r}: so many runs at a time")
    if name is None:
        name = "processes" if jobs is not None and jobs > 1 else "serial"
    if name == "serial":
        from batchwright.lab.executors.serial import Serial

        if jobs is not None and jobs > 1:
            raise ConfigError(
                f"executor 'serial' runs one after the other, and jobs is {jobs}; use 'processes' or 'ray'"
            )
        return Serial()
    if name == "processes":
        from batchwright.lab.executors.processes import Processes

        return Processes(jobs)
    if name == "ray":
        from batchwright.lab.executors.ray import Ray

        return Ray(jobs)
    raise ConfigError(f"unknown executor {name!r}; {did_you_mean(name, EXECUTORS)}")
