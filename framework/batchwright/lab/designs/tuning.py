"""What a search of parameters found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from batchwright.config import EngineConfig
from batchwright.lab.compare import Comparison
from batchwright.lab.designs.answer import Answer
from batchwright.lab.designs.gain import gain_of
from batchwright.lab.designs.margin import mean_of
from batchwright.lab.designs.measure import Measure
from batchwright.lab.designs.space import Value
from batchwright.lab.designs.tune_closing import closing_lines
from batchwright.lab.designs.tune_plan import DEFAULT, TUNED, TunePlan
from batchwright.lab.summary import summarize
from batchwright.version import RECORD_VERSION


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
class Tuning(Answer):
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

    @property
    def arms(self) -> tuple[str, ...]:
        """Those of the validation; empty: there was none."""
        return () if self.validation is None else (DEFAULT, TUNED)

    def on_fresh_seeds(self, arm: str) -> tuple[float | None, Mapping[str, float | None]]:
        """Of an arm of the validation: the mean of the goal, and the edge of each bound by its text."""
        if self.validation is None:
            return None, {}
        bounds, confidence = self.plan.bounds, self.plan.confidence
        values = self.on_fresh[arm]
        edges = {
            b.text: b.edge([measured[place] for measured in values], confidence) for place, b in enumerate(bounds, 1)
        }
        return mean_of([measured[0] for measured in values]), edges

    @cached_property
    def on_fresh(self) -> dict[str, list[list[float | None]]]:
        """Of each arm of the validation and each of its runs: the goal, and what each bound is held to."""
        found: dict[str, list[list[float | None]]] = {arm: [] for arm in self.arms}
        measures = (self.plan.goal, *(bound.measure for bound in self.plan.bounds))
        if self.validation is None:
            return found
        for run in self.validation.runs:
            summary = summarize(run, self.validation.metrics)
            found[run.arm].append([measure.of(run, summary) for measure in measures])
        return found

    def _fresh(self, arm: str) -> dict[str, Any]:
        goal, edges = self.on_fresh_seeds(arm)
        missed = [bound.text for bound in self.plan.bounds if not bound.met(edges[bound.text])]
        return {"goal": goal, "edges": dict(edges), "missed": missed}

    def to_json(self) -> dict[str, Any]:
        """As a JSON object; the same runs give the same bytes."""
        best = self.best
        return {
            "record_version": RECORD_VERSION,
            "design": "tune",
            "arm": self.arm,
            **self.plan.about(),
            "bounds": [bound.to_json() for bound in self.plan.bounds],
            "held_out": list(self.plan.held_out),
            "goal_unit": self.plan.goal.unit,
            "better": self.plan.goal.better,
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
            "fresh": {arm: self._fresh(arm) for arm in self.arms},
            "gain": None if (gain := gain_of(self)) is None else gain.to_json(),
            "validation": None if self.validation is None else self.validation.results(),
            "closing": list(closing_lines(self)),
        }


def best_of(trials: Iterable[Trial], goal: Measure) -> Trial | None:
    """The trial with the best goal among those that met the bounds; of equals the first."""
    found = [trial for trial in trials if trial.met and trial.goal is not None]
    sign = -1 if goal.better == "higher" else 1
    return min(found, key=lambda trial: (sign * (trial.goal or 0.0), trial.number), default=None)
