"""Settings of arms: flat names, and where arms differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchwright.lab.run_record import RunRecord


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def differing_settings(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Dotted name to the value of each arm, for the settings in which arms differ; what an arm lacks is None."""
    flat = [flatten(run.settings) for run in runs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    values = {name: [settings.get(name) for settings in flat] for name in names}
    return {name: found for name, found in values.items() if any(v != found[0] for v in found)}
