"""The folder of an experiment: what it was, its runs, and what came out of it.

::

    DIR/experiment.json                 the experiment: command, arms, workload, environment
    DIR/runs/<label>/run.json           one run: settings, limits, events, a key of what made it, and releases
    DIR/runs/<label>/requests.parquet   a row a request
    DIR/runs/<label>/steps.parquet      a row a step
    DIR/summary.json                    metrics and verdicts
    DIR/report.html                     the report
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import ConfigError, WorkloadError, did_you_mean
from batchwright.lab.files.environment import environment
from batchwright.lab.files.manifest import Manifest
from batchwright.lab.files.parquet import need_arrow, read_requests, read_steps, write_requests, write_steps
from batchwright.lab.run_record import RunLimits, RunRecord
from batchwright.version import RECORD_VERSION

FOLDER_VERSION = 1
"""Schema version of the JSON files."""

_EXPERIMENT, _RUNS, _RUN, _SUMMARY, _REPORT = "experiment.json", "runs", "run.json", "summary.json", "report.html"
_REQUESTS, _STEPS = "requests.parquet", "steps.parquet"
_IN_TABLES = ("offered", "requests", "steps", "batches")
_NOT_WRITTEN = ("num_leapt", "version")


class Folder:
    """An experiment on disk.

    Nothing is made before the first write. A run is there once its ``run.json`` is: it is written last, so that a
    process that is killed leaves no half of one.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def report_path(self) -> Path:
        """Where its report belongs."""
        return self.path / _REPORT

    @property
    def summary_path(self) -> Path:
        """Where its metrics and verdicts belong."""
        return self.path / _SUMMARY

    # The experiment --------------------------------------------------------------------------------------------

    def check(self, manifest: Manifest, *, overwrite: bool = False) -> None:
        """Before a long run: whether this experiment can be written here.

        Args:
            manifest: what is to be written.
            overwrite: whether another experiment may be replaced.

        Raises:
            ConfigError: the folder holds another experiment or other files, cannot be written, or pyarrow is missing.
        """
        need_arrow()
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file; name a folder for the results")
        above = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not os.access(above, os.W_OK):
            raise ConfigError(f"{self.path} cannot be written: no permission in {above}; name another folder")
        if not self.path.exists() or not any(self.path.iterdir()):
            return
        if not (self.path / _EXPERIMENT).is_file():
            raise ConfigError(
                f"{self.path} holds files that are no experiment of Batchwright's (it has no {_EXPERIMENT}); name an "
                "empty or a new folder"
            )
        if overwrite:
            return
        there = self.manifest()
        if there.key != manifest.key:
            raise ConfigError(
                f"{self.path} holds another experiment: {_differences(there, manifest)}; name another folder, or "
                "replace it with --overwrite"
            )

    def write_experiment(
        self, manifest: Manifest, *, overwrite: bool = False, distributions: Sequence[str] = ()
    ) -> None:
        """Write what the experiment is, and where it runs.

        Runs of the same experiment that are there are kept; those of another are removed, if ``overwrite`` says so.

        Args:
            manifest: what it is.
            overwrite: whether another experiment may be replaced.
            distributions: name and version of each that brings plugins.

        Raises:
            ConfigError: see :meth:`check`.
            OSError: it cannot be written.
        """
        self.check(manifest, overwrite=overwrite)
        if (self.path / _EXPERIMENT).is_file() and overwrite:
            self._clear()
        self.path.mkdir(parents=True, exist_ok=True)
        about = {"folder_version": FOLDER_VERSION, **manifest.to_json(), "environment": environment(distributions)}
        _write_json(self.path / _EXPERIMENT, about)

    def _clear(self) -> None:
        shutil.rmtree(self.path / _RUNS, ignore_errors=True)
        for name in (_EXPERIMENT, _SUMMARY, _REPORT):
            (self.path / name).unlink(missing_ok=True)

    def manifest(self) -> Manifest:
        """What the experiment is.

        Raises:
            WorkloadError: there is none, or it is of another version.
        """
        return Manifest.from_json(self.experiment())

    def experiment(self) -> dict[str, Any]:
        """``experiment.json``: the manifest's fields, and the environment.

        Raises:
            WorkloadError: there is none, or it is of another version.
        """
        path = self.path / _EXPERIMENT
        if not path.is_file():
            raise WorkloadError(f"{self.path} is no folder of results: it has no {_EXPERIMENT}")
        return _read_json(path)

    # Runs ------------------------------------------------------------------------------------------------------

    def labels(self) -> list[str]:
        """Labels of the runs that are there, in the experiment's order; others behind them, by name."""
        there = {path.parent.name for path in self.path.glob(f"{_RUNS}/*/{_RUN}")}
        planned = self.experiment()["runs"] if (self.path / _EXPERIMENT).is_file() else []
        return [*(label for label in planned if label in there), *sorted(there - set(planned))]

    def key(self, label: str) -> str | None:
        """The key of what made a run, as it was given; None: the run is not there, or has none."""
        path = self._place(label) / _RUN
        return _read_json(path)["key"] if path.is_file() else None

    def releases(self, label: str) -> dict[str, str]:
        """With which releases a run was made; empty: it is not there, or they were not given."""
        path = self._place(label) / _RUN
        return dict(_read_json(path).get("releases") or {}) if path.is_file() else {}

    def write_run(
        self, label: str, run: RunRecord, *, key: str | None = None, releases: Mapping[str, str] | None = None
    ) -> None:
        """Write the record of one run; one of the same label is replaced.

        Args:
            label: its name here: see :func:`~batchwright.lab.files.manifest.run_labels`.
            run: its record.
            key: of what made it: see :func:`~batchwright.lab.files.keys.task_key`.
            releases: with which it was made: see :func:`~batchwright.lab.files.releases.releases_of`.

        Raises:
            WorkloadError: the record's parts do not go together.
            ConfigError: pyarrow is not installed, or the label is no name for a folder.
            OSError: it cannot be written.
        """
        place = self._place(label)
        place.mkdir(parents=True, exist_ok=True)
        (place / _RUN).unlink(missing_ok=True)
        write_requests(place / _REQUESTS, run)
        write_steps(place / _STEPS, run)
        plain = [f.name for f in fields(RunRecord) if f.name not in (*_IN_TABLES, *_NOT_WRITTEN)]
        values = {name: getattr(run, name) for name in plain}
        head = {
            "folder_version": FOLDER_VERSION,
            "record_version": run.version,
            "key": key,
            "releases": dict(releases or {}),
        }
        _write_json(place / _RUN, {**head, **values, "limits": asdict(run.limits)})

    def read_run(self, label: str) -> RunRecord:
        """The record of one run, equal to what was written.

        Raises:
            WorkloadError: it is not there, is broken, or is of another version.
            ConfigError: pyarrow is not installed.
        """
        place = self._place(label)
        if not (place / _RUN).is_file():
            raise WorkloadError(f"{self.path} has no run {label!r}; {did_you_mean(label, self.labels())}")
        values = _read_json(place / _RUN)
        del values["folder_version"], values["key"]
        values.pop("releases", None)
        version = values.pop("record_version")
        if version != RECORD_VERSION:
            raise WorkloadError(
                f"{place / _RUN}: record_version is {version!r}; this Batchwright reads {RECORD_VERSION}: read it with "
                "the release that wrote it, or run the experiment again"
            )
        offered, requests = read_requests(place / _REQUESTS)
        steps, batches = read_steps(place / _STEPS)
        try:
            limits = RunLimits(**values.pop("limits"))
            return RunRecord(**values, limits=limits, offered=offered, requests=requests, steps=steps, batches=batches)
        except (KeyError, TypeError) as error:
            raise WorkloadError(f"{place / _RUN} is no run: {error}") from None

    def read_runs(self) -> list[RunRecord]:
        """All runs that are there, in the order of ``labels``.

        Raises:
            WorkloadError: one is broken, or of another version.
        """
        return [self.read_run(label) for label in self.labels()]

    def _place(self, label: str) -> Path:
        if not label or label.startswith(".") or set(label) & set('/\\:*?"<>|\0'):
            raise ConfigError(f"{label!r} cannot name the folder of a run")
        return self.path / _RUNS / label

    # Results ---------------------------------------------------------------------------------------------------

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write metrics and verdicts.

        Raises:
            OSError: it cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        _write_json(self.summary_path, {"folder_version": FOLDER_VERSION, **summary})

    def summary(self) -> dict[str, Any]:
        """``summary.json``.

        Raises:
            WorkloadError: there is none, or it is of another version.
        """
        return _read_json(self.summary_path)


