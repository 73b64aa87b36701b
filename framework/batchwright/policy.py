"""The base class of scheduling policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from batchwright.errors import ConfigError, did_you_mean
from batchwright.limits import Limits
from batchwright.need import Need


class Params(BaseModel):
    """Base of a policy's parameters: unknown keys are refused, values are checked, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


AnyParams = Params
"""For annotations inside policies, where ``Params`` is the policy's own model."""


class Policy:
    """A scheduling policy: any of the decision and observer hooks, as methods marked with ``@hookimpl``.

    One object serves one engine, so it may keep state in ``self``; build that state in ``policy_attached`` and the
    observers, since a policy can be attached to a live engine. What a policy does not decide falls to the core:
    chunking min(pending, budget), reservation the present length, preemption and admission as in ``prefill_first``.

    Attributes:
        Params: a pydantic model of the parameters; subclass :class:`batchwright.Params`.
        chunks: False for a policy that never cuts a prompt. Requests whose recompute could exceed the budget are
            then refused.
        budget_counts_decodes: whether a decode takes a token of the budget.
        uses_predict: whether it calls ``step.predict_s``: refused on a backend without a cost estimate.
        stationary: with no arrival, end, eviction or abort, what the last step decided is decided again; while nobody
            waits and all residents decode, such a policy is not asked anew. Not inherited by a class that has decision
            hooks of its own: it says so again.
        scans_waiting: whether a step may look at all who wait; False: at few of them, however many there are.
        preemptive: whether its preemption may evict a resident to let a newcomer in.
        reserves_all: whether its reservation takes the blocks of all that a request can ever need.
        decodes_every_step: whether its admission offers every decode room in every step, prompts or not.
        needs: what it relies on in other slots of a composite, each a :class:`batchwright.Need`.
        params: this object's parameters.
    """

    Params: ClassVar[type[AnyParams]] = AnyParams
    chunks: bool = True
    budget_counts_decodes: bool = True
    uses_predict: bool = False
    stationary: bool = False
    scans_waiting: bool = True
    preemptive: bool = False
    reserves_all: bool = False
    decodes_every_step: bool = True
    needs: tuple[Need, ...] = ()
    params: Any = Params()  # a policy whose __init__ does not call this one's has no parameters

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
        """A policy with these parameters; the same errors as the constructor."""
        return cls(cls.parse_params(values))

    def defaults(self, limits: Limits) -> Mapping[str, Any]:
        """Settings this policy wants where the config leaves them unset, by their dotted config names.

        Args:
            limits: as configured so far: a default may depend on them.
        """
        return {}


def _explain(cls: type[Policy], error: ValidationError) -> str:
    lines = []
    for e in error.errors():
        field = ".".join(str(part) for part in e["loc"])
        if e["type"] == "extra_forbidden":
            known = cls.Params.model_fields
            hint = did_you_mean(field, known) if known else "it takes no parameters"
            lines.append(f"unknown parameter {field!r}; {hint}")
        else:
            lines.append(f"parameter {field!r} is {e['input']!r}: {e['msg']}")
    return f"policy {cls.__name__}: " + "; ".join(lines)
