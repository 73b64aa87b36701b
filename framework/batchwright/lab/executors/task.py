"""One run of an experiment, as it can be sent to another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from batchwright.config import EngineConfig
from batchwright.lab.endpoint.address import is_endpoint
from batchwright.lab.executors.installed import Installed
from batchwright.lab.runner import Progress, run_arm
from batchwright.lab.settings import given_settings
from batchwright.lab.window import Window
from batchwright.lab.workload import Workload

if TYPE_CHECKING:
    from batchwright.lab.run_record import RunRecord


@dataclass(frozen=True)
class Task:
    """One run: an arm, a workload and a seed.

    Attributes:
        arm: name in tables.
        config: of its engine, or fleet.
        workload: what to offer.
        seed: of the prompts.
        options: further options of :func:`~batchwright.lab.run_arm`.
        origins: where the config's values come from.
        local: options that stay in this process, such as objects that observe; executors that leave it refuse them.
        point: what tells it from other runs of its arm, in words: the point of a sweep, say.
        window: which requests count; it changes nothing of the run itself.
    """

    arm: str
    config: EngineConfig
    workload: Workload
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    local: Mapping[str, Any] = field(default_factory=dict)
    point: str = ""
    window: Window | None = None

    @property
    def label(self) -> str:
        """Arm, seed and point, in words."""
        return f"arm {self.arm}, seed {self.seed}{f', {self.point}' if self.point else ''}"

    @property
    def title(self) -> str:
        """Arm and point, for progress."""
        return f"{self.arm}, {self.point}" if self.point else self.arm

    def run(self, progress: Progress | None = None, installed: Installed | None = None) -> RunRecord:
        """Run it here.

        Args:
            progress: told now and then.
            installed: plugins of this process; None: they are loaded for this run.

        Raises:
            BatchwrightError: see ``run_arm``.
        """
        local = dict(self.local)
        if installed is not None and not is_endpoint(self.config.backend):
            local.setdefault("installed", installed.without(self.config.no_plugins))
        run = run_arm(
            self.config,
            self.workload,
            arm=self.arm,
            seed=self.seed,
            progress=None if progress is None else self._told(progress),
            origins=self.origins,
            **self.options,
            **local,
        )
        run.window, run.given = self.window, given_settings(self.config)
        return run

    def _told(self, progress: Progress) -> Progress:
        def report(_: str, done: int, total: int) -> None:
            progress(self.title, done, total)

        return report
