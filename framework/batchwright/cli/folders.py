"""``--out``: from a command line to the folder of an experiment."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchwright.cli.arms import Arm
from batchwright.cli.options import FileOptions
from batchwright.errors import ConfigError
from batchwright.lab.executors import Task
from batchwright.lab.saved_runs import SavedRuns

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
    if files.out is None:
        if files.overwrite:
            raise ConfigError("--overwrite says what may happen to the folder of --out: name one, or leave it out")
        return None
    from batchwright.lab.files import Folder

    saved = SavedRuns(Folder(files.out))
    manifest = _manifest(design, arms, tasks, saved.plan(tasks), options, details)
    distributions = [plugin.distribution for plugin in arms[0].plugins.plugins.values()]
    saved.folder.write_experiment(manifest, overwrite=files.overwrite, distributions=distributions)
    return saved


def _manifest(
    design: str,
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    labels: Sequence[str],
    options: Mapping[str, Any],
    details: Mapping[str, Any],
) -> Manifest:
    from batchwright.lab.files import Manifest

    return Manifest.of(
        design,
        {arm.label: arm.config for arm in arms},
        tasks[0].workload,
        runs=list(labels),
        seeds=list(dict.fromkeys(task.seed for task in tasks)),
        options=dict(options),
        details=dict(details),
        command=[Path(sys.argv[0]).name, *sys.argv[1:]],
    )
