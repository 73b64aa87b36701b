"""What can be said of an endpoint, under ``backend_options``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batchwright.config import explain
from batchwright.errors import ConfigError

_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)\}")
_NAME = re.compile(r"[!#$%&'*+.^_`|~\w-]+", re.ASCII)


class EndpointOptions(BaseModel):
    """Options of an endpoint.

    Attributes:
        api: `completions`, `chat`, or `auto`: chat for rows that bring messages and where the server has no
            completions.
        api_key_env: environment variable with the key, which is sent as a bearer token where it is set.
        headers: sent with every request. `$NAME` in a value is taken from the environment when it is sent, so that no
            secret stands in a config or a record.
        timeout_s: seconds without a byte from the server after which a request has failed.
        vocab_size: made-up token ids are below it; None: what the server says, else 32,000.
        max_model_len: prompt and output tokens of one request at most; None: what the server says.
        salt_cache: whether each run sends a `cache_salt` of its own, so that no prompt is a prefix-cache hit because of
            an earlier run; prompts of one run share prefixes as ever.
        priority: whether each request's priority is sent (vLLM with `--scheduling-policy priority`).
        client_header: name of a header that carries each request's client.
        body: further fields of every request's JSON.
        read_metrics: whether the server's `/metrics` is read before and after a run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    api: Literal["auto", "completions", "chat"] = "auto"
    api_key_env: str = "OPENAI_API_KEY"
    headers: dict[str, str] = Field(default={})
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    vocab_size: Annotated[int, Field(ge=2)] | None = None
    max_model_len: Annotated[int, Field(ge=2)] | None = None
    salt_cache: bool = True
    priority: bool = False
    client_header: str | None = None
    body: dict[str, Any] = Field(default={})
    read_metrics: bool = True

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Check options.

        Raises:
            ConfigError: one is unknown or out of its range.
        """
        try:
            options = cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigError(f"backend_options of an endpoint: {explain(error, cls)}") from None
        for name in (*options.headers, *([options.client_header] if options.client_header is not None else ())):
            if not _NAME.fullmatch(name):
                raise ConfigError(f"backend_options of an endpoint: {name!r} cannot be the name of a header")
        return options

    def sent_headers(self) -> dict[str, str]:
        """Headers of every request, with what the environment says.

        Raises:
            ConfigError: a value names a variable that is not set, or cannot be sent.
        """
        key = os.environ.get(self.api_key_env)
        found = {"Authorization": f"Bearer {key}"} if key else {}
        for name, value in self.headers.items():
            found[name] = _VARIABLE.sub(lambda m, name=name: _variable(name, m[1] or m[2]), value)  # type: ignore[misc]
        for name, value in found.items():
            if not value.isprintable() or not value.isascii():
                raise ConfigError(f"header {name}: its value holds what a header cannot: line ends, or no ASCII")
        return found

    def shown(self) -> dict[str, Any]:
        """For records and reports: as they are, but of headers the names alone."""
        values = self.model_dump()
        values["headers"] = sorted(self.headers)
        return values


def _variable(header: str, name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ConfigError(f"header {header} takes its value from ${name}, which the environment does not have; set it")
    return value


def parse_headers(texts: Iterable[str]) -> dict[str, str]:
    """Headers of a command line, each ``Name: value``.

    Raises:
        ConfigError: one is not of that form.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not _NAME.fullmatch(name.strip()):
            raise ConfigError(f"--header {name.strip()!r}: write it as 'Name: value', as in 'X-Key: $MY_KEY'")
        found[name.strip()] = value.strip()
    return found
