"""Verdicts in words, sorted by what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from batchwright.lab.compare import Comparison
from batchwright.lab.figures.arms import Arm, arms_of
from batchwright.lab.figures.shown import shown_metrics, verdicts_of
from batchwright.lab.metrics import Metric
from batchwright.lab.verdict import BETTER, NO_DIFFERENCE, NOT_SHOWN, NOT_TESTED, WORSE, Verdict
from batchwright.lab.wording import number, size


@dataclass(frozen=True, slots=True)
class Finding:
    """One metric of one arm against the first.

    Attributes:
        label: of the metric, with its unit.
        base, value: of the first arm, and of this one, as tables show them.
        size: of the difference, with its interval where it has one.
    """

    label: str
    base: str
    value: str
    size: str


@dataclass(slots=True)
class Findings:
    """What was found of one arm, against the first.

    Attributes:
        arm: which.
        better, worse, not_shown: metrics with an interval, by verdict.
        untested: those that differ, and have no interval.
        same: labels of metrics that are the same in every request.
    """

    arm: Arm
    better: list[Finding] = field(default_factory=list)
    worse: list[Finding] = field(default_factory=list)
    not_shown: list[Finding] = field(default_factory=list)
    untested: list[Finding] = field(default_factory=list)
    same: list[str] = field(default_factory=list)

    @property
    def headline(self) -> str:
        """How many of these metrics say what."""
        num = len(self.better) + len(self.worse) + len(self.not_shown)
        if not num:
            return "No metric could be tested: see what the load could show."
        if not self.better and not self.worse:
            return f"No difference is shown in any of {_metrics(num)} here that could be tested."
        said = [f"{word} in {len(found)}" for word, found in (("better", self.better), ("worse", self.worse)) if found]
        rest = f"; no difference is shown in {len(self.not_shown)}" if self.not_shown else ""
        return f"Of {_metrics(num)} here that could be tested, it is {' and '.join(said)}{rest}."


def findings_of(comparison: Comparison) -> list[Findings]:
    """The findings of each arm but the first, in the order of the arms."""
    verdicts, metrics = verdicts_of(comparison), shown_metrics(comparison)
    found: list[Findings] = []
    for arm in arms_of(comparison)[1:]:
        own = [(m, comparison.label(m), v) for m in metrics if (v := verdicts.get((arm.name, m.name))) is not None]
        found.append(_findings(arm, own))
    return found


def _findings(arm: Arm, verdicts: Sequence[tuple[Metric, str, Verdict]]) -> Findings:
    found = Findings(arm)
    groups = {BETTER: found.better, WORSE: found.worse, NOT_SHOWN: found.not_shown, NOT_TESTED: found.untested}
    for metric, label, verdict in verdicts:
        if verdict.words == NO_DIFFERENCE and verdict.value is not None:
            found.same.append(metric.label)
        elif verdict.words in groups:
            base, value = number(metric, verdict.base), number(metric, verdict.value)
            groups[verdict.words].append(Finding(label, base, value, size(metric, verdict)))
    return found


def _metrics(num: int) -> str:
    return "1 metric" if num == 1 else f"{num} metrics"
