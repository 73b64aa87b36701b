"""Whether two backends tell the same of two policies: the same A/B on both, metric by metric."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchwright.errors import ComparisonError
from batchwright.lab.compare import Comparison
from batchwright.lab.interval import Interval
from batchwright.lab.run_record import RunLimits
from batchwright.lab.verdict import NO_DIFFERENCE, NOT_SHOWN, NOT_TESTED, Verdict
from batchwright.version import RECORD_VERSION

AGREE = "agree"
OPPOSITE = "opposite"
ONLY_FIRST = "only the first"
ONLY_SECOND = "only the second"
NEITHER = "neither"
ALIKE = "no difference"
SIGNS = (AGREE, OPPOSITE, ONLY_FIRST, ONLY_SECOND, NEITHER, ALIKE)

_SIZES = ("max_num_seqs", "max_num_batched_tokens", "max_num_residents", "num_blocks", "block_size")


@dataclass(frozen=True, slots=True)
class Agreement:
    """One metric of one arm against the first arm, on two backends.

    Attributes:
        arm: which arm.
        metric: name of the metric.
        verdicts: of the first and of the second backend.
        sign: ``agree`` or ``opposite`` (both backends show a difference), ``only the first``, ``only the second``
            (the other's interval holds 0, or it has none), ``neither``, ``no difference`` (the same in every
            request, on both). A metric that is one number of a single run has no interval; its sign is the number's.
        tested: both differences have an interval, or are none in every request. A sign without is a number's, and may
            be chance.
        overlap: whether the intervals have a value in common, as shares of each backend's own first arm (in the
            metric's unit where that can be 0); None where one has no interval.
    """

    arm: str
    metric: str
    verdicts: tuple[Verdict, Verdict]
    sign: str
    tested: bool
    overlap: bool | None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "arm": self.arm,
            "metric": self.metric,
            "sign": self.sign,
            "tested": self.tested,
            "intervals_overlap": self.overlap,
            "differences": [v.to_json() for v in self.verdicts],
        }


@dataclass(frozen=True)
class BackendsCompared:
    """One A/B on two backends.

    Attributes:
        comparisons: of the first and of the second backend.
        agreements: for each arm but the first, one for each metric that is better one way and defined on both.
        notes: what makes the two hard to compare, in sentences.
    """

    comparisons: tuple[Comparison, Comparison]
    agreements: tuple[Agreement, ...]
    notes: tuple[str, ...]

    @property
    def backends(self) -> tuple[str, str]:
        """Their names."""
        one, two = self.comparisons
        return one.runs[0].backend, two.runs[0].backend

    @property
    def opposite(self) -> tuple[Agreement, ...]:
        """Where each backend shows a difference, and they contradict each other; single numbers do not count."""
        return tuple(a for a in self.agreements if a.tested and a.sign == OPPOSITE)

    def agreement(self, metric: str, arm: str | None = None) -> Agreement:
        """The agreement on a metric, of the second arm or of the one named.

        Raises:
            ComparisonError: there is none.
        """
        arms = self.comparisons[0].arms[1:]
        wanted = arm if arm is not None else arms[0]
        for found in self.agreements:
            if (found.arm, found.metric) == (wanted, metric):
                return found
        raise ComparisonError(f"there is nothing on {metric!r} of arm {wanted!r}; arms: {', '.join(arms)}")

    def to_json(self) -> dict[str, Any]:
        """Records and results of both backends as a JSON object."""
        return {
            "record_version": RECORD_VERSION,
            "backends": list(self.backends),
            "agreements": [a.to_json() for a in self.agreements],
            "notes": list(self.notes),
            "comparisons": [c.to_json() for c in self.comparisons],
        }

    def write_json(self, path: str | Path) -> None:
        """Write records and results to a file.

        Raises:
            OSError: the file cannot be written.
        """
        with Path(path).open("w", encoding="utf-8") as file:
            file.write(json.dumps(self.to_json(), allow_nan=False) + "\n")


def compare_backends(first: Comparison, second: Comparison) -> BackendsCompared:
    """Hold what one backend says of the arms to what another says.

    Args:
        first, second: the same arms on the same workload, each on one backend.

    Raises:
        ComparisonError: arms or workloads differ, or there is only one arm.
    """
    _check(first, second)
    theirs = {(v.arm, v.metric): v for v in second.verdicts}
    known = first.metrics.metrics
    found = [(v, theirs[v.arm, v.metric]) for v in first.verdicts if known[v.metric].better is not None]
    defined = [pair for pair in found if all(verdict.difference is not None for verdict in pair)]
    agreements = tuple(_agreement(one, two) for one, two in defined)
    return BackendsCompared((first, second), agreements, tuple(_notes(first, second)))


def _check(first: Comparison, second: Comparison) -> None:
    arms = [c.arms for c in (first, second)]
    if arms[0] != arms[1]:
        raise ComparisonError(
            f"the backends ran different arms, {', '.join(arms[0])} and {', '.join(arms[1])}: run the same on both"
        )
    if len(arms[0]) < 2:
        raise ComparisonError(f"there is one arm, {first.runs[0].arm!r}: two are needed for a difference to agree on")
    if first.seeds != second.seeds:
        seeds = [", ".join(map(str, c.seeds)) for c in (first, second)]
        raise ComparisonError(f"the backends ran different seeds, {seeds[0]} and {seeds[1]}: run the same on both")
    known = [set(c.metrics.metrics) for c in (first, second)]
    if known[0] != known[1]:
        others = ", ".join(sorted(known[0] ^ known[1]))
        raise ComparisonError(
            f"the backends were compared in other metrics ({others}): compare both with the same plugins"
        )
    hashes = [[run.workload.get("hash") for run in c.of(c.arms[0]).values()] for c in (first, second)]
    for one, two in zip(*hashes, strict=True):
        if one != two:
            raise ComparisonError(f"the backends ran different workloads, {one} and {two}: offer both the same one")


def _agreement(one: Verdict, two: Verdict) -> Agreement:
    return Agreement(
        arm=one.arm,
        metric=one.metric,
        verdicts=(one, two),
        sign=_signs(_shown(one), _shown(two)),
        tested=NOT_TESTED not in (one.words, two.words),
        overlap=_overlap(one.interval, two.interval),
    )


def _shown(verdict: Verdict) -> int | None:
    """-1 or 1: lower or higher than in the first arm; 0: the same in every request; None: nothing is shown."""
    if verdict.words == NO_DIFFERENCE:
        return 0
    if verdict.words == NOT_SHOWN or verdict.difference is None:
        return None
    return 1 if (verdict.interval.low if verdict.interval else verdict.difference) > 0 else -1


def _signs(one: int | None, two: int | None) -> str:
    if one and two:
        return AGREE if one == two else OPPOSITE
    if one:
        return ONLY_FIRST
    if two:
        return ONLY_SECOND
    return ALIKE if one == two == 0 else NEITHER


def _overlap(one: Interval | None, two: Interval | None) -> bool | None:
    if one is None or two is None:
        return None
    ends = [(i.relative_low, i.relative_high) for i in (one, two)]
    if any(end is None for pair in ends for end in pair):
        ends = [(i.low, i.high) for i in (one, two)]
    (low, high), (other_low, other_high) = ends
    assert low is not None and high is not None and other_low is not None and other_high is not None
    return low <= other_high and other_low <= high


def _notes(first: Comparison, second: Comparison) -> Iterator[str]:
    for arm in first.arms:
        one, two = (next(iter(c.of(arm).values())) for c in (first, second))
        differing = _differing(one.limits, two.limits)
        if differing:
            yield (
                f"{one.arm} had {_sizes(one.limits, differing)} on {one.backend} and {_sizes(two.limits, differing)} "
                f"on {two.backend}: with --set the same on both, sizes explain no difference between the backends"
            )
            break
    for arm in first.arms:
        runs = [list(c.of(arm).values()) for c in (first, second)]
        counts = [sum(r.status == "finished" for run in of for r in run.requests) for of in runs]
        if counts[0] != counts[1]:
            yield (
                f"{arm} finished {counts[0]} requests on {runs[0][0].backend} and {counts[1]} on {runs[1][0].backend}: "
                "latencies are of different requests"
            )


def _differing(one: RunLimits, two: RunLimits) -> list[str]:
    return [name for name in _SIZES if getattr(one, name) != getattr(two, name)]


def _sizes(limits: RunLimits, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {getattr(limits, name)}" for name in names)
