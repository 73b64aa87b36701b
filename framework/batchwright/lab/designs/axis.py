"""The axes of a sweep: a setting and the values that it takes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from batchwright.errors import ConfigError

EXAMPLE = "--over max_num_batched_tokens=512,2048,8192"
_COMMA = re.compile(r",(?![^()\[\]{}]*[)\]}])")  # not inside brackets


@dataclass(frozen=True, slots=True)
class Axis:
    """One setting, and the values that it takes in turn.

    Attributes:
        name: of a field of the config or of the workload, dotted where it is an inner one.
        values: at least one, each its own.

    Raises:
        ConfigError: there is no value, or one is given twice.
    """

    name: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError(f"axis {self.name!r} has no values; write them with commas between, as in {EXAMPLE}")
        for value in self.values:
            if sum(other == value and type(other) is type(value) for other in self.values) > 1:
                raise ConfigError(f"axis {self.name!r} has the value {value!r} twice; give it once")

    @classmethod
    def parse(cls, text: str) -> Axis:
        """Read ``name=value,value,...``; values are YAML, and commas inside brackets belong to a value.

        Raises:
            ConfigError: it is not of that form, a value is missing, or there twice.
        """
        name, equals, values = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--over {text}: write it as setting=value,value,..., as in {EXAMPLE}")
        written = [part.strip() for part in _COMMA.split(values)]
        if not all(written):
            raise ConfigError(f"--over {text}: a value is empty; write it as setting=value,value,..., as in {EXAMPLE}")
        return cls(name.strip(), tuple(map(_value, written)))

    @property
    def is_numeric(self) -> bool:
        """Whether its values are numbers."""
        return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in self.values)


Point = Mapping[str, Any]
"""One value for each axis, by name."""


def make_axes(over: Mapping[str, Iterable[Any]] | Sequence[Axis] | Sequence[str]) -> tuple[Axis, ...]:
    """Axes from what a caller gave: a mapping of names to values, axes, or texts as on a command line.

    Raises:
        ConfigError: there is none, one is given twice, or see :class:`Axis`.
    """
    if isinstance(over, str):
        over = [over]
    if isinstance(over, Mapping):
        axes = tuple(Axis(name, tuple(values)) for name, values in over.items())
    else:
        axes = tuple(Axis.parse(axis) if isinstance(axis, str) else axis for axis in over)
    if not axes:
        raise ConfigError(f"there is nothing to vary: say what and over which values, as in {EXAMPLE}")
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"there are two axes {name!r}: put all its values into one")
    return axes


def points_of(axes: Sequence[Axis]) -> Iterator[Point]:
    """The cartesian product of the axes' values, the last axis running fastest."""
    for values in itertools.product(*(axis.values for axis in axes)):
        yield dict(zip((axis.name for axis in axes), values, strict=True))


def in_words(point: Point) -> str:
    """A point as a label: ``max_num_batched_tokens=512, rate=8``."""
    return ", ".join(f"{name}={shown(value)}" for name, value in point.items())


def shown(value: Any) -> str:
    """A value as one would write it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {shown(inner)}" for key, inner in value.items()) + "}"
    return str(value)


def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text
