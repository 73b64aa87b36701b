"""Two or more arms on the very same requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchwright.config import EngineConfig
from batchwright.errors import ComparisonError
from batchwright.lab.compare import Comparison, compare
from batchwright.lab.run_record import RunRecord
from batchwright.lab.runner import run_arm
from batchwright.lab.workload import Workload


def ab(configs: Mapping[str, EngineConfig], workload: Workload, **options: Any) -> Comparison:
    """Run each arm on the same workload, one after the other, and compare all with the first.

    Args:
        configs: the arms' names and settings; the first is what the others are compared with.
        workload: what to offer to each.
        **options: of :func:`~batchwright.lab.runner.run_arm`, for every arm: ``declared``, ``respect_eos``, ``seed``,
            ``max_steps``, ``max_seconds``, ``progress``, ``plugins``, ``installed``.

    Returns:
        The comparison. After Ctrl-C it holds the arms that were begun, and the last says that it was interrupted.

    Raises:
        ComparisonError: there is no arm, or the arms did not get or do the same work (see
            :func:`~batchwright.lab.compare.compare`).
        WorkloadError, ConfigError, PluginError, BackendError, PolicyError: as ``run_arm``.
    """
    if not configs:
        raise ComparisonError("there is no arm to run: give at least one policy")
    for name in ("arm", "backend", "policy", "origins"):
        if name in options:
            raise TypeError(f"ab() takes no {name!r}: it would be the same for every arm; use run_arm and compare")
    runs: list[RunRecord] = []
    for name, config in configs.items():
        runs.append(run_arm(config, workload, arm=name, **options))
        if runs[-1].stopped == "interrupted":
            break
    return compare(runs, seed=options.get("seed", 0))
