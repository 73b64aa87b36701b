"""Settings of arms: flat names, and where arms differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from batchwright.config import EngineConfig
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
    """Dotted name to the value of each arm, for the settings in which arms differ; what an arm lacks is None.

    An endpoint has no setting of an engine: engines are told apart from engines, and endpoints from endpoints.
    """
    flat = [flatten(run.settings) for run in runs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    values = {name: [settings.get(name) for settings in flat] for name in names}
    kinds = [[place for place, run in enumerate(runs) if run.is_endpoint is kind] for kind in (False, True)]
    return {
        name: found
        for name, found in values.items()
        if any(found[place] != found[kind[0]] for kind in kinds for place in kind)
    }


def given_settings(config: EngineConfig) -> list[str]:
    """Dotted names of the settings that somebody gave, parameters of policies among them, as ``flatten`` names them."""
    return list(_given(config, ""))


def _given(value: BaseModel | Mapping[str, Any], prefix: str) -> Iterator[str]:
    names = value.model_fields_set if isinstance(value, BaseModel) else value
    for name in sorted(names):
        inner = getattr(value, name) if isinstance(value, BaseModel) else value[name]
        if isinstance(inner, BaseModel | Mapping):
            yield from _given(inner, f"{prefix}{name}.")
        else:
            yield prefix + name
