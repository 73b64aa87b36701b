"""The parameters of an arm that serve a goal best, and whether they still do on fresh seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import ConfigError
from batchwright.lab.compare import Comparison, compare
from batchwright.lab.designs.axis import in_words
from batchwright.lab.designs.bounds import Bound, parse_bounds
from batchwright.lab.designs.measure import Measure, parse_measure
from batchwright.lab.designs.replicates import slim, tasks_of
from batchwright.lab.designs.setup import Setup
from batchwright.lab.designs.space import Space, Value, make_spaces
from batchwright.lab.designs.study import Study
from batchwright.lab.executors import Executor, Outcome, Task, choose_executor
from batchwright.lab.experiment import RUNS, run_tasks
from batchwright.lab.files.keys import fingerprint
from batchwright.lab.metrics import METRICS, Metric
from batchwright.lab.plugin_metrics import BUILT_IN, MetricSet
from batchwright.lab.repetition import in_order, seeds_of
from batchwright.lab.runner import Progress
from batchwright.lab.saved_runs import SavedRuns
from batchwright.lab.summary import summarize
from batchwright.lab.window import Window
from batchwright.lab.workload import Workload
from batchwright.version import RECORD_VERSION

HELD_OUT = 1_000_000
"""Fresh seeds begin here: nobody tunes on them."""

DEFAULT, TUNED = "as given", "tuned"
"""Names of the arms of the validation."""


@dataclass(frozen=True)
class Trial:
    """One set of parameters, and what came of it.

    Attributes:
        number: in the order in which they were tried, from 0.
        values: of each parameter.
        goal: mean over seeds; None: undefined, or the trial failed.
        by_seed: the goal of each seed.
        edges: of each bound, by its text, the end of its interval that counts; None: undefined.
        met: whether every bound is met with confidence.
        error: what a run failed with, in words; None: none did.
    """

    number: int
    values: Mapping[str, Value]
    goal: float | None
    by_seed: tuple[float | None, ...]
    edges: Mapping[str, float | None]
    met: bool
    error: str | None = None


@dataclass(frozen=True)
class Tuning:
    """What a search of parameters found.

    Attributes:
        arm: its name.
        plan: how it was searched.
        trials: in their order.
        given: the values that the arm had before; None for one that is outside its space.
        config: the arm's, with the best values; None: no trial met the bounds.
        validation: the arm as it was given against the tuned one, on seeds that no trial saw; None: there was none,
            since the best values are those it had, or it was interrupted.
        was_interrupted: Ctrl-C ended it.
    """

    arm: str
    plan: TunePlan
    trials: tuple[Trial, ...]
    given: Mapping[str, Any]
    config: EngineConfig | None
    validation: Comparison | None
    was_interrupted: bool = False

    @property
    def best(self) -> Trial | None:
        """The trial with the best goal among those that met the bounds; None: none did."""
        return best_of(self.trials, self.plan.goal)

    @property
    def default(self) -> Trial | None:
        """The trial with the values that the arm had before; None: they are not within the spaces."""
        return next((trial for trial in self.trials if trial.values == self.given), None)

    def on_fresh_seeds(self, arm: str) -> tuple[float | None, Mapping[str, float | None]]:
        """Of an arm of the validation: the mean of the goal, and the edge of each bound by its text."""
        if self.validation is None:
            return None, {}
        runs = [run for run in self.validation.runs if run.arm == arm]
        goals = [self.plan.goal.of(run) for run in runs]
        bounds, confidence = self.plan.bounds, self.plan.confidence
        edges = {b.text: b.edge([b.measure.of(run) for run in runs], confidence) for b in bounds}
        return _mean(goals), edges

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; the same runs give the same bytes."""
        best = self.best
        return {
            "record_version": RECORD_VERSION,
            "design": "tune",
            "arm": self.arm,
            **self.plan.about(),
            "held_out": list(self.plan.held_out),
            "given": dict(self.given),
            "best": None if best is None else best.number,
            "config": None if self.config is None else self.config.model_dump(mode="json", exclude_unset=True),
            "trials": [
                {
                    "number": trial.number,
                    "values": dict(trial.values),
                    "goal": trial.goal,
                    "by_seed": list(trial.by_seed),
                    "edges": dict(trial.edges),
                    "met": trial.met,
                    "error": trial.error,
                }
                for trial in self.trials
            ],
            "validation": None if self.validation is None else self.validation.results(),
        }

    def write_json(self, path: str | Path) -> None:
        """Write it to a file.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(json.dumps(self.to_json(), allow_nan=False) + "\n", encoding="utf-8")


def best_of(trials: Iterable[Trial], goal: Measure) -> Trial | None:
    """The trial with the best goal among those that met the bounds; of equals the first."""
    found = [trial for trial in trials if trial.met and trial.goal is not None]
    sign = -1 if goal.better == "higher" else 1
    return min(found, key=lambda trial: (sign * (trial.goal or 0.0), trial.number), default=None)


@dataclass(frozen=True)
class TunePlan:
    """How parameters are searched.

    Attributes:
        spaces: where each parameter is searched.
        goal: what is to become better.
        bounds: what has to be met beside.
        num_trials: how many, those of a study that goes on among them.
        seeds: of the runs of each trial.
        held_out: seeds of the validation.
        confidence: with which a bound has to be met.
        batch: trials that are suggested at once.
        seed: of the suggestions.
    """

    spaces: tuple[Space, ...]
    goal: Measure
    bounds: tuple[Bound, ...]
    num_trials: int
    seeds: tuple[int, ...]
    held_out: tuple[int, ...]
    confidence: float = 0.95
    batch: int = 1
    seed: int = 0

    @classmethod
    def of(
        cls,
        over: Mapping[str, str | Iterable[Value]] | Sequence[Space] | Sequence[str],
        goal: str,
        slo: str | Sequence[Bound] | None = None,
        *,
        trials: int = 50,
        seeds: int | Sequence[int] = 3,
        held_out: int | Sequence[int] = 5,
        confidence: float = 0.95,
        batch: int = 1,
        seed: int = 0,
        metrics: Mapping[str, Metric] = METRICS,
    ) -> TunePlan:
        """A plan from what a user gave.

        Raises:
            ConfigError: an argument is out of its range, or there is no such metric.
        """
        spaces, measure = make_spaces(over), parse_measure(goal, "goal", metrics)
        if measure.better is None:
            raise ConfigError(f"goal {goal!r} is better neither way: name one that is, such as request_goodput")
        for name, number in (("trials", trials), ("batch", batch)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, not {number!r}")
        if not 0.5 <= confidence < 1:
            raise ConfigError(f"confidence must be at least 0.5 and below 1, not {confidence!r}")
        bounds = parse_bounds(slo, metrics) if isinstance(slo, str) else tuple(slo or ())
        chosen, fresh = seeds_of(seeds, seed), seeds_of(held_out, HELD_OUT)
        both = sorted(set(chosen) & set(fresh))
        if both:
            raise ConfigError(f"seeds {both} are to be tuned on and to be held out: take others")
        return cls(spaces, measure, bounds, trials, tuple(chosen), tuple(fresh), confidence, batch, seed)

    def about(self) -> dict[str, Any]:
        """What decides which trials are suggested, as a JSON object."""
        return {
            "over": [str(space) for space in self.spaces],
            "goal": self.goal.name,
            "slo": [bound.text for bound in self.bounds],
            "seeds": list(self.seeds),
            "confidence": self.confidence,
            "batch": self.batch,
            "seed": self.seed,
        }


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
    plan = TunePlan.of(
        over,
        goal,
        slo,
        trials=trials,
        seeds=seeds,
        held_out=held_out,
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
    about = {
        "arm": fingerprint(config.model_dump(mode="json", exclude_unset=True)),
        "workload": setup.workload.hash,
        **plan.about(),
    }
    kept = Study(plan.spaces, maximize=plan.goal.better == "higher", seed=plan.seed, path=study, about=about)
    tuner = _Tuner(setup, plan, kept, executor, progress, metrics)
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


class _Tuner:
    """The search, trial by trial."""

    def __init__(
        self,
        setup: Setup,
        plan: TunePlan,
        study: Study,
        executor: Executor,
        progress: Progress | None,
        metrics: MetricSet,
    ) -> None:
        self._setup = setup
        self._plan = plan
        self._study = study
        self._executor = executor
        self._progress = progress
        self._metrics = metrics
        self._done = 0
        self._all = plan.num_trials * len(plan.seeds) + 2 * len(plan.held_out)

    def trials(self) -> tuple[Trial, ...]:
        """Those that are done."""
        return tuple(
            Trial(
                number,
                result["values"],
                result["goal"],
                tuple(result["by_seed"]),
                result["edges"],
                result["met"],
                result["error"],
            )
            for number, result in sorted(self._study.results.items())
        )

    def search(self) -> None:
        """Until all trials are done, or Ctrl-C."""
        while (done := len(self._study.results)) < self._plan.num_trials:
            self._done = done * len(self._plan.seeds)
            if not self._round(self._study.ask(min(self._plan.batch, self._plan.num_trials - done))):
                return

    def _round(self, asked: Sequence[tuple[Any, dict[str, Value]]]) -> bool:
        """Run some trials beside each other, and tell the study; False after Ctrl-C."""
        tasks: list[Task] = []
        owners: dict[int, int] = {}
        wrong: dict[int, str] = {}
        for place, (_, values) in enumerate(asked):
            try:
                changed = self._setup.at(values)
            except ConfigError as error:  # parameters that do not go together
                wrong[place] = str(error)
                continue
            own = tasks_of(changed, self._plan.seeds, in_words(values))
            owners |= {id(task): place for task in own}
            tasks += own
        found: dict[int, dict[int, list[float | None]]] = {place: {} for place in range(len(asked))}

        def keep(outcome: Outcome) -> Outcome:
            place, run = owners[id(outcome.task)], self._count(outcome).run
            if run is None:
                wrong.setdefault(place, f"{type(outcome.error).__name__}: {outcome.error}")
                return outcome
            if run.stopped != "interrupted":
                summary = summarize(run, self._metrics)
                measures = (self._plan.goal, *(bound.measure for bound in self._plan.bounds))
                found[place][outcome.task.seed] = [measure.of(run, summary) for measure in measures]
            return Outcome(outcome.task, slim(run))

        if tasks and run_tasks(tasks, self._executor, _hushed(self._progress), keep=keep).was_interrupted:
            return False
        for place, (trial, values) in enumerate(asked):
            self._tell(trial, values, found[place], wrong.get(place))
        return True

    def _tell(
        self, trial: Any, values: Mapping[str, Value], found: Mapping[int, list[float | None]], error: str | None
    ) -> None:
        by_seed = [found[seed][0] for seed in self._plan.seeds if seed in found]
        goal = _mean(by_seed) if len(by_seed) == len(self._plan.seeds) and error is None else None
        edges: dict[str, float | None] = {}
        excess: dict[str, float] = {}
        for place, bound in enumerate(self._plan.bounds, 1):
            edge = bound.edge([found[seed][place] for seed in self._plan.seeds if seed in found], self._plan.confidence)
            edges[bound.text] = edge
            excess[bound.text] = _excess(bound, edge)
        met = error is None and all(b.met(edges[b.text]) for b in self._plan.bounds)
        result = {"values": dict(values), "goal": goal, "by_seed": by_seed, "edges": edges, "met": met, "error": error}
        self._study.tell(trial, goal, excess, result)

    def validate(self, values: Mapping[str, Value], saved: SavedRuns | None) -> Comparison | None:
        """The arm as it was given against the tuned one, on fresh seeds; None after Ctrl-C."""
        ((arm, given),) = self._setup.configs.items()
        (tuned,) = self._setup.at(values).configs.values()
        origins, local = self._setup.origins.get(arm, {}), self._setup.local.get(arm, {})
        both = replace(
            self._setup,
            configs={DEFAULT: given, TUNED: tuned},
            origins={DEFAULT: origins, TUNED: origins},
            local={DEFAULT: local, TUNED: local},
        )
        tasks = tasks_of(both, self._plan.held_out, "validation")
        experiment = run_tasks(tasks, self._executor, _hushed(self._progress), keep=self._count, saved=saved)
        error = experiment.error()
        if error is not None:
            raise error
        if experiment.was_interrupted:
            return None
        return compare(in_order(experiment.runs, (DEFAULT, TUNED)), seed=self._setup.seed, metrics=self._metrics)

    def _count(self, outcome: Outcome) -> Outcome:
        self._done += 1
        if self._progress is not None:
            self._progress(RUNS, self._done, max(self._all, self._done))
        return outcome


def _hushed(progress: Progress | None) -> Progress | None:
    """Without the count of runs of one round, which is not that of the whole."""
    if progress is None:
        return None

    def report(label: str, done: int, total: int) -> None:
        if label != RUNS:
            progress(label, done, total)

    return report


def _excess(bound: Bound, edge: float | None) -> float:
    """By how much a bound is missed, as a share of its limit; at most 0 where it is met."""
    if edge is None:
        return 1e6
    over = edge - bound.limit if bound.below else bound.limit - edge
    share = over / (abs(bound.limit) or 1.0)
    return share if bound.met(edge) else max(share, 1e-9)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None
