"""What made a run: a fingerprint by which a folder knows a run that it holds already."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from batchwright.config import EngineConfig
from batchwright.lab.executors.installed import Installed
from batchwright.lab.executors.task import Task
from batchwright.plugins import Plugins
from batchwright.resolve import resolve_policy, resolve_predictor, resolve_router
from batchwright.version import RECORD_VERSION


def fingerprint(value: Any) -> str:
    """16 hex digits of a value that JSON can hold; what it cannot stands as its text."""
    text = json.dumps(value, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def task_key(task: Task, installed: Installed | None = None) -> str:
    """16 hex digits over all that decides what a run gives.

    Arm, config, workload, seed and options, and the source of the policies, predictors and routers that take part, so
    that a policy that was edited is run again. Where progress is told, and objects of this process (observers), are
    not in it; nor are releases, which :mod:`~batchwright.lab.files.releases` has by name.

    Args:
        task: of the run.
        installed: plugins of this process; None: they are loaded for this.

    Raises:
        ConfigError, PluginError: the config names something that there is not.
    """
    config = task.config
    plugins = plugins_of(task, installed)
    return fingerprint(
        {
            "record_version": RECORD_VERSION,
            "arm": task.arm,
            # Of what is unset policies have defaults of their own: unset is not the same as set to the default.
            "config": config.model_dump(mode="json", exclude_unset=True),
            "workload": task.workload.hash,
            "seed": task.seed,
            "options": {name: value for name, value in task.options.items() if name != "progress"},
            "sources": sorted(sources_of(config, plugins)),
        }
    )


def plugins_of(task: Task, installed: Installed | None = None) -> Plugins:
    """The plugins that a task's run has: those that it was given, else those of this process.

    Raises:
        ConfigError, PluginError: they cannot be loaded.
    """
    given = task.local.get("installed")
    return given if isinstance(given, Plugins) else (installed or Installed()).without(task.config.no_plugins)


def sources_of(config: EngineConfig, plugins: Plugins) -> Iterator[tuple[str, str]]:
    """Class and digest of the file that it is in, of all that decides beside the core."""
    deciding: list[object] = [part.policy for part in resolve_policy(config.policy, plugins).parts.values()]
    predictor = resolve_predictor(config.predict, plugins)
    if predictor is not None:
        deciding.append(predictor[1])
    if config.replicas > 1 or config.router is not None:
        deciding.append(resolve_router(config.router, plugins)[1])
    deciding += [plugins.active(name) for name in config.plugins]
    for one in deciding:
        cls = one if inspect.ismodule(one) else type(one)
        try:
            path = inspect.getsourcefile(cls)
        except TypeError:  # made at a prompt
            path = None
        if path is not None and Path(path).is_file():
            yield cls.__name__, hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
