"""Arms compared at every point of a grid of settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import BatchwrightError, ConfigError, ExperimentError
from batchwright.lab.compare import Comparison, compare
from batchwright.lab.designs.answer import Answer
from batchwright.lab.designs.axis import Axis, Point, in_words, make_axes, points_of
from batchwright.lab.designs.replicates import slim, tasks_of
from batchwright.lab.designs.setup import Setup
from batchwright.lab.designs.sweep_closing import closing_lines, telling
from batchwright.lab.executors import Executor, Outcome, Task, choose_executor
from batchwright.lab.experiment import run_tasks
from batchwright.lab.family import LEVEL, PRIMARY, Family
from batchwright.lab.plugin_metrics import BUILT_IN, MetricSet
from batchwright.lab.repetition import in_order, seeds_of
from batchwright.lab.runner import Progress
from batchwright.lab.saved_runs import SavedRuns
from batchwright.lab.verdict import Verdict
from batchwright.lab.window import Window
from batchwright.lab.workload import Workload
from batchwright.version import RECORD_VERSION


@dataclass(frozen=True)
class SweepPoint:
    """One point of a sweep, at which all arms were run.

    Attributes:
        values: of each axis.
        comparison: of the arms; None: none of them could be run.
        failed: label of each run that failed, and with what.
    """

    values: Point
    comparison: Comparison | None
    failed: Mapping[str, Exception] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The point in words: ``max_num_batched_tokens=512, rate=8``."""
        return in_words(self.values)

    def value(self, metric: str, arm: str) -> float | int | None:
        """A metric of an arm, the mean over seeds; None where it is undefined or the arm failed."""
        if self.comparison is None or arm not in self.comparison.summaries:
            return None
        return self.comparison.summaries[arm][metric]

    def verdict(self, metric: str, arm: str) -> Verdict | None:
        """The verdict on a metric of an arm against the first; None where there is none."""
        verdicts = self.comparison.verdicts if self.comparison is not None else ()
        return next((v for v in verdicts if v.arm == arm and v.metric == metric), None)


@dataclass(frozen=True)
class Sweep(Answer):
    """Arms at every point of a grid.

    Attributes:
        arms: names; the first is what the others are compared with.
        axes: what was varied.
        seeds: of the runs at each point.
        points: those that are done, in the order of the grid.
        missing: those that are not, after Ctrl-C.
        num_found: runs that were taken from a folder.
    """

    arms: tuple[str, ...]
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    points: tuple[SweepPoint, ...]
    missing: tuple[Point, ...] = ()
    num_found: int = 0

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return bool(self.missing)

    def point(self, **values: Any) -> SweepPoint:
        """The point with these values; axes that are left out must have one value only.

        Raises:
            ConfigError: there is none, or there are several.
        """
        wanted = {name.replace("__", "."): value for name, value in values.items()}
        found = [p for p in self.points if all(p.values.get(name) == value for name, value in wanted.items())]
        if len(found) != 1:
            raise ConfigError(
                f"{len(found)} of {len(self.points)} points have {in_words(wanted) or 'any values'}; points: "
                + "; ".join(p.label for p in self.points)
            )
        return found[0]

    def error(self) -> Exception | None:
        """What to raise for the runs that failed; None: none did."""
        failed = {label: error for point in self.points for label, error in point.failed.items()}
        if not failed:
            return None
        kept = [run for p in self.points if p.comparison is not None for run in p.comparison.runs]
        errors = list(failed.values())
        if not kept and len({str(error) for error in errors}) == 1:
            return errors[0]
        said = "; ".join(f"{label}: {type(error).__name__}: {error}" for label, error in failed.items())
        return ExperimentError(f"{len(failed)} runs of the sweep failed: {said}; the others went well", kept, errors)

    def to_json(self) -> dict[str, Any]:
        """Results as a JSON object, without the records; the same runs give the same bytes."""
        return {
            "record_version": RECORD_VERSION,
            "design": "sweep",
            "arms": list(self.arms),
            "axes": {axis.name: list(axis.values) for axis in self.axes},
            "seeds": list(self.seeds),
            "points": [_point_to_json(point) for point in self.points],
            "missing": [dict(point) for point in self.missing],
            "closing": list(closing_lines(self, telling(self))),
        }


