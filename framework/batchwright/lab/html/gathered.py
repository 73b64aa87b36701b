"""Runs of several folders, put together for one comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from batchwright.errors import ComparisonError, WorkloadError
from batchwright.lab.compare import Comparison, compare
from batchwright.lab.family import Family
from batchwright.lab.files import Folder, read_vllm_result
from batchwright.lab.plugin_metrics import BUILT_IN, MetricSet
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


def gather(paths: Sequence[Path], metrics: MetricSet = BUILT_IN) -> Gathered:
    """Read folders, and result files of ``vllm bench serve``, and compare all their arms.

    An arm whose name another folder has too stands once where its runs are equal, else as ``NAME (FOLDER)``. Verdicts
    are those that the first folder's command gave, as strict and with the same draws.

    Args:
        paths: of folders that ``--out`` wrote; a file is a result of ``vllm bench serve --save-detailed``.
        metrics: those of plugins.

    Raises:
        WorkloadError: a path is no folder of results and no such file, holds no run, or one that cannot be read.
        ComparisonError: the arms must not be compared; the message names the folders.
        ConfigError: pyarrow is not installed.
    """
    arms: dict[str, list[RunRecord]] = {}
    experiments: list[dict[str, Any]] = []
    twice: list[str] = []
    origin: dict[str, Path] = {}
    for path in paths:
        if path.is_file():
            runs = [read_vllm_result(path)]
        else:
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
        family = _family(experiments)
        runs = [run for of in arms.values() for run in of]
        seed = next(iter(experiments[0].get("seeds", ())), 0) if experiments else 0
        comparison = compare(runs, seed=seed, family=family, metrics=metrics)
    except ComparisonError as error:
        if len(paths) == 1:
            raise
        where = "; ".join(f"{name} is from {path}" for name, path in origin.items())
        raise ComparisonError(f"{error} ({where})") from None
    return Gathered(comparison, experiments, twice)


def _family(experiments: Sequence[dict[str, Any]]) -> Family:
    details = experiments[0].get("details", {}) if experiments else {}
    usual = Family()
    return Family(details.get("level", usual.level), tuple(details.get("primary", usual.primary)))


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
