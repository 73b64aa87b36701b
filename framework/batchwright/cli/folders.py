"""``--out``: from a command line to the folder of an experiment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchwright.cli.arms import Arm
from batchwright.cli.options import FileOptions, FolderOptions
from batchwright.errors import ConfigError
from batchwright.lab.executors import Task
from batchwright.lab.saved_runs import SavedRuns
from batchwright.lab.workload import Workload

if TYPE_CHECKING:
    from batchwright.lab.files.manifest import Manifest


def open_folder(
    files: FileOptions,
    design: str,
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    options: Mapping[str, Any],
    details: Mapping[str, Any],
) -> SavedRuns | None:
    """The folder that runs are written to as they come, with what the experiment is in it; None: nothing is kept.

    Args:
        files: what the command line says of it.
        design: ``run``, ``ab``, ``sweep``, ...
        arms: of the experiment.
        tasks: all runs of it.
        options: of every run.
        details: what else the design has.

    Raises:
        ConfigError: the folder holds another experiment or other files, cannot be written, or pyarrow is missing.
    """
    seeds = list(dict.fromkeys(task.seed for task in tasks))
    return open_saved(files, design, arms, tasks[0].workload, seeds, options, details, tasks)


def open_saved(
    files: FolderOptions,
    design: str,
    arms: Sequence[Arm],
    workload: Workload,
    seeds: Sequence[int],
    options: Mapping[str, Any],
    details: Mapping[str, Any],
    tasks: Sequence[Task] = (),
) -> SavedRuns | None:
    """:func:`open_folder`, for a design whose runs are not known before: a search's, say.

    Args:
        files, design, arms, options, details: as there.
        workload: what is offered, where nothing says otherwise.
        seeds: of the runs.
        tasks: those that are known.

    Raises:
        ConfigError: as there; or ``--resume`` goes with nothing, or with ``--overwrite``.
    """
    for option, given in (("--overwrite", files.overwrite), ("--resume", files.resume)):
        if given and files.out is None:
            raise ConfigError(f"{option} says what becomes of the folder of --out: name one, or leave it out")
    if files.out is None:
        return None
    if files.overwrite and files.resume:
        raise ConfigError("--resume goes on with the experiment in the folder, and --overwrite replaces it: give one")
    from batchwright.lab.files import Folder

    saved = SavedRuns(Folder(files.out), resume=files.resume, tell=lambda line: print(line, file=sys.stderr))
    manifest = _manifest(design, arms, workload, seeds, saved.plan(tasks), options, details)
    distributions = [plugin.distribution for plugin in arms[0].plugins.plugins.values()]
    saved.folder.write_experiment(manifest, overwrite=files.overwrite, distributions=distributions)
    return saved


def _manifest(
    design: str,
    arms: Sequence[Arm],
    workload: Workload,
    seeds: Sequence[int],
    labels: Sequence[str],
    options: Mapping[str, Any],
    details: Mapping[str, Any],
) -> Manifest:
    from batchwright.lab.files import Manifest

    return Manifest.of(
        design,
        {arm.label: arm.config for arm in arms},
        workload,
        runs=list(labels),
        seeds=list(seeds),
        options=dict(options),
        details=dict(details),
        command=[Path(sys.argv[0]).name, *sys.argv[1:]],
    )