def sweep(
    configs: Mapping[str, EngineConfig],
    workload: Workload,
    over: Mapping[str, Iterable[Any]] | Sequence[Axis] | Sequence[str],
    *,
    seeds: int | Sequence[int] | None = None,
    resample: bool = True,
    warmup: str | float | None = None,
    cooldown: str | float | None = None,
    level: float = LEVEL,
    primary: Sequence[str] = PRIMARY,
    executor: Executor | str | None = None,
    jobs: int | None = None,
    saved: SavedRuns | None = None,
    keep_records: bool = True,
    progress: Progress | None = None,
    seed: int = 0,
    **options: Any,
) -> Sweep:
    """Run all arms at every point of a grid of settings, and compare them at each.

    At one point all arms get the very same requests. All points are checked before anything runs.

    Args:
        configs: the arms' names and settings.
        workload: what to offer, where no axis says otherwise.
        over: names of settings and the values that each takes; the points are their cartesian product. Names are as
            :meth:`~batchwright.lab.designs.setup.Setup.at` has them.
        seeds, resample, warmup, cooldown: as of :func:`~batchwright.lab.ab.ab`, at every point.
        level: how sure all intervals of all points are together.
        primary: the metrics that it is about; the others are tested more strictly.
        executor, jobs: as of ``ab``; points run beside each other.
        saved: writes every run down, and knows those that need not be made again.
        keep_records: hold requests and steps of all runs in memory; without, only results are left of a point that is
            done.
        progress: told now and then: what is running, requests that have ended, requests in all; and of ``runs``.
        seed: of the runs, the first of several.
        **options: of :func:`~batchwright.lab.run_arm`.

    Returns:
        The sweep. After Ctrl-C it holds the points that were done. Runs that failed are named at their points; see
        :meth:`Sweep.error`.

    Raises:
        ConfigError, WorkloadError, PluginError: there is no such setting, or it cannot have one of its values.
        KeyboardInterrupt: it came before any run was done.
    """
    if not configs:
        raise ConfigError("there is no arm to run: give at least one policy")
    setup = Setup(configs, workload, options, window=Window.parse(warmup, cooldown), seed=seed, resample=resample)
    if not isinstance(executor, Executor):
        executor = choose_executor(executor, jobs)
    family = Family(level, tuple(primary))
    chosen = seeds_of(seeds, seed)
    return run_sweep(setup, make_axes(over), chosen, executor, family, saved, progress, keep_records=keep_records)


def run_sweep(
    setup: Setup,
    axes: Sequence[Axis],
    seeds: Sequence[int],
    executor: Executor,
    family: Family,
    saved: SavedRuns | None = None,
    progress: Progress | None = None,
    *,
    metrics: MetricSet = BUILT_IN,
    keep_records: bool = True,
) -> Sweep:
    """:func:`sweep`, of a setup that is made already.

    Args:
        setup: what to run where no axis says otherwise.
        axes, seeds, executor, saved, progress, keep_records: as of ``sweep``.
        family: how strict the tests of the whole sweep are; each point gets its share.
        metrics: those of plugins, beside ``METRICS``.

    Raises:
        ConfigError, WorkloadError, PluginError, KeyboardInterrupt: as of ``sweep``.
    """
    points = list(points_of(axes))
    tasks = [tasks_of(setup.at(point), seeds, in_words(point)) for point in points]
    strict = replace(family, level=1 - (1 - family.level) / len(points))
    done = _Done(points, tasks, partial(compare, seed=setup.seed, family=strict, metrics=metrics), keep_records)
    try:
        run_tasks([task for group in tasks for task in group], executor, progress, keep=done.keep, saved=saved)
    except KeyboardInterrupt:
        if not done.points:
            raise
    return Sweep(
        arms=tuple(setup.configs),
        axes=tuple(axes),
        seeds=tuple(seeds),
        points=tuple(done.points[place] for place in sorted(done.points)),
        missing=tuple(point for place, point in enumerate(points) if place not in done.points),
        num_found=saved.num_found if saved is not None else 0,
    )


class _Done:
    """Gathers the runs of each point, and compares them when the last one is in."""

    def __init__(
        self,
        points: Sequence[Point],
        tasks: Sequence[Sequence[Task]],
        comparing: Callable[..., Comparison],
        keep_records: bool,
    ) -> None:
        self._values = points
        self._tasks = tasks
        self._place = {id(task): place for place, group in enumerate(tasks) for task in group}
        self._waiting: dict[int, dict[int, Outcome]] = {}
        self._comparing = comparing
        self._keep_records = keep_records
        self.points: dict[int, SweepPoint] = {}

    def keep(self, outcome: Outcome) -> Outcome:
        place = self._place[id(outcome.task)]
        if outcome.run is None or outcome.run.stopped != "interrupted":
            here = self._waiting.setdefault(place, {})
            here[id(outcome.task)] = outcome
            if len(here) == len(self._tasks[place]):
                self.points[place] = self._point(place, [here[id(task)] for task in self._tasks[place]])
                del self._waiting[place]
        if self._keep_records or outcome.run is None:
            return outcome
        return replace(outcome, run=slim(outcome.run))

    def _point(self, place: int, outcomes: Sequence[Outcome]) -> SweepPoint:
        failed = {o.task.label: o.error for o in outcomes if o.error is not None}
        lost = {o.task.arm for o in outcomes if o.error is not None}
        runs = [o.run for o in outcomes if o.run is not None and o.task.arm not in lost]
        comparison: Comparison | None = None
        if runs and outcomes[0].task.arm not in lost:  # without the first arm there is nothing to compare with
            try:
                comparison = self._comparing(in_order(runs, list(dict.fromkeys(o.task.arm for o in outcomes))))
            except BatchwrightError as error:
                failed = {**failed, f"point {in_words(self._values[place])}": error}
        if comparison is not None and not self._keep_records:
            comparison = replace(comparison, runs=tuple(map(slim, comparison.runs)))
        return SweepPoint(self._values[place], comparison, failed)


def _point_to_json(point: SweepPoint) -> dict[str, Any]:
    found: dict[str, Any] = {"values": dict(point.values)}
    if point.comparison is not None:
        found |= {name: value for name, value in point.comparison.results().items() if name not in _SAID}
    if point.failed:
        found["failed"] = {label: f"{type(error).__name__}: {error}" for label, error in point.failed.items()}
    return found


_SAID = ("record_version", "arms", "seeds")
