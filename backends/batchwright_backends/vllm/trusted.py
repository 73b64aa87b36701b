"""Whose a request is, from those who may say it: the server's configuration and a gateway's headers.

The server's process fills the fields in and stamps them (:mod:`batchwright_backends.vllm.middleware`); the scheduler's
takes none that are not stamped. Both know a secret from their environment, and users know it not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from batchwright.errors import ConfigError, InvalidRequestError, did_you_mean
from batchwright_backends.vllm.stamps import MIDDLEWARE, Stamps

SECRET = "BATCHWRIGHT_SECRET"
"""The variable of the environment that both processes read."""
PREFIX = "batchwright_"
"""Of each field in a request's ``vllm_xargs``."""
STAMP = f"{PREFIX}stamp"

_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Said(BaseModel):
    """What is said of a request."""

    model_config = _STRICT

    client_id: str | None = Field(default=None, min_length=1, description="Whose it is.")
    slo_class: str | None = Field(default=None, min_length=1, description="What kind of request it is.")
    weight: float | None = Field(default=None, gt=0, description="Its client's share, against others' 1.")
    priority: int | None = Field(default=None, description="Lower is more urgent.")
    deadline_s: float | None = Field(default=None, ge=0, description="Seconds from its arrival.")
    session_id: str | None = Field(default=None, min_length=1, description="The conversation that it belongs to.")
    program_id: str | None = Field(default=None, min_length=1, description="The agent's program that it belongs to.")
    predicted_output_tokens: int | None = Field(default=None, ge=0, description="How long somebody expects it to be.")


class TrustedSettings(BaseModel):
    """Who says whose a request is. A header wins over a key, and both over what stands under ``clients``."""

    model_config = _STRICT

    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Field to the header that a gateway puts in, such as client_id: X-Client. The gateway must take "
        "that header out of what users send.",
    )
    api_keys: dict[str, Said] = Field(
        default_factory=dict, description="sha256:HEX of an API key to what is said of requests with it."
    )
    clients: dict[str, Said] = Field(default_factory=dict, description="Client to what is said of its requests.")

    @field_validator("headers")
    @classmethod
    def _fields(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name not in Said.model_fields:
                raise ValueError(f"{name!r} is no field; there are {', '.join(Said.model_fields)}")
        return {name: header.lower() for name, header in value.items()}

    @field_validator("api_keys")
    @classmethod
    def _hashes(cls, value: dict[str, Said]) -> dict[str, Said]:
        for key in value:
            if not re.fullmatch(r"sha256:[0-9a-f]{64}", key):
                raise ValueError(
                    "vLLM prints its configuration, so keys stand here as sha256:HEX; "
                    "python -c 'import hashlib,sys; print(hashlib.sha256(sys.argv[1].encode()).hexdigest())' KEY"
                )
        return value


def secret() -> bytes:
    """What both processes know.

    Raises:
        ConfigError: the environment has none.
    """
    value = os.environ.get(SECRET, "")
    if len(value) < 16:
        raise ConfigError(
            f"trusted: set {SECRET} in vLLM's environment to 16 characters or more that nobody knows, such as "
            f"{SECRET}=$(openssl rand -hex 16), and start vLLM with --middleware {MIDDLEWARE}"
        )
    return value.encode()


def check_said(request_id: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of a request, each field of its type and within its range; whoever wrote it.

    Args:
        request_id: of the request, for the error.
        fields: without their prefix.

    Raises:
        InvalidRequestError: a field is unknown, or what it says cannot be; the message names it.
    """
    try:
        return Said.model_validate(fields).model_dump(exclude_none=True)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        if name not in Said.model_fields:
            raise InvalidRequestError(
                f"request {request_id!r}: {PREFIX}{name} is nothing that policies go by; "
                f"{did_you_mean(name, tuple(Said.model_fields))}"
            ) from None
        raise InvalidRequestError(
            f"request {request_id!r}: {PREFIX}{name}: {first['msg']}, not {str(first['input'])[:100]!r}"
        ) from None


def fields_of(extra: Mapping[str, Any], stamps: Stamps | None, *, trusted: bool) -> dict[str, Any]:
    """What a request says for policies, as far as it may.

    Args:
        extra: its ``vllm_xargs``.
        stamps: know those that hold; None: nobody stamps.
        trusted: whether requests may say it themselves.

    Returns:
        Fields without their prefix.
    """
    fields = {name[len(PREFIX) :]: v for name, v in extra.items() if name.startswith(PREFIX) and name != STAMP}
    if trusted or (stamps is not None and stamps.holds(extra.get(STAMP), fields)):
        return fields
    return {}
