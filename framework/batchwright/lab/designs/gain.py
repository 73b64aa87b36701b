"""Whether what was tuned is better than what was given, on seeds that no trial saw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchwright.lab.designs.margin import mean_margin
from batchwright.lab.verdict import BETTER, NOT_SHOWN, NOT_TESTED, WORSE
from batchwright.lab.wording import size

if TYPE_CHECKING:
    from batchwright.lab.designs.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Gain:
    """The goal's difference of the tuned arm to the one as it was given.

    Attributes:
        words: ``better``, ``worse``, or that neither is shown.
        size: of the difference, with its interval, as tables show it.
    """

    words: str
    size: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"words": self.words, "size": self.size}


def gain_of(tuning: Tuning) -> Gain | None:
    """The gain of a search; None: it was not validated.

    It is the verdict of the comparison where the goal is one of its metrics. Of others, such as a share or a percentile
    that no table has, it is Student's t of the seeds' differences, two-sided, with the search's confidence.
    """
    comparison, goal = tuning.validation, tuning.plan.goal
    if comparison is None:
        return None
    verdict = next((v for v in comparison.verdicts if v.metric == goal.metric), None)
    if verdict is not None:
        return Gain(verdict.words, size(comparison.metrics.metrics[verdict.metric], verdict))
    given, tuned = ([values[0] for values in tuning.on_fresh[arm]] for arm in tuning.arms)
    pairs = [(a, b) for a, b in zip(given, tuned, strict=True) if a is not None and b is not None]
    if not pairs:
        return Gain(NOT_TESTED, "")
    differences = [b - a for a, b in pairs]
    mean = math.fsum(differences) / len(differences)
    if len(pairs) < 2:
        return Gain(NOT_TESTED, f"{mean:+.3g}")
    margin = mean_margin(differences, (1 + tuning.plan.confidence) / 2)
    low, high = mean - margin, mean + margin
    up, down = (BETTER, WORSE) if goal.better == "higher" else (WORSE, BETTER)
    words = up if low > 0 else down if high < 0 else NOT_SHOWN
    if not margin and 2.0 ** (1 - len(pairs)) > 1 - tuning.plan.confidence:  # as likely a sign as heads in every throw
        words = NOT_SHOWN
    return Gain(words, f"{mean:+.3g} [{low:+.3g}, {high:+.3g}]")
