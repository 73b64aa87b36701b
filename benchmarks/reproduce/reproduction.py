"""A published result beside ours: rows of figures, claims that hold or do not, and how both are printed and kept."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import batchwright
from batchwright.lab import Comparison
from batchwright.lab.designs.margin import mean_margin
from batchwright.lab.files.environment import commit

RESULTS = Path(__file__).resolve().parents[1] / "results" / "reproduce"
COMMIT = commit(Path(batchwright.__file__).parent, written=("benchmarks/results", "docs/reproduce.md"))
"""Of the code that runs: results of the scripts that ran before, and their page, may differ from it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure that was measured once for each seed.

    Attributes:
        values: one for each seed, in their order.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return math.fsum(self.values) / len(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95%, of the mean over seeds, by Student's t; None with one seed."""
        if len(self.values) < 2:
            return None
        half = mean_margin(self.values, 0.975)
        return self.mean - half, self.mean + half

    @property
    def low(self) -> float:
        """Lower end of the interval; with one seed the value."""
        return self.values[0] if self.interval is None else self.interval[0]

    @property
    def high(self) -> float:
        """Upper end of the interval; with one seed the value."""
        return self.values[0] if self.interval is None else self.interval[1]

    def text(self, digits: int, unit: str) -> str:
        """``2.41x (2.30 to 2.52)``."""
        said = f"{self.mean:,.{digits}f}{unit}"
        if self.interval is None or f"{self.low:,.{digits}f}" == f"{self.high:,.{digits}f}":
            return said
        return f"{said} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


def paired(one: Sequence[float], other: Sequence[float], of: Callable[[float, float], float]) -> Estimate:
    """What ``of`` makes of the two figures of each seed."""
    return Estimate(tuple(of(a, b) for a, b in zip(one, other, strict=True)))


def less(one: Sequence[float], other: Sequence[float]) -> Estimate:
    """By how much of ``one`` the other is less, as a share of one, seed by seed."""
    return paired(one, other, lambda a, b: (a - b) / a)


def times(one: Sequence[float], other: Sequence[float]) -> Estimate:
    """How many times ``one`` is of the other, seed by seed."""
    return paired(one, other, lambda a, b: a / b)


def above(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one is above the other beyond chance: the interval of their paired differences leaves out 0."""
    return paired(one, other, lambda a, b: a - b).low > 0


def spread(comparison: Comparison, arm: str, metric: str, unit: float = 1.0) -> list[float]:
    """A metric of each seed's run of an arm, in so many of its unit; nan where it is undefined."""
    return [math.nan if value is None else value / unit for value in comparison.spread[arm][metric]]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, theirs and ours.

    Attributes:
        what: is measured.
        theirs: as published, or ``not published``.
        ours: the same in the simulator.
        digits, unit: to show it with.
    """

    what: str
    theirs: str
    ours: Estimate
    digits: int = 2
    unit: str = ""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        ours = {"mean": self.ours.mean, "low": self.ours.low, "high": self.ours.high, "by_seed": list(self.ours.values)}
        shown = self.ours.text(self.digits, self.unit)
        return {"what": self.what, "theirs": self.theirs, "shown": shown, "ours": ours}


@dataclass(frozen=True, slots=True)
class Claim:
    """What the source says, and whether it is so here.

    Attributes:
        words: of the claim.
        holds: whether it does, in every place that it names and beyond chance.
    """

    words: str
    holds: bool


@dataclass
class Reproduction:
    """A published result, done again in the simulator.

    Attributes:
        name: of the script.
        title: of the result, in a few words.
        source: where it is published: section, figure, issue.
        kind: what is to come out: ``direction`` or ``order``.
        setup: what was run, in sentences.
        same, other: what is as in the source, and what is not.
        rows: figures, theirs and ours.
        claims: what is to come out.
        seeds: how many draws of the load each figure rests on.
    """

    name: str
    title: str
    source: str
    kind: str
    setup: Sequence[str]
    same: Sequence[str]
    other: Sequence[str]
    seeds: int
    rows: list[Row] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    @property
    def comes_out(self) -> str:
        """``same direction``, ``same order``, or which of the claims hold."""
        held = sum(claim.holds for claim in self.claims)
        if held == len(self.claims):
            return f"same {self.kind}"
        return f"partly: {held} of {len(self.claims)} claims hold" if held else "does not"

    def add(self, what: str, theirs: str, ours: Estimate | Sequence[float], digits: int = 2, unit: str = "") -> None:
        """Add a figure."""
        self.rows.append(Row(what, theirs, ours if isinstance(ours, Estimate) else Estimate(tuple(ours)), digits, unit))

    def claim(self, words: str, holds: bool) -> None:
        """Add a claim."""
        self.claims.append(Claim(words, bool(holds)))

    def __str__(self) -> str:
        rows = [("", "theirs", "ours"), *((r.what, r.theirs, r.ours.text(r.digits, r.unit)) for r in self.rows)]
        widths = [max(len(row[k]) for row in rows) for k in range(3)]
        lines = [self.title, f"source: {self.source}"]
        lines += [f"setup: {sentence}" for sentence in self.setup]
        lines += [f"as there: {sentence}" for sentence in self.same]
        lines += [f"not as there: {sentence}" for sentence in self.other]
        lines += ["", *("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)]
        lines += ["", *(f"{'holds' if c.holds else 'DOES NOT HOLD'}: {c.words}" for c in self.claims)]
        draws = f"{self.seeds} seeds, intervals of 95%" if self.seeds > 1 else "one seed, no intervals"
        return "\n".join([*lines, f"comes out: {self.comes_out} ({draws})"])

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "kind": self.kind,
            "comes_out": self.comes_out,
            "seeds": self.seeds,
            "commit": COMMIT,
            "date": datetime.now(UTC).date().isoformat(),
            "setup": list(self.setup),
            "same": list(self.same),
            "other": list(self.other),
            "claims": [{"words": c.words, "holds": c.holds} for c in self.claims],
            "rows": [row.to_json() for row in self.rows],
        }

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")


Reproduce = Callable[[int, bool, int], Reproduction]
"""Does it again: number of seeds, whether only a small part of it, and how many runs at a time."""


def main(reproduce: Reproduce, about: str | None, argv: Sequence[str] | None = None, *, seeds: int = 5) -> int:
    """The command line of a script.

    Args:
        reproduce: what it does.
        about: for its help.
        argv: None: of the process.
        seeds: how many, where nothing is said.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small part of it, in seconds; nothing is written")
    parser.add_argument("--seeds", type=int, default=None, help=f"draws of the load; {seeds} by default, 1 if quick")
    parser.add_argument("--json", type=Path, default=None, help="write it there, not to benchmarks/results/reproduce")
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs at a time, each in a process of its own; 1 by default"
    )
    args = parser.parse_args(argv)
    number = args.seeds if args.seeds is not None else 1 if args.quick else seeds
    if number < 1:
        parser.error(f"--seeds must be at least 1, not {number}")
    if args.jobs < 1:
        parser.error(f"--jobs must be at least 1, not {args.jobs}")
    found = reproduce(number, args.quick, args.jobs)
    print(found)
    path = args.json or (None if args.quick else RESULTS / f"{found.name}.json")
    if path is not None:
        found.write(path)
    return 0


def tell(words: str) -> None:
    """Say on a terminal what is being run."""
    if sys.stderr.isatty():
        print(f"\r{words:<78}", end="", file=sys.stderr, flush=True)
