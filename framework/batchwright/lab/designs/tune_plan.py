"""How parameters are searched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchwright.errors import ConfigError
from batchwright.lab.designs.bounds import Bound, parse_bounds
from batchwright.lab.designs.measure import Measure, parse_measure
from batchwright.lab.designs.space import Space, Value, make_spaces
from batchwright.lab.metrics import METRICS, Metric
from batchwright.lab.repetition import seeds_of

HELD_OUT = 1_000_000
"""Fresh seeds begin here: nobody tunes on them."""

DEFAULT, TUNED = "as given", "tuned"
"""Names of the arms that are run on them."""


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
