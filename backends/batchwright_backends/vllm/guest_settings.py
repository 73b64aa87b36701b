"""What a user says of a policy that is a guest in vLLM's own scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchwright.errors import ConfigError
from batchwright.limits import Limits
from batchwright_backends.vllm.settings import SECTION, HostSettings, read_settings

_CARRIED = ("policy", "seed", "max_num_residents", "plugins", "no_plugins")
"""Settings of an engine that a guest has a use for."""


def seated(limits: Limits, most: int) -> Limits:
    """vLLM keeps as many residents as it runs at most."""
    seats = limits.max_num_residents
    return replace(limits, max_num_residents=most if seats is None else min(seats, most))


def read_guest_settings(additional_config: Any) -> tuple[HostSettings, Mapping[str, Any]]:
    """Settings of the guest, and values of an ``EngineConfig``.

    Raises:
        ConfigError: one is unknown, or says something of Batchwright's own scheduler.
    """
    own, values = read_settings(additional_config)
    for name in values:
        if name not in _CARRIED:
            raise ConfigError(
                f"{SECTION}.{name} says something of Batchwright's own scheduler, and the policy is a guest in vLLM's: "
                "leave it out, or use batchwright_backends.vllm.host.HostScheduler (a guest takes "
                f"{', '.join(_CARRIED)})"
            )
    return own, values
