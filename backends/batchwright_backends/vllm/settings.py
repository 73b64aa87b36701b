"""What a user says of the policy inside vLLM: ``--additional-config '{"batchwright": {…}}'``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from batchwright.config import EngineConfig
from batchwright.errors import ConfigError, did_you_mean
from batchwright_backends.vllm.carrier import in_rust
from batchwright_backends.vllm.parts import RecordSettings
from batchwright_backends.vllm.stamps import Stamps
from batchwright_backends.vllm.trusted import TrustedSettings, secret

SECTION = "batchwright"
"""The key of vLLM's ``additional_config`` under which everything of this project stands."""

_FROM_VLLM = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "num_blocks", "backend")
"""Settings of an engine that vLLM's own options give."""

_NOT_HERE = {
    "overlap": "whether a step is scheduled while the one before it runs is said with --async-scheduling",
    "replicas": "run a server for each",
    "router": "a router stands in front of servers",
    "on_backend_error": "vLLM ends with an error of its workers",
    "backend_options": "workers have vLLM's own options",
}
"""Settings of an engine that say nothing inside vLLM, and what does."""


class HostSettings(BaseModel):
    """Settings of a policy inside vLLM, beside those of :class:`~batchwright.EngineConfig` that vLLM does not give."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    trust_requests: bool = Field(
        default=False,
        description="Whether a request may say what policies go by (client_id, weight, deadline_s, "
        "predicted_output_tokens, session_id, program_id), in its vllm_xargs. Whoever may write requests may then "
        "take another's share: leave it off where users are not to be trusted.",
    )
    trusted: TrustedSettings | None = Field(
        default=None,
        description="Who says what policies go by where requests are not trusted: headers that a gateway sets, API "
        "keys, clients. It takes the middleware batchwright_backends.vllm.middleware.TrustedFields.",
    )
    metrics_clients: int = Field(
        default=20,
        ge=0,
        le=1000,
        description="Clients that have series of their own on vLLM's /metrics, those with most service; the others are "
        "counted as 'other'. The same number of classes is named.",
    )
    max_policy_ms: float | None = Field(
        default=1000.0,
        gt=0,
        description="Milliseconds of a step that a policy may take: what takes longer is ended, and that step is "
        "built in vLLM's own order. None: as long as it likes.",
    )
    record: RecordSettings | None = Field(
        default=None,
        description="A folder, to which what each request was like and what became of it is written, and every step; "
        "never text. Or a mapping with dir, part_mib and max_parts. The lab reads it as a workload.",
    )

    @cached_property
    def stamps(self) -> Stamps | None:
        """With which fields of requests are stamped; None: nobody stamps.

        Raises:
            ConfigError: the environment has none, and somebody stamps; or it has a server without middleware.
        """
        if self.trusted is None:
            return None
        if in_rust():
            raise ConfigError(
                f"{SECTION}.trusted: vLLM's server in Rust has no middleware, so nobody would say whose requests are: "
                "leave VLLM_USE_RUST_FRONTEND out of the environment, or trusted out of the configuration"
            )
        return Stamps(secret())

    @field_validator("record", mode="before")
    @classmethod
    def _folder(cls, value: Any) -> Any:
        return {"dir": value} if isinstance(value, str) else value


def is_off() -> bool:
    """Whether the environment wants vLLM's scheduler as it is."""
    return os.environ.get("BATCHWRIGHT_VLLM", "").lower() == "off"


def read_settings(additional_config: Any) -> tuple[HostSettings, Mapping[str, Any]]:
    """What stands in vLLM's ``additional_config``.

    Args:
        additional_config: as vLLM has it.

    Returns:
        The settings, and the values of an ``EngineConfig``.

    Raises:
        ConfigError: it is no mapping, a key is unknown, or one is vLLM's to give; the message says what to do.
    """
    section = additional_config.get(SECTION, {}) if isinstance(additional_config, Mapping) else None
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"additional_config must hold a mapping under {SECTION!r}, such as "
            f'{{"{SECTION}": {{"policy": "vtc"}}}}, not {additional_config!r}'
        )
    own = {name: value for name, value in section.items() if name in HostSettings.model_fields}
    rest = {name: value for name, value in section.items() if name not in own}
    known = [name for name in EngineConfig.model_fields if name not in (*_FROM_VLLM, *_NOT_HERE)]
    cache = rest.get("prefix_cache")
    if isinstance(cache, Mapping) and "enabled" in cache:
        raise ConfigError(
            f"{SECTION}.prefix_cache.enabled: vLLM gives it; use --enable-prefix-caching or "
            "--no-enable-prefix-caching, and leave it out here"
        )
    for name in rest:
        if name in _FROM_VLLM:
            raise ConfigError(f"{SECTION}.{name}: vLLM gives it; use vLLM's own option, and leave it out here")
        if name in _NOT_HERE:
            raise ConfigError(f"{SECTION}.{name} says nothing inside vLLM: {_NOT_HERE[name]}; leave it out here")
        if name not in known:
            choices = sorted([*known, *HostSettings.model_fields])
            raise ConfigError(f"{SECTION}.{name} is no setting; {did_you_mean(name, choices)}")
    try:
        settings = HostSettings(**own)
        _ = settings.stamps
        return settings, rest
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, (SECTION, *first["loc"])))
        given = "" if "api_keys" in name else f", not {first['input']!r}"  # it goes into logs
        raise ConfigError(f"{name}: {first['msg']}{given}") from None
