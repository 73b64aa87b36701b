"""Parameters of policies and predictors: a pydantic model, and objects that are made from one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from batchwright.errors import ConfigError, did_you_mean


class Params(BaseModel):
    """Base of a policy's parameters: unknown keys are refused, values are checked, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


AnyParams = Params
"""For annotations inside classes where ``Params`` is their own model."""


class Parametrized:
    """Something that a config names and gives parameters to.

    Attributes:
        Params: a pydantic model of the parameters; subclass :class:`batchwright.Params`.
        params: this object's parameters.
    """

    Params: ClassVar[type[AnyParams]] = AnyParams
    params: Any = Params()  # one whose __init__ does not call this one's has no parameters
    _kind: ClassVar[str] = "policy"

    def __init__(self, params: AnyParams | None = None, **values: Any) -> None:
        """Takes a ``Params`` object, or its fields as keywords.

        Raises:
            ConfigError: a parameter is unknown or out of its range; the message names it and the choices.
        """
        self.params = params if params is not None else self.parse_params(values)

    @classmethod
    def parse_params(cls, values: Mapping[str, Any]) -> AnyParams:
        """Check parameters.

        Raises:
            ConfigError: a parameter is unknown or out of its range.
        """
        try:
            return cls.Params.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(_explain(cls, error)) from None

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """An object with these parameters; the same errors as the constructor."""
        return cls(cls.parse_params(values))


def _explain(cls: type[Parametrized], error: ValidationError) -> str:
    lines = []
    for e in error.errors():
        field = ".".join(str(part) for part in e["loc"])
        if e["type"] == "extra_forbidden":
            known = cls.Params.model_fields
            hint = did_you_mean(field, known) if known else "it takes no parameters"
            lines.append(f"unknown parameter {field!r}; {hint}")
        else:
            lines.append(f"parameter {field!r} is {e['input']!r}: {e['msg']}")
    return f"{cls._kind} {cls.__name__}: " + "; ".join(lines)
