"""The largest load at which an arm meets its objectives."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import ConfigError
from batchwright.lab.designs.bounds import Bound, parse_bounds, with_finished
from batchwright.lab.designs.ratio import Ratio, ratio_of
from batchwright.lab.designs.replicates import slim, tasks_of
from batchwright.lab.designs.search import bracket, contradictions, most_left, next_rate
from batchwright.lab.designs.setup import Setup
from batchwright.lab.executors import Executor, Outcome, Task, choose_executor
from batchwright.lab.experiment import RUNS, run_tasks
from batchwright.lab.load import Load
from batchwright.lab.plugin_metrics import BUILT_IN, MetricSet
from batchwright.lab.repetition import seeds_of
from batchwright.lab.runner import Progress
from batchwright.lab.saved_runs import SavedRuns
from batchwright.lab.summary import summarize
from batchwright.lab.window import Window
from batchwright.lab.workload import Workload
from batchwright.version import RECORD_VERSION

SPAN = 64.0
"""How many times slower and faster than the workload as it is given a search goes by default."""


@dataclass(frozen=True)
class LoadPoint:
    """What an arm did at one load.

    Attributes:
        speedup: of the load: arrivals are so many times as fast as in the workload as it was given.
        rate: requests a second on average.
        met: whether every bound is met with confidence.
        values: of each bound, by its text, the values by seed.
        edges: of each bound the end of the interval of the mean that counts; None where it is undefined.
        limited_by: texts of the bounds that are not met.
        num_overloaded: of the seeds: in how many a backlog built up that was not worked off.
    """

    speedup: float
    rate: float
    met: bool
    values: Mapping[str, tuple[float | None, ...]]
    edges: Mapping[str, float | None]
    limited_by: tuple[str, ...]
    num_overloaded: int


@dataclass(frozen=True)
class ArmCapacity:
    """The capacity of one arm.

    Attributes:
        arm: its name.
        points: the loads that were tried with all seeds, in order of rate.
        low: the highest load that meets the bounds, below every one that does not; None: none does.
        high: the lowest load that does not; None: all do.
        by_seed: of each seed alone, the speedups between which it stops meeting the bounds; an end that was not found
            is None.
        contradictions: loads above ``high`` that do meet them.
        is_done: whether the search came to its end.
        error: what the arm failed with; None: it did not.
    """

    arm: str
    points: tuple[LoadPoint, ...]
    low: LoadPoint | None
    high: LoadPoint | None
    by_seed: Mapping[int, tuple[float | None, float | None]] = field(default_factory=dict)
    contradictions: tuple[LoadPoint, ...] = ()
    is_done: bool = True
    error: Exception | None = None

    @property
    def rate(self) -> float | None:
        """Requests a second at ``low``; None where no load meets the bounds."""
        return self.low.rate if self.low is not None else None


@dataclass(frozen=True)
class Capacities:
    """Capacities of several arms under one kind of load.

    Attributes:
        arms: the capacities; the first is what others are compared with.
        ratios: of the other arms' capacities to the first one's, where both were found.
        plan: how they were searched.
        workload: name of it.
        base_rate: requests a second of the workload as it was given.
        has_slo: whether any request has objectives of its own.
        num_runs, num_found: how many runs it took, and how many of them were in a folder already.
    """

    arms: tuple[ArmCapacity, ...]
    ratios: tuple[Ratio, ...]
    plan: Plan
    workload: str
    base_rate: float
    has_slo: bool
    num_runs: int
    num_found: int = 0

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return any(not arm.is_done and arm.error is None for arm in self.arms)

    def of(self, arm: str) -> ArmCapacity:
        """The capacity of an arm.

        Raises:
            ConfigError: there is no such arm.
        """
        for found in self.arms:
            if found.arm == arm:
                return found
        raise ConfigError(f"there is no arm {arm!r}; arms: {', '.join(found.arm for found in self.arms)}")

    def error(self) -> Exception | None:
        """What to raise for arms that failed: the first one's error; None: none did."""
        return next((arm.error for arm in self.arms if arm.error is not None), None)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; the same runs give the same bytes."""
        return {
            "record_version": RECORD_VERSION,
            "design": "capacity",
            "slo": [bound.text for bound in self.plan.bounds],
            "seeds": list(self.plan.seeds),
            "confidence": self.plan.confidence,
            "tolerance": self.plan.tolerance,
            "lowest": self.plan.lowest,
            "highest": self.plan.highest,
            "workload": self.workload,
            "base_rate": self.base_rate,
            "arms": {arm.arm: _arm_to_json(arm) for arm in self.arms},
            "ratios": [ratio.to_json() for ratio in self.ratios],
        }

    def write_json(self, path: str | Path) -> None:
        """Write it to a file.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_text(json.dumps(self.to_json(), allow_nan=False) + "\n", encoding="utf-8")


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

    The load is the workload with its arrivals made faster or slower. It is tried as it is, then doubled or halved until
    one load meets every bound and one does not; then the middle of the two, on a logarithmic scale, until they are
    within ``tolerance`` of each other. A load meets a bound when the mean over seeds does with confidence: the nearer
    end of its one-sided interval by Student's t. Loads a quarter beside the bracket are tried too: what contradicts it
    is said, and moves it where it lies below.

    Args:
        configs: the arms' names and settings.
        workload: what to offer; its arrivals are scaled.
        slo: bounds on a run, such as ``ttft_p99<1.0,goodput>0.95``. Where none speaks of requests that are missed,
            ``finished>0.99`` is added.
        seeds: how many, or which; the same for all arms and loads. With one there is no interval.
        confidence: with which a bound has to be met.
        tolerance: how much the bracket's ends may differ, as a share.
        lowest, highest: the range of loads, in requests a second; by default 64 times slower to 64 times faster.
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
    plan = Plan.of(workload, slo, seeds_of(seeds, seed), confidence, tolerance, lowest, highest)
    if not isinstance(executor, Executor):
        executor = choose_executor(executor, jobs)
    return run_capacity(setup, plan, executor, saved, progress)


