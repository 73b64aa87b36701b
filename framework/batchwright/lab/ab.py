"""Two or more arms on the very same requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import ComparisonError
from batchwright.lab.compare import Comparison, compare
from batchwright.lab.executors import Executor, Task, choose_executor
from batchwright.lab.experiment import run_tasks
from batchwright.lab.family import LEVEL, PRIMARY, Family
from batchwright.lab.repetition import in_order, repeated, seeds_of
from batchwright.lab.window import Window
from batchwright.lab.workload import Workload
from batchwright.plugins import load_plugins

_LOCAL = ("plugins", "installed", "on_engine")
"""Options that are objects of this process."""


def ab(
    configs: Mapping[str, EngineConfig],
    workload: Workload,
    *,
    seeds: int | Sequence[int] | None = None,
    resample: bool = True,
    warmup: str | float | None = None,
    cooldown: str | float | None = None,
    level: float = LEVEL,
    primary: Sequence[str] = PRIMARY,
    executor: Executor | str | None = None,
    jobs: int | None = None,
    keep_failed: bool = False,
    **options: Any,
) -> Comparison:
    """Run each arm on the same workload, and compare all with the first.

    Args:
        configs: the arms' names and settings; the first is what the others are compared with.
        workload: what to offer to each.
        seeds: run every arm so many times, or once with each of these seeds. A seed varies prompts, all that engine and
            backend draw (noise), and the workload; arms are paired within a seed.
        resample: with several seeds, vary the workload with them: synthetic ones are drawn again, traces are put
            together from blocks of themselves.
        warmup, cooldown: leave the requests at the beginning and at the end of each run out of all metrics: a share of
            them (``10%``) or those that arrive in so many seconds (``30``).
        level: how sure all intervals are together.
        primary: the metrics that it is about; the others are tested more strictly.
        executor: ``serial`` (one after the other), ``processes`` or ``ray``, or an object; None: processes where
            ``jobs`` is above 1, else serial. Records are the same with each. The last two are for simulators.
        jobs: runs at a time; None leaves it to the executor.
        keep_failed: where runs fail and others do not, compare the others, and say in the comparison what failed.
        **options: of :func:`~batchwright.lab.runner.run_arm`, for every arm: ``declared``, ``respect_eos``, ``seed``,
            ``max_steps``, ``max_seconds``, ``leap``, ``progress``; with ``serial`` also ``plugins`` and ``installed``.

    Returns:
        The comparison. After Ctrl-C it holds the runs that were begun, and says which were interrupted.

    Raises:
        ComparisonError: there is no arm, or the arms did not get or do the same work (see
            :func:`~batchwright.lab.compare.compare`).
        ExperimentError: some runs failed; it holds the records of the others, which ``compare`` takes.
        WorkloadError, ConfigError, PluginError, BackendError, PolicyError: as ``run_arm``.
    """
    if not configs:
        raise ComparisonError("there is no arm to run: give at least one policy")
    for name in ("arm", "backend", "policy", "origins"):
        if name in options:
            raise TypeError(f"ab() takes no {name!r}: it would be the same for every arm; use run_arm and compare")
    installed = options.get("installed") or load_plugins(next(iter(configs.values())).no_plugins)
    family = Family(level, tuple(primary))
    family.check(installed.metric_set.metrics)
    seed = options.pop("seed", 0)
    progress = options.pop("progress", None)
    local = {name: options.pop(name) for name in _LOCAL if name in options}
    window = Window.parse(warmup, cooldown)
    if window is not None:
        window.check(workload)
    tasks = [Task(arm, config, workload, seed, options, local=local, window=window) for arm, config in configs.items()]
    tasks = repeated(tasks, seeds_of(seeds, seed), resample=resample)
    if not isinstance(executor, Executor):
        executor = choose_executor(executor, jobs)
    experiment = run_tasks(tasks, executor, progress)
    error = experiment.error()
    if error is not None and not (keep_failed and experiment.runs):
        raise error
    runs = in_order(experiment.runs, list(configs))
    return compare(runs, seed=seed, family=family, failures=experiment.failures, metrics=installed.metric_set)
