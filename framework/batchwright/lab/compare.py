"""The comparison of runs of one workload: summaries, verdicts, and what the load could show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from batchwright.errors import ComparisonError
from batchwright.lab.alignment import share_that_differs
from batchwright.lab.closing import Failure, closing_lines
from batchwright.lab.evidence import Evidence
from batchwright.lab.family import Family, share_of
from batchwright.lab.load import Load
from batchwright.lab.metrics import Metric
from batchwright.lab.pairing import check_comparable, paired_seeds
from batchwright.lab.plugin_metrics import BUILT_IN, MetricSet
from batchwright.lab.replica_summary import summarize_replicas
from batchwright.lab.run_record import RunRecord
from batchwright.lab.slo_classes import summarize_classes
from batchwright.lab.summary import Summary
from batchwright.lab.verdict import Judge, Verdict
from batchwright.lab.window import measured
from batchwright.version import RECORD_VERSION

Arms = Mapping[str, Mapping[int, RunRecord]]
"""Runs by arm and seed."""

PRIMARY_MARK = "*"
"""Stands behind the names of the primary metrics."""


@dataclass(frozen=True)
class Comparison:
    """Arms side by side; the first is what the others are compared with.

    Attributes:
        runs: all records: of each arm in turn, its seeds.
        summaries: metrics by arm; of several seeds the mean of those in which a metric is defined.
        verdicts: one for each metric of each arm but the first.
        loads: what the load was like, by arm; of several seeds the mean.
        decisions_differ: share of steps whose batch differs from the first arm's, by arm; of several seeds the mean;
            not of endpoints, whose steps are not seen.
        closing: what the load could and could not show, in sentences.
        replicas: of arms with more than one, the metrics of each replica, by arm.
        classes: of arms whose requests are of several classes, the metrics of each, by arm.
        spread: the values of each metric by arm and name, one a seed.
        family: how strict the tests are.
        failures: runs that failed, and are not among the records.
        metrics: what the summaries hold.
    """

    runs: tuple[RunRecord, ...]
    summaries: dict[str, Summary]
    verdicts: tuple[Verdict, ...]
    loads: dict[str, Load]
    decisions_differ: dict[str, float]
    closing: tuple[str, ...]
    replicas: dict[str, list[Summary]] = field(default_factory=dict)
    classes: dict[str, dict[str, Summary]] = field(default_factory=dict)
    spread: dict[str, dict[str, list[float | int | None]]] = field(default_factory=dict)
    family: Family = field(default_factory=Family)
    failures: tuple[Failure, ...] = ()
    metrics: MetricSet = BUILT_IN

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms, in their order."""
        return tuple(dict.fromkeys(run.arm for run in self.runs))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of all runs, in the order of the first arm's."""
        return tuple(dict.fromkeys(run.seed for run in self.runs))

    @property
    def method(self) -> str:
        """How differences and intervals came about, in sentences."""
        intervals = {v.metric: v.interval for v in self.verdicts if v.interval is not None}
        if not intervals:
            return f"Differences are to {self.arms[0]}."
        primary = {i.level for name, i in intervals.items() if name in self.family.primary}
        others = {i.level for name, i in intervals.items() if name not in self.family.primary}
        each = [
            *(f"{share_of(level)} each for the primary metrics ({PRIMARY_MARK})" for level in primary),
            *(f"{share_of(level)} for the others" for level in others),
        ]
        num = max(v.num_seeds for v in self.verdicts)
        how = (
            f"Student's t over {num} seeds and blocks of requests"
            if num > 1
            else "paired block bootstrap over requests"
        )
        return (
            f"Differences are to {self.arms[0]}. Intervals by {how}; all together hold with "
            f"{share_of(self.family.level)}: {', '.join(each)}. What has no verdict was not tested."
        )

    def label(self, metric: Metric) -> str:
        """A metric's label, marked where it is a primary one of which some arm has an interval."""
        is_marked = metric.name in self.family.primary and any(
            v.metric == metric.name and v.interval is not None for v in self.verdicts
        )
        return f"{metric.label} {PRIMARY_MARK}" if is_marked else metric.label

    def of(self, arm: str) -> dict[int, RunRecord]:
        """The runs of an arm, by seed.

        Raises:
            ComparisonError: there is no such arm.
        """
        found = {run.seed: run for run in self.runs if run.arm == arm}
        if not found:
            raise ComparisonError(f"there is no arm {arm!r}; arms: {', '.join(self.arms)}")
        return found

    def verdict(self, metric: str, arm: str | None = None) -> Verdict:
        """The verdict on a metric, of the second arm or of the one named.

        Raises:
            ComparisonError: there is none.
        """
        arms = self.arms[1:]
        wanted = arm if arm is not None else (arms[0] if arms else None)
        for verdict in self.verdicts:
            if verdict.metric == metric and verdict.arm == wanted:
                return verdict
        raise ComparisonError(f"there is no verdict on {metric!r} of arm {wanted!r}; arms: {', '.join(arms) or 'none'}")

    def to_json(self) -> dict[str, Any]:
        """Records and results as a JSON object; the same runs give the same bytes."""
        return {**self.results(), "runs": [run.to_json() for run in self.runs]}

    def results(self) -> dict[str, Any]:
        """Results without records, as a JSON object."""
        return {
            "record_version": RECORD_VERSION,
            "arms": list(self.arms),
            "seeds": list(self.seeds),
            "level": self.family.level,
            "primary": list(self.family.primary),
            "summary": self.summaries,
            "spread": self.spread,
            "verdicts": [v.to_json() for v in self.verdicts],
            "load": {
                arm: {
                    "somebody_waited": load.waited,
                    "kv_full": load.kv_full,
                    "utilization": load.utilization,
                    "overloaded": load.overloaded,
                }
                for arm, load in self.loads.items()
            },
            "classes": self.classes,
            "replicas": self.replicas,
            "decisions_differ": self.decisions_differ,
            "failures": [{"arm": f.arm, "seed": f.seed, "error": f.error} for f in self.failures],
            "closing": list(self.closing),
        }

    def write_json(self, path: str | Path) -> None:
        """Write records and results to a file.

        Raises:
            OSError: the file cannot be written.
        """
        with Path(path).open("w", encoding="utf-8") as file:
            file.write(json.dumps(self.to_json(), allow_nan=False) + "\n")  # json.dump would take ten times as long