@dataclass(frozen=True)
class Plan:
    """How capacities are searched.

    Attributes:
        bounds: what has to be met.
        seeds: of the runs at each load.
        confidence: with which a bound has to be met.
        tolerance: how much the bracket's ends may differ, as a share.
        lowest, highest: the range of loads, as speedups.
    """

    bounds: tuple[Bound, ...]
    seeds: tuple[int, ...]
    confidence: float
    tolerance: float
    lowest: float
    highest: float

    @classmethod
    def of(
        cls,
        workload: Workload,
        slo: str | Sequence[Bound],
        seeds: Sequence[int],
        confidence: float = 0.95,
        tolerance: float = 0.05,
        lowest: float | None = None,
        highest: float | None = None,
    ) -> Plan:
        """A plan from what a user gave; loads in requests a second.

        Raises:
            ConfigError: an argument is out of its range, or the workload has no rate to change.
        """
        if not 0.5 <= confidence < 1:
            raise ConfigError(f"confidence must be at least 0.5 and below 1, not {confidence!r}")
        if not 0 < tolerance < math.inf:
            raise ConfigError(f"tolerance must be above 0, not {tolerance!r}: 0.05 ends a search within 5%")
        if workload.concurrency is not None or not math.isfinite(workload.rate):
            why = (
                f"its {workload.concurrency} users offer requests when others have ended"
                if workload.concurrency is not None
                else "all its requests arrive at once"
            )
            raise ConfigError(
                f"workload {workload.name} has no rate to raise: {why}; take one with arrivals, such as a trace or "
                "synthetic:rate=4"
            )
        ends = (
            1 / SPAN if lowest is None else lowest / workload.rate,
            SPAN if highest is None else highest / workload.rate,
        )
        if not 0 < ends[0] < ends[1] < math.inf:
            raise ConfigError(
                f"the range of loads is {ends[0] * workload.rate:g} to {ends[1] * workload.rate:g} requests/s: the "
                "lowest must be above 0, and the highest above it"
            )
        bounds = with_finished(parse_bounds(slo) if isinstance(slo, str) else slo)
        return cls(bounds, tuple(seeds), confidence, tolerance, *ends)


