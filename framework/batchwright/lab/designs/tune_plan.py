"""How parameters are searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batchwright.errors import ConfigError
from batchwright.lab.designs.bounds import Bound
from batchwright.lab.designs.measure import Measure
from batchwright.lab.designs.space import Space

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

    Raises:
        ConfigError: a number is out of its range, the goal is better neither way, or a seed is tuned on and held out.
    """

    spaces: tuple[Space, ...]
    goal: Measure
    bounds: tuple[Bound, ...]
    num_trials: int
    seeds: tuple[int, ...]
    held_out: tuple[int, ...]
    confidence: float
    batch: int
    seed: int

    def __post_init__(self) -> None:
        if self.goal.better is None:
            raise ConfigError(
                f"goal {self.goal.name!r} is better neither way: name one that is, such as request_goodput"
            )
        for name, number in (("trials", self.num_trials), ("batch", self.batch)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, not {number!r}")
        if not 0.5 <= self.confidence < 1:
            raise ConfigError(f"confidence must be at least 0.5 and below 1, not {self.confidence!r}")
        both = sorted(set(self.seeds) & set(self.held_out))
        if both:
            raise ConfigError(f"seeds {both} are to be tuned on and to be held out: take others")

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
