"""Which models the simulator knows by name, and how a model is named."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from batchwright.errors import ConfigError, did_you_mean
from batchwright_backends.sim.checked import check
from batchwright_backends.sim.shape import ModelShape
from batchwright_backends.sim.transformers_config import read_shape

_NOT_SHAPE = ("aliases", "parameters")


@cache
def _catalogue() -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Entries by name, and names by alias."""
    text = files("batchwright_backends.sim").joinpath("data", "models.yaml").read_text(encoding="utf-8")
    entries: dict[str, dict[str, Any]] = yaml.safe_load(text)
    names = {alias: name for name, entry in entries.items() for alias in (name, *entry.get("aliases", ()))}
    return entries, names


def model_names() -> list[str]:
    """Names of the catalogue, without aliases, in order."""
    return sorted(_catalogue()[0])


def published_parameters(name: str) -> int:
    """How many parameters the publisher of a catalogued model counts."""
    return int(_catalogue()[0][name]["parameters"])


def find_model(name: str) -> ModelShape:
    """The shape of a model.

    Args:
        name: of the catalogue, in any case, its publisher before a slash or not; or the path of a transformers
            ``config.json``, or of a folder that holds one.

    Raises:
        ConfigError: no model of that name (nearest names given), or a configuration that cannot be read.
    """
    path = Path(name).expanduser()
    if path.exists() or name.endswith(".json"):
        return read_shape(path)
    entries, names = _catalogue()
    key = names.get(name.lower()) or names.get(name.lower().rpartition("/")[2])
    if key is None:
        near = did_you_mean(name.lower().rpartition("/")[2], names)
        raise ConfigError(
            f"the simulator knows no model {name!r} ({near}); the path of a transformers config.json works as well: "
            "sim:path/to/config.json@h100"
        )
    entry = {k: v for k, v in entries[key].items() if k not in _NOT_SHAPE}
    return check(ModelShape, {"name": key, **entry}, f"model {key!r} of the catalogue")
