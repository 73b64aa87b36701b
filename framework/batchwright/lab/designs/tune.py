"""The parameters of an arm that serve a goal best, and whether they still do on fresh seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import ConfigError
from batchwright.lab.compare import Comparison
from batchwright.lab.designs.bounds import Bound, parse_bounds
from batchwright.lab.designs.measure import parse_measure
from batchwright.lab.designs.rounds import Rounds
from batchwright.lab.designs.setup import Setup
from batchwright.lab.designs.space import Space, Value, make_spaces
from batchwright.lab.designs.study import Study
from batchwright.lab.designs.tune_plan import HELD_OUT, TunePlan
from batchwright.lab.designs.tuner import Tuner
from batchwright.lab.designs.tuning import Tuning, best_of
from batchwright.lab.executors import Executor, choose_executor
from batchwright.lab.files.keys import fingerprint, sources_of
from batchwright.lab.files.releases import releases_of
from batchwright.lab.plugin_metrics import BUILT_IN, MetricSet
from batchwright.lab.repetition import seeds_of
from batchwright.lab.runner import Progress
from batchwright.lab.saved_runs import SavedRuns
from batchwright.lab.window import Window
from batchwright.lab.workload import Workload
from batchwright.plugins import Plugins, load_plugins


def tune(
    config: EngineConfig,
    workload: Workload,
    over: Mapping[str, str | Iterable[Value]] | Sequence[Space] | Sequence[str],
    *,
    goal: str,
    slo: str | Sequence[Bound] | None = None,
    trials: int = 50,
    seeds: int | Sequence[int] = 3,
    held_out: int | Sequence[int] = 5,
    confidence: float = 0.95,
    batch: int = 1,
    study: str | Path | None = None,
    resample: bool = True,
    warmup: str | float | None = None,
    cooldown: str | float | None = None,
    executor: Executor | str | None = None,
    jobs: int | None = None,
    saved: SavedRuns | None = None,
    progress: Progress | None = None,
    arm: str | None = None,
    seed: int = 0,
    **options: Any,
) -> Tuning:
    """Search the parameters of an arm with Optuna, and hold the best ones against the arm as it was given.

    The first trial has the values that the arm has now, if they are within the spaces; others are suggested by a
    tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011), which is told how far each bound is missed. The
    best of many trials looks better than it is: its goal was partly luck. So it is run again, beside the arm as it was
    given, on seeds that no trial saw, and that comparison is what to believe.

    Args:
        config: of the arm.
        workload: what to offer.
        over: names of settings, and where each is searched: ``int(64,2048,log)``, ``float(0,1)``, or values.
        goal: a metric, such as ``request_goodput`` or ``ttft_p99``.
        slo: bounds that have to be met beside, such as ``itl_p99<0.05``.
        trials: how many, those of a study that goes on among them.
        seeds: how many, or which, each trial runs with.
        held_out: how many, or which, the validation runs with; none of ``seeds``.
        confidence: with which a bound has to be met.
        batch: trials that are suggested at once, so that they can run beside each other; more of them learn less from
            each other.
        study: file to keep the study in; one that is there goes on. None: it is kept in memory.
        resample, warmup, cooldown: as of :func:`~batchwright.lab.ab.ab`.
        executor, jobs: as of ``ab``; the runs of a batch, and of the validation, run beside each other.
        saved: writes the runs of the validation down, and knows those that need not be made again.
        progress: told now and then: what is running, requests that have ended, requests in all; and of ``runs``.
        arm: its name; the policy's by default.
        seed: of the suggestions, and the first of several seeds.
        **options: of :func:`~batchwright.lab.run_arm`.

    Returns:
        What was found. After Ctrl-C it is as far as it had come. A trial that fails says so, and the search goes on.

    Raises:
        ConfigError: Optuna is missing, an argument is out of its range, there is no such setting, or all trials failed.
        WorkloadError, PluginError: as of ``run_arm``.
        KeyboardInterrupt: it came before any trial was done.
    """
    plan = TunePlan(
        spaces=make_spaces(over),
        goal=parse_measure(goal, "goal"),
        bounds=parse_bounds(slo) if isinstance(slo, str) else tuple(slo or ()),
        num_trials=trials,
        seeds=tuple(seeds_of(seeds, seed)),
        held_out=tuple(seeds_of(held_out, HELD_OUT)),
        confidence=confidence,
        batch=batch,
        seed=seed,
    )
    name = arm if arm is not None else str(config.policy)
    window = Window.parse(warmup, cooldown)
    setup = Setup({name: config}, workload, options, window=window, seed=seed, resample=resample)
    if not isinstance(executor, Executor):
        executor = choose_executor(executor, jobs)
    return run_tune(setup, plan, executor, None if study is None else Path(study), saved, progress)


def run_tune(
    setup: Setup,
    plan: TunePlan,
    executor: Executor,
    study: Path | None = None,
    saved: SavedRuns | None = None,
    progress: Progress | None = None,
    metrics: MetricSet = BUILT_IN,
) -> Tuning:
    """:func:`tune`, of a setup that is made already.

    Args:
        setup: the arm, and what it is offered.
        plan: how to search.
        executor, study, saved, progress: as of ``tune``.
        metrics: those of plugins, beside ``METRICS``.

    Raises:
        ConfigError, WorkloadError, PluginError, KeyboardInterrupt: as of ``tune``.
    """
    ((arm, config),) = setup.configs.items()
    given = _given(setup, arm, plan.spaces)
    given_plugins = setup.local.get(arm, {}).get("installed")
    plugins = given_plugins if isinstance(given_plugins, Plugins) else load_plugins(config.no_plugins)
    about = {
        "arm": fingerprint(config.model_dump(mode="json", exclude_unset=True)),
        "workload": setup.workload.hash,
        "sources": fingerprint(sorted(sources_of(config, plugins))),
        "releases": releases_of(config, plugins),
        **plan.about(),
    }
    kept = Study(plan.spaces, maximize=plan.goal.better == "higher", seed=plan.seed, path=study, about=about)
    tuner = Tuner(setup, plan, kept, Rounds(executor, progress), metrics)
    if all(space.holds(given[space.name]) for space in plan.spaces):
        kept.begin_with(given)
    interrupted = False
    validation: Comparison | None = None
    try:
        with executor:
            tuner.search()
            interrupted = len(tuner.trials()) < plan.num_trials
            best = best_of(tuner.trials(), plan.goal)
            if best is not None and best.values != given and not interrupted:
                validation = tuner.validate(best.values, saved)
                interrupted = validation is None
    except KeyboardInterrupt:
        interrupted = True
        if not tuner.trials():
            raise
    done = tuner.trials()
    if done and all(trial.error is not None for trial in done):
        raise ConfigError(f"all {len(done)} trials failed; the last: {done[-1].error}")
    best = best_of(done, plan.goal)
    return Tuning(
        arm=arm,
        plan=plan,
        trials=done,
        given=given,
        config=None if best is None else setup.at(best.values).configs[arm],
        validation=validation,
        was_interrupted=interrupted,
    )


def _given(setup: Setup, arm: str, spaces: Sequence[Space]) -> dict[str, Any]:
    """The values that the arm has; checks that each is a setting of it.

    Raises:
        ConfigError: it is none, or one of the workload.
    """
    given: dict[str, Any] = {}
    for space in spaces:
        if setup.kind_of(space.name) != "config":
            raise ConfigError(
                f"{space.name!r} is no setting of the arm, and tuning it would choose an easier load: name a field of "
                "the config or a parameter of the policy, as in policy.chunk_size"
            )
        given[space.name] = setup.effective(arm, space.name)
    return given
