"""Two or more arms on the very same requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import ComparisonError
from batchwright.lab.compare import Comparison, compare
from batchwright.lab.executors import Executor, Task, choose_executor
from batchwright.lab.experiment import run_tasks
from batchwright.lab.workload import Workload

_LOCAL = ("plugins", "installed", "on_engine")
"""Options that are objects of this process."""


def ab(
    configs: Mapping[str, EngineConfig],
    workload: Workload,
    *,
    executor: Executor | str | None = None,
    jobs: int | None = None,
    **options: Any,
) -> Comparison:
    """Run each arm on the same workload, and compare all with the first.

    Args:
        configs: the arms' names and settings; the first is what the others are compared with.
        workload: what to offer to each.
        executor: ``serial`` (one after the other), ``processes`` or ``ray``, or an object; None: processes where
            ``jobs`` is above 1, else serial. Records are the same with each. The last two are for simulators.
        jobs: runs at a time; None leaves it to the executor.
        **options: of :func:`~batchwright.lab.runner.run_arm`, for every arm: ``declared``, ``respect_eos``, ``seed``,
            ``max_steps``, ``max_seconds``, ``leap``, ``progress``; with ``serial`` also ``plugins`` and ``installed``.

    Returns:
        The comparison. After Ctrl-C it holds the arms that were begun, and says which were interrupted.

    Raises:
        ComparisonError: there is no arm, or the arms did not get or do the same work (see
            :func:`~batchwright.lab.compare.compare`).
        ExperimentError: some arms failed; it holds the records of the others, which ``compare`` takes.
        WorkloadError, ConfigError, PluginError, BackendError, PolicyError: as ``run_arm``.
    """
    if not configs:
        raise ComparisonError("there is no arm to run: give at least one policy")
    for name in ("arm", "backend", "policy", "origins"):
        if name in options:
            raise TypeError(f"ab() takes no {name!r}: it would be the same for every arm; use run_arm and compare")
    seed = options.pop("seed", 0)
    progress = options.pop("progress", None)
    local = {name: options.pop(name) for name in _LOCAL if name in options}
    tasks = [Task(arm, config, workload, seed, options, local=local) for arm, config in configs.items()]
    if not isinstance(executor, Executor):
        executor = choose_executor(executor, jobs)
    experiment = run_tasks(tasks, executor, progress)
    error = experiment.error()
    if error is not None:
        raise error
    return compare(experiment.runs, seed=seed)