def compare(
    runs: Sequence[RunRecord],
    *,
    seed: int = 0,
    family: Family | None = None,
    failures: Sequence[Failure] = (),
    metrics: MetricSet = BUILT_IN,
) -> Comparison:
    """Compare runs of one workload with those of the first arm.

    Args:
        runs: one or more of each arm, in any order; an arm's runs differ in their seed, and are paired with the first
            arm's of the same seed. A single arm gives its summary and no verdict.
        seed: of the bootstrap.
        family: how strict the tests are; by default all intervals hold together with 95%.
        failures: runs that are missing because they failed, to be told of.
        metrics: those of plugins, beside ``METRICS``.

    Raises:
        ComparisonError: there are no runs, or they must not be compared: the arms got different requests, or a request
            finished in two of them with different output lengths; an arm has two runs of one seed, or none of a seed
            that the first has.
        ConfigError: a primary metric does not exist.
        WorkloadError: a run's window leaves no request.
        PluginError: a metric of a plugin failed.
    """
    if not runs:
        raise ComparisonError("there is no run to compare")
    family = family if family is not None else Family()
    family.check(metrics.metrics)
    arms = _by_arm(runs)
    base, *others = arms
    pairs = {arm: paired_seeds(arms[base], arms[arm]) for arm in others}
    check_comparable(arms, pairs)
    evidence = {arm: {s: Evidence.of(run, metrics) for s, run in of.items()} for arm, of in arms.items()}
    judge = Judge(evidence[base], family, len(others), seed, metrics.metrics)
    verdicts = [v for arm in others for v in judge.verdicts(arm, {s: evidence[arm][s] for s in pairs[arm]})]
    loads = {arm: Load.mean([Load.of(run) for run in of.values()]) for arm, of in arms.items()}
    counted = {arm: {s: measured(run) for s, run in of.items()} for arm, of in arms.items()}
    seen = [arm for arm in others if not any(_first(arms[name]).is_endpoint for name in (base, arm))]
    differ = {arm: fmean(_share(counted[base][s], counted[arm][s]) for s in pairs[arm]) for arm in seen}
    alike = {arm: _num_alike([(evidence[base][s], evidence[arm][s]) for s in pairs[arm]]) for arm in others}
    spread = {arm: _spread([e.summary for e in of.values()]) for arm, of in evidence.items()}
    return Comparison(
        runs=tuple(run for of in arms.values() for run in of.values()),
        summaries={arm: _mean_summary([e.summary for e in of.values()]) for arm, of in evidence.items()},
        verdicts=tuple(verdicts),
        loads=loads,
        decisions_differ=differ,
        closing=tuple(
            closing_lines({arm: list(of.values()) for arm, of in arms.items()}, loads, differ, failures, alike)
        ),
        replicas={
            arm: _mean_replicas([summarize_replicas(run) for run in of.values()])
            for arm, of in counted.items()
            if _first(of).num_replicas > 1
        },
        classes={arm: found for arm, of in counted.items() if (found := _mean_classes(list(of.values())))},
        spread=spread,
        family=family,
        failures=tuple(failures),
        metrics=metrics,
    )


def _by_arm(runs: Sequence[RunRecord]) -> dict[str, dict[int, RunRecord]]:
    arms: dict[str, dict[int, RunRecord]] = {}
    for run in runs:
        of = arms.setdefault(run.arm, {})
        if run.seed in of:
            raise ComparisonError(
                f"two arms are called {run.arm!r}, and have runs of seed {run.seed}: give each arm a name of its own, "
                "and each of its runs another seed"
            )
        of[run.seed] = run
    return arms


def _first(runs: Mapping[int, RunRecord]) -> RunRecord:
    return next(iter(runs.values()))


def _share(base: RunRecord, other: RunRecord) -> float:
    return share_that_differs(base.batches, other.batches)


def _num_alike(pairs: Sequence[tuple[Evidence, Evidence]]) -> int:
    """Seeds that gave what an earlier one gave."""
    return len(pairs) - len({(base.fingerprint, other.fingerprint) for base, other in pairs})


def _spread(summaries: Sequence[Summary]) -> dict[str, list[float | int | None]]:
    return {name: [summary[name] for summary in summaries] for name in summaries[0]}


def _mean_summary(summaries: Sequence[Summary]) -> Summary:
    if len(summaries) == 1:
        return summaries[0]
    found: Summary = {}
    for name, values in _spread(summaries).items():
        known = [v for v in values if v is not None]
        found[name] = fmean(known) if known else None
    return found


def _mean_classes(runs: Sequence[RunRecord]) -> dict[str, Summary]:
    """The metrics of each class of requests, the mean over seeds; empty where all are of one class."""
    found = [summarize_classes(run) for run in runs]
    names = dict.fromkeys(name for classes in found for name in classes)
    return {name: _mean_summary([classes[name] for classes in found if name in classes]) for name in names}


def _mean_replicas(found: Sequence[list[Summary]]) -> list[Summary]:
    """The metrics of each replica, the mean over seeds."""
    return [_mean_summary(summaries) for summaries in zip(*found, strict=True)]
