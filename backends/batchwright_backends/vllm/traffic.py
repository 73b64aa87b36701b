"""Recording what happens in a scheduler of vLLM's, where the configuration asks for it; and doing nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from batchwright.errors import BatchwrightError, ConfigError
from batchwright.request import Request
from batchwright_backends.vllm.attaching import attach
from batchwright_backends.vllm.recording import Recording
from batchwright_backends.vllm.settings import SECTION, HostSettings
from batchwright_backends.vllm.stamps import Stamps
from batchwright_backends.vllm.translation import translate

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]

OBSERVE = "observe"
"""The policy that leaves every decision to vLLM's own scheduler."""


def is_observing(values: Mapping[str, Any]) -> bool:
    """Whether a configuration leaves vLLM's own scheduler as it is.

    Args:
        values: of an ``EngineConfig``, as they stand under ``batchwright``.

    Raises:
        ConfigError: it does, and says something of a policy beside.
    """
    policy = values.get("policy")
    name = policy.get("use") if isinstance(policy, Mapping) else policy
    if name != OBSERVE:
        return False
    others = sorted(set(values) - {"policy", "seed", "no_plugins"})
    if others or (isinstance(policy, Mapping) and len(policy) > 1):
        what = ", ".join(others) or "parameters of it"
        raise ConfigError(
            f"{SECTION}: policy {OBSERVE!r} leaves vLLM's scheduler as it is, and {what} would change nothing: leave "
            "that out, or name another policy"
        )
    return True


def record_traffic(
    scheduler: Any,
    config: VllmConfig,
    settings: HostSettings,
    *,
    policy: str,
    num_blocks: int,
    block_size: int,
    said: Callable[[Any], Request | None] | None = None,
) -> Recording | None:
    """Record what happens in a scheduler, if the settings say so.

    Args:
        scheduler: a new one.
        config: of the whole of vLLM.
        settings: of Batchwright in it.
        policy: its name.
        num_blocks, block_size: of the KV pool, as requests may have it.
        said: what policies are told of a request; without it, what they would be told.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    if settings.record is None:
        return None
    limits = config.scheduler_config
    about = {
        "vllm": _version(),
        "model": config.model_config.model,
        "scheduler": type(scheduler).__name__,
        "policy": policy,
        "limits": {
            "max_num_seqs": limits.max_num_seqs,
            "max_num_batched_tokens": limits.max_num_scheduled_tokens or limits.max_num_batched_tokens,
            "max_num_residents": None,
            "max_model_len": config.model_config.max_model_len,
            "num_blocks": num_blocks,
            "block_size": block_size,
        },
    }
    own = partial(_as_told, trusted=settings.trust_requests, stamps=settings.stamps)
    recording = Recording(settings.record, about, num_blocks, block_size, said if said is not None else own)
    attach(scheduler, recording)
    return recording


def _as_told(request: Any, *, trusted: bool, stamps: Stamps | None) -> Request | None:
    """What a policy would be told of a request; None where it would be refused."""
    try:
        return translate(request, time.perf_counter_ns(), trusted=trusted, stamps=stamps)
    except (BatchwrightError, AttributeError):  # no prompt as token ids, or no parameters of sampling
        return None


def _version() -> str:
    from vllm import __version__  # pyright: ignore[reportMissingImports]

    return str(__version__)
