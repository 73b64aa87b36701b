"""Runs of several folders, put together for one comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from batchwright.errors import ComparisonError, WorkloadError
from batchwright.lab.compare import Comparison, compare
from batchwright.lab.files import Folder
from batchwright.lab.run_record import RunRecord

COMPARED = ("ab", "run")
"""Designs whose runs stand side by side; others vary more than the arm."""


@dataclass(frozen=True)
class Gathered:
    """What was found in folders.

    Attributes:
        comparison: of all their arms; the first arm of the first folder is what others are compared with.
        experiments: what ``experiment.json`` holds in each, with the folder's name as ``folder``.
        twice: arms that are in several folders with the very same runs, and count once.
    """

    comparison: Comparison
    experiments: list[dict[str, Any]]
    twice: list[str]


def gather(paths: Sequence[Path]) -> Gathered:
    """Read folders and compare all their arms.

    An arm whose name another folder has too stands once where its runs are equal, else as ``NAME (FOLDER)``.

    Raises:
        WorkloadError: a path is no folder of results, holds no run, or one that cannot be read.
        ComparisonError: the arms must not be compared; the message names the folders.
        ConfigError: pyarrow is not installed.
    """
    arms: dict[str, list[RunRecord]] = {}
    experiments: list[dict[str, Any]] = []
    twice: list[str] = []
    origin: dict[str, Path] = {}
    for path in paths:
        folder = Folder(path)
        experiment = folder.experiment()
        _check_design(path, experiment)
        runs = folder.read_runs()
        if not runs:
            raise WorkloadError(f"{path} holds no run that came to its end; run the experiment again with --resume")
        experiments.append({**experiment, "folder": str(path)})
        for name, of in _by_arm(runs).items():
            if name in arms and _same(arms[name], of):
                twice.append(name)
                continue
            own = name if name not in arms else _free(f"{name} ({path.name or path})", arms)
            arms[own] = [replace(run, arm=own) for run in of]
            origin[own] = path
    try:
        comparison = compare([run for runs in arms.values() for run in runs])
    except ComparisonError as error:
        if len(paths) == 1:
            raise
        where = "; ".join(f"{name} is from {path}" for name, path in origin.items())
        raise ComparisonError(f"{error} ({where})") from None
    return Gathered(comparison, experiments, twice)


def _check_design(path: Path, experiment: dict[str, Any]) -> None:
    design = experiment.get("design")
    if design not in COMPARED:
        raise ComparisonError(
            f"{path} holds a {design}: its runs differ in more than the arm, so they are not compared side by side; "
            f"its own results are in {path / 'summary.json'}"
        )


def _by_arm(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    found: dict[str, list[RunRecord]] = {}
    for run in runs:
        found.setdefault(run.arm, []).append(run)
    return found


def _same(some: Sequence[RunRecord], others: Sequence[RunRecord]) -> bool:
    """Whether two arms of one name are one: each of the later runs is among the former, record for record."""
    by_seed = {run.seed: run for run in some}
    return all(
        other.seed in by_seed
        and by_seed[other.seed].settings == other.settings
        and by_seed[other.seed].requests == other.requests
        for other in others
    )


def _free(name: str, taken: dict[str, list[RunRecord]]) -> str:
    found, number = name, 2
    while found in taken:
        found, number = f"{name} {number}", number + 1
    return found
