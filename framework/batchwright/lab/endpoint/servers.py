"""The endpoints of an experiment, asked before anything runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from batchwright.errors import BackendError
from batchwright.lab.endpoint.address import is_endpoint

if TYPE_CHECKING:
    from batchwright.config import EngineConfig
    from batchwright.lab.executors.task import Task


@dataclass
class Servers:
    """What the endpoints of an experiment said, and of those that did not answer why.

    Attributes:
        vocab_size: the made-up token ids of all arms are below it, so that all get the same prompts; None: there is no
            endpoint.
    """

    vocab_size: int | None = None
    _errors: dict[str, BackendError] = field(default_factory=dict)

    @classmethod
    def ask(cls, configs: Iterable[EngineConfig]) -> Servers:
        """Ask each of them once; other arms have none.

        Raises:
            ConfigError: an option is wrong, or what is needed is not installed.
        """
        servers = cls()
        asked = {_key(config): config for config in configs if is_endpoint(config.backend)}
        if not asked:
            return servers
        from batchwright.lab.endpoint.run import probe
        from batchwright.lab.endpoint.server import VOCAB_SIZE

        sizes: list[int] = []
        for key, config in asked.items():
            try:
                sizes.append(probe(config).vocab_size or VOCAB_SIZE)
            except BackendError as error:
                servers._errors[key] = error
        servers.vocab_size = min(sizes, default=VOCAB_SIZE)
        return servers

    def error(self, config: EngineConfig) -> BackendError | None:
        """Why a run of this config cannot begin; None: it can, or is no endpoint's."""
        return self._errors.get(_key(config)) if self._errors else None

    def with_vocabulary(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """The tasks, all with one vocabulary where there is an endpoint among them."""
        if self.vocab_size is None:
            return tasks
        return [replace(task, options={"vocab_size": self.vocab_size, **task.options}) for task in tasks]


def _key(config: EngineConfig) -> str:
    return json.dumps([config.backend, config.backend_options], sort_keys=True, default=str)