def run_capacity(
    setup: Setup,
    plan: Plan,
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
    search = _Search(setup, plan, metrics)
    try:
        with executor:
            search.run(executor, progress, saved)
    except KeyboardInterrupt:
        if not any(arm.values for arm in search.arms):
            raise
    arms = tuple(arm.capacity() for arm in search.arms)
    ratios = [ratio_of(arms[0], arm, plan.confidence) for arm in arms[1:]]
    return Capacities(
        arms=arms,
        ratios=tuple(ratio for ratio in ratios if ratio is not None),
        plan=plan,
        workload=setup.workload.name,
        base_rate=setup.workload.rate,
        has_slo=any(row.slo is not None for row in setup.workload.rows),
        num_runs=search.num_runs,
        num_found=saved.num_found if saved is not None else 0,
    )


Values = tuple[float | None, ...]
"""Of one run: the value of each bound's measure."""


class _Arm:
    """The search of one arm: what it was asked, and what to ask next.

    Attributes:
        values: by speedup and seed, what came out.
    """

    def __init__(self, name: str, search: _Search) -> None:
        self.name = name
        self.values: dict[float, dict[int, Values]] = {}
        self.overloaded: dict[float, int] = {}
        self.error: Exception | None = None
        self._search = search

    def wanted(self) -> Iterator[tuple[float, int]]:
        """Speedups and seeds to run next; nothing when the search is at its end."""
        search = self._search
        if self.error is not None:
            return
        whole = self.answers()
        factor = search.next(whole, check=True)
        if factor is not None:
            yield from ((factor, seed) for seed in search.plan.seeds if seed not in self.values.get(factor, {}))
            return
        low, high = bracket(whole)
        if low is None or high is None:
            return  # what single seeds do beyond the range is not asked
        for seed in search.plan.seeds:
            factor = search.next(self.of_seed(seed), check=False)
            if factor is not None:
                yield factor, seed

    def answers(self) -> dict[float, bool]:
        """Whether all bounds are met with confidence, of the loads that were tried with every seed."""
        return {factor: self.point(factor).met for factor in self._whole()}

    def of_seed(self, seed: int) -> dict[float, bool]:
        """Whether all bounds are met in the run of one seed."""
        bounds = self._search.plan.bounds
        return {
            factor: all(b.met(v) for b, v in zip(bounds, values[seed], strict=True))
            for factor, values in self.values.items()
            if seed in values
        }

    def point(self, factor: float) -> LoadPoint:
        """What is known of a load that was tried with every seed."""
        search = self._search
        runs = [self.values[factor][seed] for seed in search.plan.seeds]
        values = {b.text: tuple(run[place] for run in runs) for place, b in enumerate(search.plan.bounds)}
        edges = {b.text: b.edge(values[b.text], search.plan.confidence) for b in search.plan.bounds}
        limited = tuple(b.text for b in search.plan.bounds if not b.met(edges[b.text]))
        rate = factor * search.base_rate
        return LoadPoint(factor, rate, not limited, values, edges, limited, self.overloaded.get(factor, 0))

    def _whole(self) -> list[float]:
        num = len(self._search.plan.seeds)
        return sorted(factor for factor, values in self.values.items() if len(values) == num)

    def capacity(self) -> ArmCapacity:
        """What has come of it so far."""
        answers = self.answers()
        low, high = bracket(answers)
        return ArmCapacity(
            arm=self.name,
            points=tuple(map(self.point, self._whole())),
            low=None if low is None else self.point(low),
            high=None if high is None else self.point(high),
            by_seed={seed: bracket(self.of_seed(seed)) for seed in self._search.plan.seeds},
            contradictions=tuple(map(self.point, contradictions(answers))),
            is_done=self.error is None and next(self.wanted(), None) is None,
            error=self.error,
        )


class _Search:
    """The searches of all arms, round by round: what any of them asks runs together."""

    def __init__(self, setup: Setup, plan: Plan, metrics: MetricSet) -> None:
        self.plan = plan
        self.base_rate = setup.workload.rate
        self.num_runs = 0
        self.arms = [_Arm(name, self) for name in setup.configs]
        self._metrics = metrics
        # A seed's workload is drawn first, and then made faster: at every load it has the same requests.
        self._base = {(task.arm, task.seed): task for task in tasks_of(setup, plan.seeds)}
        self._loads: dict[tuple[int, float], Workload] = {}

    def next(self, answers: Mapping[float, bool], *, check: bool) -> float | None:
        plan = self.plan
        return next_rate(
            answers, start=1.0, lowest=plan.lowest, highest=plan.highest, tolerance=plan.tolerance, check=check
        )

    def run(self, executor: Executor, progress: Progress | None, saved: SavedRuns | None) -> None:
        while tasks := self._tasks():
            all_runs = self._estimate()
            places = {id(task): (arm, factor) for arm, factor, task in tasks}

            def keep(
                outcome: Outcome, places: Mapping[int, tuple[_Arm, float]] = places, all_runs: int = all_runs
            ) -> Outcome:
                self._take(outcome, *places[id(outcome.task)])
                if progress is not None:
                    progress(RUNS, self.num_runs, max(self.num_runs, all_runs))
                return outcome if outcome.run is None else replace(outcome, run=slim(outcome.run))

            told = None if progress is None else _without_runs(progress)
            found = run_tasks([task for *_, task in tasks], executor, told, keep=keep, saved=saved)
            if found.was_interrupted:
                return

    def _tasks(self) -> list[tuple[_Arm, float, Task]]:
        """The next round, the arms of a seed beside each other."""
        wanted = [(seed, place, factor) for place, arm in enumerate(self.arms) for factor, seed in arm.wanted()]
        tasks: list[tuple[_Arm, float, Task]] = []
        for seed, place, factor in sorted(wanted):
            arm = self.arms[place]
            base = self._base[arm.name, seed]
            key = id(base.workload), factor
            if key not in self._loads:
                self._loads[key] = base.workload.faster(factor)
            point = f"{factor * self.base_rate:.6g} requests/s"
            tasks.append((arm, factor, replace(base, workload=self._loads[key], point=point)))
        return tasks

    def _take(self, outcome: Outcome, arm: _Arm, factor: float) -> None:
        self.num_runs += 1
        run = outcome.run
        if run is None:
            arm.error = arm.error or outcome.error
            return
        if run.stopped == "interrupted":
            return
        summary = summarize(run, self._metrics)
        values = tuple(bound.measure.of(run, summary) for bound in self.plan.bounds)
        arm.values.setdefault(factor, {})[outcome.task.seed] = values
        arm.overloaded[factor] = arm.overloaded.get(factor, 0) + Load.of(run).overloaded

    def _estimate(self) -> int:
        """About how many runs there will be."""
        left = 0
        for arm in self.arms:
            if next(arm.wanted(), None) is not None:
                left += most_left(arm.answers(), self.plan.tolerance) * len(self.plan.seeds)
        return self.num_runs + left


def _without_runs(progress: Progress) -> Progress:
    """A round is not the whole: its own count of runs is not shown."""

    def report(label: str, done: int, total: int) -> None:
        if label != RUNS:
            progress(label, done, total)

    return report


def _arm_to_json(arm: ArmCapacity) -> dict[str, Any]:
    return {
        "rate": arm.rate,
        "low": arm.low and _point_to_json(arm.low),
        "high": arm.high and _point_to_json(arm.high),
        "by_seed": {str(seed): list(ends) for seed, ends in arm.by_seed.items()},
        "contradictions": [point.rate for point in arm.contradictions],
        "is_done": arm.is_done,
        "error": None if arm.error is None else f"{type(arm.error).__name__}: {arm.error}",
        "points": [_point_to_json(point) for point in arm.points],
    }


def _point_to_json(point: LoadPoint) -> dict[str, Any]:
    return {
        "speedup": point.speedup,
        "rate": point.rate,
        "met": point.met,
        "values": {text: list(values) for text, values in point.values.items()},
        "edges": dict(point.edges),
        "limited_by": list(point.limited_by),
        "num_overloaded": point.num_overloaded,
    }
