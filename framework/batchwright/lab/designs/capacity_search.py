"""The search for the edge of each arm's loads, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean

from batchwright.lab.designs.capacities import ArmCapacity, LoadPoint
from batchwright.lab.designs.capacity_plan import CapacityPlan
from batchwright.lab.designs.loads import Loads
from batchwright.lab.designs.rounds import Rounds
from batchwright.lab.designs.search import bracket, contradictions, most_left, next_rate
from batchwright.lab.designs.setup import Setup
from batchwright.lab.executors import Outcome, Task
from batchwright.lab.load import Load
from batchwright.lab.plugin_metrics import MetricSet
from batchwright.lab.saved_runs import SavedRuns
from batchwright.lab.summary import summarize

Values = tuple[float | None, ...]
"""Of one run: the value of each bound's measure."""


class CapacitySearch:
    """The searches of all arms: what any of them asks runs together.

    Attributes:
        plan: how they are searched.
        loads: what is offered.
        arms: the search of each.
    """

    def __init__(self, setup: Setup, plan: CapacityPlan, metrics: MetricSet) -> None:
        """Takes the arms and what they are offered, how to search, and the metrics of plugins."""
        self.plan = plan
        self.loads = Loads(setup, plan)
        self.arms = [_Arm(name, self) for name in setup.configs]
        self._metrics = metrics

    def run(self, rounds: Rounds, saved: SavedRuns | None) -> None:
        """Until every arm's search is at its end, or Ctrl-C."""
        while asked := self._asked():
            if rounds.run(asked, self._take, rounds.num_done + self._num_left(), saved=saved).was_interrupted:
                return

    def next(self, answers: Mapping[float, bool], *, check: bool) -> float | None:
        """The load to ask for next, told what was answered so far; None: none."""
        return next_rate(
            answers,
            start=self.loads.start,
            lowest=self.plan.lowest,
            highest=self.plan.highest,
            tolerance=self.plan.tolerance,
            check=check,
            whole=self.loads.is_closed,
        )

    def _asked(self) -> list[tuple[tuple[_Arm, float], Task]]:
        """The next round, the arms of a seed beside each other."""
        wanted = [(seed, place, load) for place, arm in enumerate(self.arms) for load, seed in arm.wanted()]
        found = [(self.arms[place], seed, load) for seed, place, load in sorted(wanted)]
        self.loads.keep_only({(seed, load) for _, seed, load in found})
        return [((arm, load), self.loads.task(arm.name, seed, load)) for arm, seed, load in found]

    def _take(self, owner: tuple[_Arm, float], outcome: Outcome) -> None:
        arm, load = owner
        run = outcome.run
        if run is None:
            arm.error = arm.error or outcome.error
            return
        if run.stopped == "interrupted":
            return
        summary = summarize(run, self._metrics)
        values = tuple(bound.measure.of(run, summary) for bound in self.plan.bounds)
        throughput = summary["request_throughput"] or 0.0
        arm.take(load, outcome.task, values, throughput, Load.of(run).overloaded)

    def _num_left(self) -> int:
        """About how many runs there will be from here on."""
        left = 0
        for arm in self.arms:
            if next(arm.wanted(), None) is not None:
                loads = most_left(arm.answers(), self.plan.tolerance, whole=self.loads.is_closed)
                left += loads * len(self.plan.seeds)
        return left


class _Arm:
    """The search of one arm: what it was asked, and what to ask next.

    Attributes:
        values: by load and seed, what came out.
    """

    def __init__(self, name: str, search: CapacitySearch) -> None:
        self.name = name
        self.values: dict[float, dict[int, Values]] = {}
        self.error: Exception | None = None
        self._search = search
        self._others: dict[float, dict[int, tuple[int, float, bool]]] = {}

    def take(self, load: float, task: Task, values: Values, throughput: float, overloaded: bool) -> None:
        """What came of one run."""
        self.values.setdefault(load, {})[task.seed] = values
        self._others.setdefault(load, {})[task.seed] = (len(task.workload), throughput, overloaded)

    def wanted(self) -> Iterator[tuple[float, int]]:
        """Loads and seeds to run next; nothing when the search is at its end."""
        search = self._search
        if self.error is not None:
            return
        whole = self.answers()
        load = search.next(whole, check=True)
        if load is not None:
            yield from ((load, seed) for seed in search.plan.seeds if seed not in self.values.get(load, {}))
            return
        low, high = bracket(whole)
        if low is None or high is None:
            return  # what single seeds do beyond the range is not asked
        for seed in search.plan.seeds:
            load = search.next(self._of_seed(seed), check=False)
            if load is not None:
                yield load, seed

    def answers(self) -> dict[float, bool]:
        """Whether all bounds are met with confidence, of the loads that were tried with every seed."""
        return {load: self._point(load).met for load in self._whole()}

    def _of_seed(self, seed: int) -> dict[float, bool]:
        """Whether all bounds are met in the run of one seed."""
        bounds = self._search.plan.bounds
        return {
            load: all(b.met(v) for b, v in zip(bounds, values[seed], strict=True))
            for load, values in self.values.items()
            if seed in values
        }

    def _point(self, load: float) -> LoadPoint:
        """What is known of a load that was tried with every seed."""
        plan, loads = self._search.plan, self._search.loads
        runs = [self.values[load][seed] for seed in plan.seeds]
        values = {b.text: tuple(run[place] for run in runs) for place, b in enumerate(plan.bounds)}
        edges = {b.text: b.edge(values[b.text], plan.confidence) for b in plan.bounds}
        limited = tuple(b.text for b in plan.bounds if not b.met(edges[b.text]))
        others = [self._others[load][seed] for seed in plan.seeds]
        return LoadPoint(
            speedup=1.0 if loads.is_closed else load,
            rate=fmean(rate for _, rate, _ in others) if loads.is_closed else load * loads.base_rate,
            met=not limited,
            values=values,
            edges=edges,
            limited_by=limited,
            num_overloaded=sum(overloaded for *_, overloaded in others),
            num_requests=fmean(num for num, *_ in others),
            concurrency=round(load) if loads.is_closed else None,
        )

    def _whole(self) -> list[float]:
        num = len(self._search.plan.seeds)
        return sorted(load for load, values in self.values.items() if len(values) == num)

    def capacity(self) -> ArmCapacity:
        """What has come of it so far."""
        answers = self.answers()
        low, high = bracket(answers)
        return ArmCapacity(
            arm=self.name,
            points=tuple(map(self._point, self._whole())),
            low=None if low is None else self._point(low),
            high=None if high is None else self._point(high),
            by_seed={seed: bracket(self._of_seed(seed)) for seed in self._search.plan.seeds},
            contradictions=tuple(map(self._point, contradictions(answers))),
            is_done=self.error is None and next(self.wanted(), None) is None,
            error=self.error,
        )
