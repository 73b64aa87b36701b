"""The arms of a comparison, as figures and pages want them."""

from __future__ import annotations

from dataclasses import dataclass

from batchwright.lab.compare import Comparison
from batchwright.lab.figures.style import Look, look, shorten
from batchwright.lab.run_record import RunRecord

_LONGEST = 38


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm.

    Attributes:
        name: as in tables.
        look: how it is drawn.
        runs: its runs, one a seed.
    """

    name: str
    look: Look
    runs: tuple[RunRecord, ...]

    @property
    def first(self) -> RunRecord:
        """The run of the first seed, where one has to stand for all."""
        return self.runs[0]

    @property
    def label(self) -> str:
        """Letter and name, cut to what a figure of one column has room for."""
        return f"{self.look.letter}  {shorten(self.name, _LONGEST)}"

    @property
    def said(self) -> str:
        """Letter and name in a sentence."""
        return f"{self.look.letter} ({self.name})"


def arms_of(comparison: Comparison) -> list[Arm]:
    """The arms in their order, each with its runs."""
    return [Arm(name, look(place), tuple(comparison.of(name).values())) for place, name in enumerate(comparison.arms)]


def seeds_of(arms: list[Arm]) -> str:
    """Which seed is shown where only one can be; nothing where there is one."""
    num = max(len(arm.runs) for arm in arms)
    return "" if num == 1 else f" Only the run of seed {arms[0].first.seed} is shown, of {num}."
