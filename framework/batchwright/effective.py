"""The settings in force: what the config says, else what the policy wants, else the defaults; each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import BaseModel

from batchwright.active_policy import ActivePolicy
from batchwright.config import EngineConfig, field_names
from batchwright.errors import ConfigError, did_you_mean
from batchwright.limits import Limits
from batchwright.predictor import Predictor
from batchwright.prefix_cache import PrefixCache
from batchwright.router import Router

_LIMITS = tuple(f.name for f in fields(Limits))


@dataclass
class Effective:
    """Settings in force.

    Attributes:
        limits: as they will be kept; ``max_model_len`` may still be narrowed by the backend.
        prefix_cache: as it will work.
        values: dotted config name to the value in force.
        origins: dotted config name to where that comes from.
    """

    limits: Limits
    prefix_cache: PrefixCache
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)


def effective_settings(
    config: EngineConfig,
    policy: ActivePolicy,
    origins: Mapping[str, str] | None = None,
    predictor: tuple[str, Predictor] | None = None,
    router: tuple[str, Router] | None = None,
) -> Effective:
    """Settings in force for a config and its policy.

    Args:
        config: as built.
        policy: as resolved from it.
        origins: where the config's values come from, as :class:`ConfigSources` knows it.
        predictor: as resolved from it, with its name.
        router: the same, where there is one.

    Raises:
        ConfigError: a default the policy declares names no setting, or is out of its range.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name in field_names(EngineConfig):
        value, is_set = _read(config, name.split("."))
        if isinstance(value, BaseModel):
            continue
        values[name] = value
        sources[name] = (origins or {}).get(name, "config") if is_set else "default"
    asked = Limits(config.max_num_seqs, config.max_num_batched_tokens, config.max_num_residents, config.max_model_len)
    possible = [n for n in values if n in _LIMITS or n.startswith("prefix_cache.")]
    for name, value in policy.defaults(asked, {n for n, s in sources.items() if s != "default"}).items():
        if name not in possible:
            raise ConfigError(
                f"policy {policy.name!r} declares a default for {name!r}: policies have a say in limits and in the "
                f"prefix cache only; {did_you_mean(name, possible)}"
            )
        if sources[name] == "default":
            values[name], sources[name] = value, f"policy {policy.name}"
    values["policy"] = policy.describe()
    if predictor is not None:
        name, one = predictor
        values["predict"] = one.describe(name)
    if router is not None:
        name, who = router
        values["router"] = who.describe(name)
    cache = {n.removeprefix("prefix_cache."): v for n, v in values.items() if n.startswith("prefix_cache.")}
    try:
        return Effective(Limits(**{n: values[n] for n in _LIMITS}), PrefixCache(**cache), values, sources)
    except ConfigError as error:  # the config's own values were checked before
        raise ConfigError(f"a default of policy {policy.name!r} cannot be: {error}") from None


def _read(model: BaseModel, path: list[str]) -> tuple[Any, bool]:
    """A field's value, and whether it was set."""
    is_set = path[0] in model.model_fields_set
    value = getattr(model, path[0])
    if len(path) == 1:
        return value, is_set
    value, inner = _read(value, path[1:])
    return value, is_set and inner
