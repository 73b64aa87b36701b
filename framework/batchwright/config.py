"""The configuration of an engine: one tree, checked as a whole."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from batchwright.errors import ConfigError, did_you_mean

_STRICT = ConfigDict(extra="forbid", frozen=True, validate_default=True, strict=True)
_UNION_TAGS = ("str", "int", "float", "bool", "function-", "dict[", "list[")
"""What pydantic puts into the place of an error where a field takes several types; users know no such field."""


class PrefixCacheConfig(BaseModel):
    """The prefix cache; what is unset is the policy's choice, else nano-vLLM's."""

    model_config = _STRICT

    enabled: bool = Field(default=True, description="Whether requests with equal prefixes share KV blocks.")
    visible: Literal["computed", "scheduled"] = Field(
        default="computed", description="When a full block can be shared: after the step that filled it, or at once."
    )
    reuse: Literal["oldest_freed", "uncached_first"] = Field(
        default="oldest_freed", description="Which free block is taken next."
    )
    duplicates: Literal["newest", "oldest"] = Field(
        default="newest", description="Which of several blocks with equal content answers look-ups."
    )


class DetectorConfig(BaseModel):
    """Detectors of bad scheduling; what they find is an event in the records, and only a livelock stops the run."""

    model_config = _STRICT

    thrash_share: float = Field(
        default=0.3, gt=0, le=1, description="Thrash: more than this share of the tokens of a window is recomputed."
    )
    thrash_steps: int = Field(default=100, ge=1, description="Steps of that window.")
    starvation_passes: int = Field(
        default=1000, ge=1, description="Starvation: so many younger requests were admitted past a waiting one."
    )
    starvation_s: float | None = Field(
        default=None, gt=0, description="Starvation: a request waits longer than this, in seconds; null: not watched."
    )
    livelock_pools: int = Field(
        default=10,
        ge=1,
        description="Livelock: nobody gets a token while so many pools of KV are recomputed; an error of the policy.",
    )


class EngineConfig(BaseModel):
    """Everything an engine is made from.

    Raises:
        ConfigError: from :meth:`parse`: an unknown key (with the nearest valid name), or a value out of its range.
    """

    model_config = _STRICT

    policy: str | dict[str, Any] = Field(
        default="prefill_first",
        description="A policy: NAME, NAME:param=value,…, {use: NAME, param: value}, or one for each decision: "
        "{admission: …, chunking: …, preemption: …}.",
    )
    predict: str | dict[str, Any] | None = Field(
        default=None,
        description="Who predicts the output length of requests that bring no prediction: NAME, NAME:param=value,…, "
        "{use: NAME, param: value}; null: nobody.",
    )
    replicas: int = Field(
        default=1,
        ge=1,
        description="Engines like this one, side by side behind a router, each with a policy and a KV pool of its own. "
        "More than one: on a simulator only, by run and ab.",
    )
    router: str | dict[str, Any] | None = Field(
        default=None,
        description="Who says which replica takes a request: NAME, NAME:param=value,…, {use: NAME, param: value}; "
        "null: round_robin.",
    )
    backend: str = Field(
        default="sim:llama-3.1-8b@h100", description="What executes batches: sim:MODEL@GPU, cpu:MODEL, cuda:MODEL."
    )
    backend_options: dict[str, Any] = Field(default_factory=dict, description="The backend's own options.")
    max_num_seqs: int = Field(default=256, ge=1, description="Requests in one step's batch at most.")
    max_num_batched_tokens: int = Field(default=8192, ge=1, description="Tokens of one step at most: its budget.")
    max_num_residents: int | None = Field(
        default=None, ge=1, description="Requests that hold blocks at most; null: as many as fit."
    )
    max_model_len: int | None = Field(
        default=None, ge=2, description="Prompt and output tokens of one request at most; null: the model's limit."
    )
    block_size: int | None = Field(default=None, ge=1, description="Tokens of a KV block; null: the backend's choice.")
    num_blocks: int | None = Field(default=None, ge=1, description="KV blocks; null: what the backend's memory holds.")
    prefix_cache: PrefixCacheConfig = Field(default_factory=PrefixCacheConfig, description="Sharing of KV blocks.")
    on_policy_error: Literal["raise", "fallback"] = Field(
        default="raise", description="A policy breaks a rule: raise, or let another policy build that step."
    )
    fallback_policy: str | dict[str, Any] | None = Field(
        default=None,
        description="Who builds that step, with fallback: a policy that cuts prompts, as under policy; null: "
        "prefill_first.",
    )
    on_backend_error: Literal["fail", "retry"] = Field(
        default="fail", description="A backend fails in a step: fail the requests of its batch, or recompute them."
    )
    overlap: bool = Field(
        default=False,
        description="Schedule a step while the one before it is executed. No token changes; not on a simulator.",
    )
    strict: bool = Field(
        default=False,
        description="Show policies everything read-only, so that a write to it is an error that names it. For tests: "
        "decisions are the same, and take several times as long.",
    )
    plugins: list[str] = Field(
        default_factory=list, description="Installed plugins whose observers and wrappers run in this engine, by name."
    )
    no_plugins: list[str] = Field(default_factory=list, description="Installed plugins that are not loaded, by name.")
    detectors: DetectorConfig = Field(default_factory=DetectorConfig, description="Thrash and starvation.")
    seed: int = Field(default=0, ge=0, lt=2**64, description="Of everything drawn by chance.")

    @field_validator("policy")
    @classmethod
    def _policy_named(cls, value: str | dict[str, Any]) -> str | dict[str, Any]:
        if not value:
            raise ValueError("it is empty: name a policy")
        return value

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str = "config") -> Self:
        """A config from plain data.

        Args:
            values: nested mappings, as read from YAML.
            where: what the values came from, for errors.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(f"{where}: {explain(error, cls)}") from None


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """A validation error in words: each field with its value, what is allowed, and the nearest valid name."""
    lines = []
    for e in error.errors():
        path = [str(e["loc"][0]), *(str(p) for p in e["loc"][1:] if not str(p).startswith(_UNION_TAGS))]
        name = ".".join(path)
        if e["type"] == "extra_forbidden":
            lines.append(f"unknown key {name!r}; {did_you_mean(name, field_names(model))}")
        else:
            lines.append(f"{name} is {e['input']!r}: {e['msg']}")
    return "; ".join(dict.fromkeys(lines))


def field_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Dotted names of all fields of a config tree, inner ones included."""
    names = []
    for name, field in model.model_fields.items():
        inner = submodel(field.annotation)
        if inner is not None:
            names += field_names(inner, f"{prefix}{name}.")
        names.append(prefix + name)
    return names


def submodel(annotation: Any) -> type[BaseModel] | None:
    """The model that a field of a tree holds, if it holds one."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next((m for a in typing.get_args(annotation) if (m := submodel(a)) is not None), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
