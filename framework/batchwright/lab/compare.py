"""The comparison of runs of one workload: summaries, verdicts, and what the load could show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchwright.errors import ComparisonError
from batchwright.lab.alignment import share_that_differs
from batchwright.lab.closing import closing_lines
from batchwright.lab.load import Load
from batchwright.lab.pairing import check_comparable
from batchwright.lab.replica_summary import summarize_replicas
from batchwright.lab.run_record import RunRecord
from batchwright.lab.summary import Summary, summarize
from batchwright.lab.verdict import Judge, Verdict
from batchwright.version import RECORD_VERSION


@dataclass(frozen=True)
class Comparison:
    """Arms side by side; the first is what the others are compared with.

    Attributes:
        runs: the arms' records.
        summaries: metrics by arm.
        verdicts: one for each metric of each arm but the first.
        loads: what the load was like, by arm.
        decisions_differ: share of steps whose batch differs from the first arm's, by arm.
        closing: what the load could and could not show, in sentences.
        replicas: of arms with more than one, the metrics of each replica, by arm.
    """

    runs: tuple[RunRecord, ...]
    summaries: dict[str, Summary]
    verdicts: tuple[Verdict, ...]
    loads: dict[str, Load]
    decisions_differ: dict[str, float]
    closing: tuple[str, ...]
    replicas: dict[str, list[Summary]] = field(default_factory=dict)

    def verdict(self, metric: str, arm: str | None = None) -> Verdict:
        """The verdict on a metric, of the second arm or of the one named.

        Raises:
            ComparisonError: there is none.
        """
        arms = [run.arm for run in self.runs[1:]]
        wanted = arm if arm is not None else (arms[0] if arms else None)
        for verdict in self.verdicts:
            if verdict.metric == metric and verdict.arm == wanted:
                return verdict
        raise ComparisonError(f"there is no verdict on {metric!r} of arm {wanted!r}; arms: {', '.join(arms) or 'none'}")

    def to_json(self) -> dict[str, Any]:
        """Records and results as a JSON object; the same runs give the same bytes."""
        return {
            "record_version": RECORD_VERSION,
            "summary": self.summaries,
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
            "replicas": self.replicas,
            "decisions_differ": self.decisions_differ,
            "closing": list(self.closing),
            "runs": [run.to_json() for run in self.runs],
        }

    def write_json(self, path: str | Path) -> None:
        """Write records and results to a file.

        Raises:
            OSError: the file cannot be written.
        """
        with Path(path).open("w", encoding="utf-8") as file:
            file.write(json.dumps(self.to_json(), allow_nan=False) + "\n")  # json.dump would take ten times as long


def compare(runs: Sequence[RunRecord], *, seed: int = 0) -> Comparison:
    """Compare runs of one workload with the first of them.

    Args:
        runs: one a arm, each under a name of its own; a single one gives its summary and no verdict.
        seed: of the bootstrap.

    Raises:
        ComparisonError: there are no runs, or they must not be compared: the arms got different requests, or a request
            finished in two of them with different output lengths.
    """
    if not runs:
        raise ComparisonError("there is no run to compare")
    check_comparable(runs)
    base, *others = runs
    summaries = {run.arm: summarize(run) for run in runs}
    judge = Judge(base, summaries[base.arm], seed)
    verdicts = tuple(v for run in others for v in judge.verdicts(run, summaries[run.arm]))
    loads = {run.arm: Load.of(run) for run in runs}
    differ = {run.arm: share_that_differs(base.batches, run.batches) for run in others}
    return Comparison(
        runs=tuple(runs),
        summaries=summaries,
        verdicts=verdicts,
        loads=loads,
        decisions_differ=differ,
        closing=tuple(closing_lines(runs, loads, differ)),
        replicas={run.arm: summarize_replicas(run) for run in runs if run.num_replicas > 1},
    )
