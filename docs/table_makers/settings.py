"""Tables of settings: of the engine, and of a synthetic workload."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import MISSING, fields
from typing import Any

from pydantic import BaseModel

from batchwright.cli.policies import parameters
from batchwright.config import EngineConfig, submodel
from batchwright.config_sources import ENVIRONMENT_PREFIX
from batchwright.lab import SyntheticSpec
from table_makers.classes import attributes
from table_makers.markdown import code, table


def config() -> str:
    """Every setting, with type, default, meaning and environment name."""

    def rows(model: type[BaseModel], prefix: str = "") -> Iterable[tuple[str, ...]]:
        for name, (kind, default, meaning) in parameters(model).items():
            inner = submodel(model.model_fields[name].annotation)
            if inner is not None:
                yield from rows(inner, f"{prefix}{name}.")
            else:
                factory = model.model_fields[name].default_factory
                shown = json.dumps(factory()) if callable(factory) else default  # type: ignore[call-arg]
                yield code(prefix + name), kind, code(shown), meaning

    return table(("setting", "type", "default", "meaning"), rows(EngineConfig))


def environment() -> str:
    """The environment variable of a few settings."""
    names = ("max_num_seqs", "prefix_cache.visible", "policy.chunk_size")
    variables = [f"{ENVIRONMENT_PREFIX}{name.upper().replace('.', '__')}" for name in names]
    return table(("setting", "variable"), [(code(n), code(v)) for n, v in zip(names, variables, strict=True)])


def synthetic() -> str:
    """Keys of ``synthetic:…``."""
    said = attributes(SyntheticSpec)
    rows = []
    for field in fields(SyntheticSpec):
        default = "" if field.default is MISSING else _lengths(field.default)
        rows.append((code(field.name), code(default), said[field.name]))
    return table(("key", "default", "meaning"), rows)


def _lengths(value: Any) -> str:
    if hasattr(value, "kind"):  # a distribution, or the shape of a rate
        return f"{value.values[0]:g}" if value.values else str(value.kind)
    return "none" if value is None else f"{value:g}"
