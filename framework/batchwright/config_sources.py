"""Where a config comes from: a file, the environment, ``--set``; the later wins, and each value knows its source."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from batchwright.config import EngineConfig, field_names
from batchwright.errors import ConfigError, did_you_mean
from batchwright.resolve import DEFAULT_POLICY, parse_arm

ENVIRONMENT_PREFIX = "BATCHWRIGHT_SET_"
"""``BATCHWRIGHT_SET_MAX_NUM_SEQS=8``; a double underscore goes one level down: ``…_PREFIX_CACHE__VISIBLE``."""


_WHOLE = ("policy", "predict", "router")
"""Settings that name something and give it parameters."""


class ConfigSources:
    """Values and their sources, before they become an :class:`EngineConfig`.

    Attributes:
        values: nested mappings.
        origins: dotted name to the source of its value.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}

    def copy(self) -> ConfigSources:
        """An independent copy, for another arm."""
        other = ConfigSources()
        other.values = _deep_copy(self.values)
        other.origins = dict(self.origins)
        return other

    def add_mapping(self, values: Mapping[str, Any], origin: str) -> None:
        """Take nested values from somewhere; they win over earlier ones.

        A policy is taken as a whole, and so are predictor and router: parameters of the one before do not stay behind.
        """
        for name in _WHOLE:
            if name in values:
                self.values.pop(name, None)
        self._take(values, origin)

    def _take(self, values: Mapping[str, Any], origin: str) -> None:
        _merge(self.values, values)
        for name in _leaves(values):
            self.origins[name] = origin

    def add_file(self, path: str | Path) -> None:
        """Take a YAML or TOML file.

        Raises:
            ConfigError: it is not there, cannot be read, or is not a mapping.
        """
        file = Path(path)
        if not file.is_file():
            raise ConfigError(f"config file {file}: there is no such file")
        try:
            text = file.read_text(encoding="utf-8")
            values = tomllib.loads(text) if file.suffix == ".toml" else yaml.safe_load(text)
        except (yaml.YAMLError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"config file {file} cannot be read: {error}") from None
        if values is None:
            values = {}
        if not isinstance(values, dict):
            raise ConfigError(f"config file {file}: it must hold a mapping of settings, not {type(values).__name__}")
        EngineConfig.parse(values, f"config file {file}")
        self.add_mapping(values, f"file {file}")

    def add_environment(self, environ: Mapping[str, str] | None = None) -> None:
        """Take ``BATCHWRIGHT_SET_…`` variables; values are YAML.

        Raises:
            ConfigError: a variable names no field.
        """
        environ = os.environ if environ is None else environ
        for variable in sorted(environ):
            if variable.startswith(ENVIRONMENT_PREFIX):
                name = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
                self._add(name, environ[variable], f"environment {variable}")

    def add_set(self, assignments: Iterable[str], origin: str = "--set") -> None:
        """Take ``a.b=value`` assignments; values are YAML.

        Raises:
            ConfigError: one is not of that form, or names no field.
        """
        for text in assignments:
            name, equals, value = text.partition("=")
            if not equals:
                raise ConfigError(f"{origin} {text}: write it as field=value, as in {origin} max_num_seqs=64")
            self._add(name.strip(), value, f"{origin} {name.strip()}")

    def _add(self, name: str, value: str, origin: str) -> None:
        known = field_names(EngineConfig)
        root, dot, _ = name.partition(".")
        open_ended = dot and root in ("backend_options", *_WHOLE)
        if name not in known and not open_ended:
            raise ConfigError(f"{origin}: unknown setting {name!r}; {did_you_mean(name, known)}")
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError:
            parsed = value
        nested: Any = parsed
        for part in reversed(name.split(".")):
            nested = {part: nested}
        if root in _WHOLE and dot:
            present = self.values.get(root, DEFAULT_POLICY if root == "policy" else None)
            self.values[root] = parse_arm(present) if isinstance(present, str) else present or {}
        if name in _WHOLE:
            self.values.pop(name, None)
        self._take(nested, origin)

    def build(self) -> EngineConfig:
        """The config.

        Raises:
            ConfigError: a value is out of its range; its source is named.
        """
        where = "config"
        try:
            return EngineConfig.parse(self.values, where)
        except ConfigError as error:
            named = sorted({o for n, o in self.origins.items() if f"{n} is " in str(error)})
            raise ConfigError(f"{error} ({', '.join(named)})" if named else str(error)) from None


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = _deep_copy(value)


def _deep_copy(value: Any) -> Any:
    return {k: _deep_copy(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _leaves(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    names = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value and key not in _WHOLE:
            names += _leaves(value, f"{prefix}{key}.")
        else:
            names.append(prefix + key)
    return names
