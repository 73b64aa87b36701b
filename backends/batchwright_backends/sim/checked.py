"""Pydantic models whose complaints read like the rest of Batchwright's errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from batchwright.errors import ConfigError, did_you_mean


class Checked(BaseModel):
    """Base of everything that a user may write in a file: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


CheckedT = TypeVar("CheckedT", bound=Checked)


def check(kind: type[CheckedT], values: Mapping[str, Any], where: str) -> CheckedT:
    """Make a ``kind`` of plain values.

    Args:
        kind: the model.
        values: as read from a file or an option mapping.
        where: what the values are, for messages: ``options of backend 'sim'``, ``gpu of l4.yaml``.

    Raises:
        ConfigError: a key is unknown (with the nearest valid names), missing, or its value out of range.
    """
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(kind, e, where) for e in error.errors())) from None


def _sentence(kind: type[BaseModel], error: Any, where: str) -> str:
    path = [str(part) for part in error["loc"]]
    dotted = ".".join(path)
    if error["type"] == "extra_forbidden":
        return f"{where}: there is no {dotted!r}: {did_you_mean(path[-1], _names_at(kind, path[:-1]))}"
    if error["type"] == "missing":
        return f"{where}: {dotted!r} is missing"
    place = f"{dotted} = {error['input']!r}: " if path else ""
    return f"{where}: {place}{error['msg'].removeprefix('Value error, ')}"


def _names_at(kind: type[BaseModel], path: list[str]) -> list[str]:
    """Fields of the model that lies at ``path`` in ``kind``."""
    for name in path:
        annotation = kind.model_fields[name].annotation
        kinds = [annotation, *get_args(annotation)]
        kind = next(k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel))
    return list(kind.model_fields)