def _differences(there: Manifest, here: Manifest) -> str:
    """In words, the first thing in which two experiments differ."""
    if there.design != here.design:
        return f"a {there.design}, and this is a {here.design}"
    if list(there.arms) != list(here.arms):
        return f"its arms are {', '.join(there.arms)}, and here {', '.join(here.arms)}"
    if there.workload.get("hash") != here.workload.get("hash"):
        return f"its workload is {_workload(there)}, and here {_workload(here)}"
    if list(there.seeds) != list(here.seeds):
        return f"its seeds are {there.seeds}, and here {here.seeds}"
    for name in ("options", "details"):
        if found := _unequal(getattr(there, name), getattr(here, name)):
            return f"its {name} have {found}"
    for arm, settings in there.arms.items():
        if found := _unequal(_whole(settings), _whole(here.arms[arm])):
            return f"its arm {arm} has {found}"
    return (
        "its arms have the same settings, but others of them were given, and for those that were not policies have "
        "defaults of their own (earlier releases wrote all down as if they were)"
    )


def _unequal(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """The first value that differs, in words; empty: none does."""
    for key in dict.fromkeys((*there, *here)):
        one, other = there.get(key), here.get(key)
        if json.dumps(one, default=str) != json.dumps(other, default=str):
            return f"{key} {one!r}, and here {other!r}"
    return ""


def _whole(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """An arm's settings, with those that are not set."""
    try:
        return EngineConfig.parse(settings).model_dump(mode="json")
    except ConfigError:  # of a release that has others
        return settings


def _workload(manifest: Manifest) -> str:
    return f"{manifest.workload.get('name')} (hash {manifest.workload.get('hash')})"


def _write_json(path: Path, value: Any) -> None:
    """Whole or not at all."""
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False, default=str)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WorkloadError(f"cannot read {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise WorkloadError(f"{path} is not JSON: {error}; it was cut off, or is another file") from None
    version = value.get("folder_version") if isinstance(value, dict) else None
    if version != FOLDER_VERSION:
        raise WorkloadError(
            f"{path} has folder_version {version!r}; this Batchwright reads {FOLDER_VERSION}: read it with the release "
            "that wrote it, or run the experiment again"
        )
    return dict(value)
