"""Settings of arms: flat names, and where arms differ."""

from __future__ import annotations

import json
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


def differences_in_words(runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Dotted name to what each arm has there, for the settings in which arms differ, as every report says them.

    Not among them: the backend, which :func:`backend_in_words` tells, and parameters that only another policy has and
    nobody gave. ``none`` is a setting that is None, ``-`` one that an arm has not: engines and endpoints have not each
    other's.
    """
    given = {name for run in runs for name in run.given or ()}
    known = all(run.given is not None for run in runs)
    return {
        name: [_setting(run, name, value) for run, value in zip(runs, values, strict=True)]
        for name, values in differing_settings(runs).items()
        if name != "backend" and not (known and name.startswith("policy.") and None in values and name not in given)
    }


def backend_in_words(runs: Sequence[RunRecord]) -> str:
    """What arms ran on: one for all, or each arm's."""
    return one_of_all([_backend(run) for run in runs], runs)


def one_of_all(values: Sequence[str], runs: Sequence[RunRecord]) -> str:
    """The value, or where arms differ, each arm's."""
    if len(set(values)) == 1:
        return values[0]
    return "; ".join(f"{run.arm}: {value}" for run, value in zip(runs, values, strict=True))


def value_in_words(value: Any) -> str:
    """The value of a setting."""
    if value is None or value == "":
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(v, str | int | float) for v in value):
        return ", ".join(map(str, value)) or "none"
    return json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)


def _setting(run: RunRecord, name: str, value: Any) -> str:
    lacks = value is None and run.is_endpoint is not name.startswith("endpoint.")
    return "-" if lacks else value_in_words(value)


def _backend(run: RunRecord) -> str:
    if run.is_endpoint:
        return f"{run.backend}, an endpoint: latencies include HTTP"
    return run.backend if run.virtual_time else f"{run.backend}, real time"


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
