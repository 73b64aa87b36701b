"""The largest load at which an arm meets its objectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import ConfigError
from batchwright.lab.designs.bounds import Bound
from batchwright.lab.designs.capacities import Capacities
from batchwright.lab.designs.capacity_plan import CapacityPlan
from batchwright.lab.designs.capacity_search import CapacitySearch
from batchwright.lab.designs.ratio import ratio_of
from batchwright.lab.designs.rounds import Rounds
from batchwright.lab.designs.setup import Setup
from batchwright.lab.executors import Executor, choose_executor
from batchwright.lab.plugin_metrics import BUILT_IN, MetricSet
from batchwright.lab.repetition import seeds_of
from batchwright.lab.runner import Progress
from batchwright.lab.saved_runs import SavedRuns
from batchwright.lab.window import Window
from batchwright.lab.workload import Workload


def capacity(
    configs: Mapping[str, EngineConfig],
    workload: Workload,
    slo: str | Sequence[Bound],
    *,
    seeds: int | Sequence[int] = 5,
    confidence: float = 0.95,
    tolerance: float = 0.05,
    lowest: float | None = None,
    highest: float | None = None,
    duration_s: float | None = None,
    resample: bool = True,
    warmup: str | float | None = None,
    cooldown: str | float | None = None,
    executor: Executor | str | None = None,
    jobs: int | None = None,
    saved: SavedRuns | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    **options: Any,
) -> Capacities:
    """Search, for each arm, the largest load that meets objectives.

    The load is the workload with its arrivals made faster or slower; of a closed loop, with more users or fewer. It is
    tried as it is, then doubled or halved until one load meets every bound and one does not; then the middle of the
    two, on a logarithmic scale, until they are within ``tolerance`` of each other, or are neighbouring numbers of
    users. A load meets a bound when the mean over seeds does with confidence: the nearer end of its one-sided interval
    by Student's t. Loads a quarter beside the bracket are tried too: what contradicts it is said, and moves it where it
    lies below.

    Args:
        configs: the arms' names and settings.
        workload: what to offer; its arrivals are scaled, or its users.
        slo: bounds on a run, such as ``ttft_p99<1.0,goodput>0.95``. Where none speaks of requests that are missed,
            ``finished>0.99`` is added.
        seeds: how many, or which; the same for all arms and loads. With one there is no interval.
        confidence: with which a bound has to be met.
        tolerance: how much the bracket's ends may differ, as a share.
        lowest, highest: the range of loads, in requests a second, by default 64 times slower to 64 times faster; of a
            closed loop in users, by default 1 to 64 times as many.
        duration_s: seconds for which each load is offered: the number of requests follows from the rate. A synthetic
            workload is drawn as long as that takes, any other put together from blocks of itself. Without it each load
            has the workload's number of requests, and a higher one is a shorter run.
        resample, warmup, cooldown: as of :func:`~batchwright.lab.ab.ab`.
        executor, jobs: as of ``ab``; the seeds of a load run beside each other, and arms too.
        saved: writes every run down, and knows those that need not be made again.
        progress: told now and then: what is running, requests that have ended, requests in all; and of ``runs``, whose
            number is an estimate.
        seed: the first of several.
        **options: of :func:`~batchwright.lab.run_arm`.

    Returns:
        The capacities. After Ctrl-C they are as far as the search had come. An arm that failed holds its error.

    Raises:
        ConfigError, WorkloadError, PluginError: an argument is out of its range, or an arm cannot be.
        KeyboardInterrupt: it came before anything was done.
    """
    if not configs:
        raise ConfigError("there is no arm to run: give at least one policy")
    setup = Setup(configs, workload, options, window=Window.parse(warmup, cooldown), seed=seed, resample=resample)
    plan = CapacityPlan.of(
        workload, slo, seeds_of(seeds, seed), confidence, tolerance, lowest, highest, duration_s=duration_s
    )
    if not isinstance(executor, Executor):
        executor = choose_executor(executor, jobs)
    return run_capacity(setup, plan, executor, saved, progress)


def run_capacity(
    setup: Setup,
    plan: CapacityPlan,
    executor: Executor,
    saved: SavedRuns | None = None,
    progress: Progress | None = None,
    metrics: MetricSet = BUILT_IN,
) -> Capacities:
    """:func:`capacity`, of a setup that is made already.

    Args:
        setup: the arms, and the load to scale.
        plan: how to search.
        executor, saved, progress: as of ``capacity``.
        metrics: those of plugins, beside ``METRICS``.

    Raises:
        ConfigError, WorkloadError, PluginError, KeyboardInterrupt: as of ``capacity``.
    """
    setup.check()
    search = CapacitySearch(setup, plan, metrics)
    rounds = Rounds(executor, progress)
    try:
        with executor:
            search.run(rounds, saved)
    except KeyboardInterrupt:
        if not any(arm.values for arm in search.arms):
            raise
    arms = tuple(arm.capacity() for arm in search.arms)
    unit = 1.0 if search.loads.is_closed else search.loads.base_rate
    ratios = [ratio_of(arms[0], arm, plan.confidence, unit) for arm in arms[1:]]
    return Capacities(
        arms=arms,
        ratios=tuple(ratio for ratio in ratios if ratio is not None),
        plan=plan,
        workload=setup.workload.name,
        base_rate=None if search.loads.is_closed else search.loads.base_rate,
        has_slo=any(row.slo is not None for row in setup.workload.rows),
        num_runs=rounds.num_done,
        num_found=saved.num_found if saved is not None else 0,
    )
