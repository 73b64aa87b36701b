"""Where the parameters of an arm are searched: ``int(64,2048,log)``, ``float(0,1)``, ``choice(a,b,c)``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from batchwright.errors import ConfigError
from batchwright.lab.designs.axis import Axis

EXAMPLE = "--over 'policy.chunk_size=int(64,2048,log)'"
_CALL = re.compile(r"(?P<kind>int|float|choice)\((?P<inside>.*)\)", re.DOTALL)
Value = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Space:
    """The values that one setting may take in a search.

    Attributes:
        name: of the setting.
        kind: ``int``, ``float`` or ``choice``.
        low, high: of a number, both included.
        log: whether it is searched on a logarithmic scale.
        step: of a number, its distance to the next; None: any.
        choices: of a choice.

    Raises:
        ConfigError: there is nothing to choose, or the range is none.
    """

    name: str
    kind: Literal["int", "float", "choice"]
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    choices: tuple[Value, ...] = ()

    def __post_init__(self) -> None:
        if self.kind == "choice":
            if len(self.choices) < 2:
                raise ConfigError(f"space of {self.name!r}: there is nothing to choose from; give two values or more")
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"space of {self.name!r}: its range is {self.low:g} to {self.high:g}; give low < high")
        if self.log and self.low <= 0:
            raise ConfigError(f"space of {self.name!r}: a logarithmic scale begins above 0, not at {self.low:g}")
        if self.step is not None and not (0 < self.step <= self.high - self.low):
            raise ConfigError(f"space of {self.name!r}: step {self.step:g} does not fit into its range")
        if self.step is not None and self.log:
            raise ConfigError(f"space of {self.name!r}: give log or step, not both")

    @classmethod
    def parse(cls, text: str) -> Space:
        """Read ``name=int(low,high)``, ``name=float(low,high,log)``, ``name=int(0,64,step=8)`` or ``name=a,b,c``.

        Raises:
            ConfigError: it is none of these; or as the class.
        """
        name, equals, written = text.partition("=")
        name, written = name.strip(), written.strip()
        if not equals or not name or not written:
            raise ConfigError(f"--over {text}: write it as setting=space, as in {EXAMPLE}")
        match = _CALL.fullmatch(written)
        if match is None or match["kind"] == "choice":
            return cls(name, "choice", choices=Axis.parse(f"{name}={match['inside'] if match else written}").values)
        kind: Literal["int", "float"] = "int" if match["kind"] == "int" else "float"
        low, high, *rest = (part.strip() for part in f"{match['inside']},,".split(","))
        log, step = False, None
        for word in filter(None, rest):
            if word == "log":
                log = True
            elif word.startswith("step="):
                step = _number(text, kind, word.removeprefix("step="))
            else:
                raise ConfigError(f"--over {text}: {word!r} is neither log nor step=N, as in {EXAMPLE}")
        return cls(name, kind, _number(text, kind, low), _number(text, kind, high), log, step)

    def suggested(self, trial: Any) -> Value:
        """A value that a trial of Optuna suggests."""
        if self.kind == "choice":
            value: Value = trial.suggest_categorical(self.name, self.choices)
        elif self.kind == "int":
            step = 1 if self.step is None else int(self.step)
            value = trial.suggest_int(self.name, int(self.low), int(self.high), step=step, log=self.log)
        else:
            value = trial.suggest_float(self.name, self.low, self.high, step=self.step, log=self.log)
        return value

    def holds(self, value: Any) -> bool:
        """Whether a value can be suggested."""
        if self.kind == "choice":
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.low <= value <= self.high:
            return False
        if self.kind == "int" and value != int(value):
            return False
        steps = (value - self.low) / (self.step or 1)
        return abs(steps - round(steps)) < 1e-9 if self.step is not None else True

    def __str__(self) -> str:
        if self.kind == "choice":
            return f"{self.name}=choice({','.join(map(str, self.choices))})"
        more = ",log" if self.log else f",step={self.step:g}" if self.step is not None else ""
        return f"{self.name}={self.kind}({self.low:g},{self.high:g}{more})"


def make_spaces(over: Mapping[str, str | Iterable[Value]] | Sequence[Space] | Sequence[str]) -> tuple[Space, ...]:
    """Spaces from what a caller gave: names to ``int(64,2048,log)`` or to values, spaces, or texts with names.

    Raises:
        ConfigError: there is none, one is given twice, or see :class:`Space`.
    """
    if isinstance(over, str):
        over = [over]
    if isinstance(over, Mapping):
        spaces = tuple(
            Space.parse(f"{name}={space}") if isinstance(space, str) else Space(name, "choice", choices=tuple(space))
            for name, space in over.items()
        )
    else:
        spaces = tuple(Space.parse(space) if isinstance(space, str) else space for space in over)
    if not spaces:
        raise ConfigError(f"there is nothing to tune: say what and within which range, as in {EXAMPLE}")
    names = [space.name for space in spaces]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"there are two spaces of {name!r}: give one")
    return spaces


def _number(text: str, kind: Literal["int", "float"], written: str) -> float:
    try:
        value = float(written)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (kind == "int" and value != int(value)):
        expected = "whole numbers" if kind == "int" else "numbers"
        raise ConfigError(f"--over {text}: {written!r} is no number of it; expected {expected}, as in {EXAMPLE}")
    return value
