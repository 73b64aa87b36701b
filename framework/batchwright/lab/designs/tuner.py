"""The search of parameters, trial by trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from batchwright.errors import ConfigError
from batchwright.lab.compare import Comparison, compare
from batchwright.lab.designs.axis import in_words
from batchwright.lab.designs.bounds import Bound
from batchwright.lab.designs.margin import mean_of
from batchwright.lab.designs.replicates import tasks_of
from batchwright.lab.designs.rounds import Rounds
from batchwright.lab.designs.setup import Setup
from batchwright.lab.designs.space import Value
from batchwright.lab.designs.study import Study
from batchwright.lab.designs.tune_plan import DEFAULT, TUNED, TunePlan
from batchwright.lab.designs.tuning import Trial
from batchwright.lab.executors import Outcome, Task
from batchwright.lab.family import Family
from batchwright.lab.plugin_metrics import MetricSet
from batchwright.lab.repetition import in_order
from batchwright.lab.saved_runs import SavedRuns
from batchwright.lab.summary import summarize


class Tuner:
    """A search, trial by trial, and the validation of its best."""

    def __init__(self, setup: Setup, plan: TunePlan, study: Study, rounds: Rounds, metrics: MetricSet) -> None:
        """Takes the arm and what it is offered, how to search, who suggests and who runs, and plugins' metrics."""
        self._setup = setup
        self._plan = plan
        self._study = study
        self._rounds = rounds
        self._metrics = metrics
        self._num_all = plan.num_trials * len(plan.seeds) + 2 * len(plan.held_out)

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
            self._rounds.num_done = done * len(self._plan.seeds)
            if not self._round(self._study.ask(min(self._plan.batch, self._plan.num_trials - done))):
                return

    def _round(self, asked: Sequence[tuple[Any, dict[str, Value]]]) -> bool:
        """Run some trials beside each other, and tell the study; False after Ctrl-C."""
        tasks: list[tuple[int, Task]] = []
        wrong: dict[int, str] = {}
        for place, (_, values) in enumerate(asked):
            try:
                changed = self._setup.at(values)
            except ConfigError as error:  # parameters that do not go together
                wrong[place] = str(error)
                continue
            tasks += [(place, task) for task in tasks_of(changed, self._plan.seeds, in_words(values))]
        found: dict[int, dict[int, list[float | None]]] = {place: {} for place in range(len(asked))}
        measures = (self._plan.goal, *(bound.measure for bound in self._plan.bounds))

        def take(place: int, outcome: Outcome) -> None:
            run = outcome.run
            if run is None:
                wrong.setdefault(place, f"{type(outcome.error).__name__}: {outcome.error}")
            elif run.stopped != "interrupted":
                summary = summarize(run, self._metrics)
                found[place][outcome.task.seed] = [measure.of(run, summary) for measure in measures]

        if tasks and self._rounds.run(tasks, take, self._num_all).was_interrupted:
            return False
        for place, (trial, values) in enumerate(asked):
            self._tell(trial, values, found[place], wrong.get(place))
        return True

    def _tell(
        self, trial: Any, values: Mapping[str, Value], found: Mapping[int, list[float | None]], error: str | None
    ) -> None:
        by_seed = [found[seed][0] for seed in self._plan.seeds if seed in found]
        goal = mean_of(by_seed) if len(by_seed) == len(self._plan.seeds) and error is None else None
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
        tasks = [(None, task) for task in tasks_of(both, self._plan.held_out, "validation")]
        experiment = self._rounds.run(tasks, lambda *_: None, self._num_all, saved=saved, keep_records=True)
        error = experiment.error()
        if error is not None:
            raise error
        if experiment.was_interrupted:
            return None
        return compare(
            in_order(experiment.runs, (DEFAULT, TUNED)),
            seed=self._setup.seed,
            family=self._family(),
            metrics=self._metrics,
        )

    def _family(self) -> Family:
        """The goal is what is asked, and no other metric: one that tables have is the only primary one."""
        goal, known = self._plan.goal.metric, self._metrics.metrics
        return Family(self._plan.confidence, (goal,) if goal in known else ())


def _excess(bound: Bound, edge: float | None) -> float:
    """By how much a bound is missed, as a share of its limit; at most 0 where it is met."""
    if edge is None:
        return 1e6
    over = edge - bound.limit if bound.below else bound.limit - edge
    share = over / (abs(bound.limit) or 1.0)
    return share if bound.met(edge) else max(share, 1e-9)
