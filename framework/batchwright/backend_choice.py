"""Making the backend that a config names, and settling what config and backend leave each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchwright.backend import Backend, BackendSettings, Capacity, VirtualClock
from batchwright.errors import ConfigError
from batchwright.limits import Limits

if TYPE_CHECKING:
    from batchwright.config import EngineConfig
    from batchwright.effective import Effective
    from batchwright.plugins import Plugins


def make_backend(config: EngineConfig, limits: Limits, plugins: Plugins) -> Backend:
    """The backend a config names, made for these limits.

    Raises:
        ConfigError: there is none of that name, or an option of it is wrong.
        BackendError: it cannot run here; the message says why and what to do.
    """
    name, _, target = config.backend.partition(":")
    settings = BackendSettings(
        target=target,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        seed=config.seed,
        options=config.backend_options,
    )
    return plugins.backend(name).create(settings)


def narrowed(effective: Effective, capacity: Capacity, backend: str) -> Limits:
    """The limits in force: what the config leaves open is the backend's; ``effective`` is told of it.

    Raises:
        ConfigError: ``max_model_len`` is beyond the model's.
    """
    limits, longest = effective.limits, capacity.max_model_len
    if limits.max_model_len is not None:
        if limits.max_model_len > longest:
            raise ConfigError(
                f"max_model_len is {limits.max_model_len} and the model of {backend} takes {longest} "
                "tokens at most; lower it or leave it unset"
            )
        longest = limits.max_model_len
    else:
        effective.origins["max_model_len"] = f"backend {backend}"
    effective.values["max_model_len"] = longest
    for name in ("block_size", "num_blocks"):
        if effective.values[name] is None:
            effective.origins[name] = f"backend {backend}"
        effective.values[name] = getattr(capacity, name)
    return Limits(limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_num_residents, longest)


def check_fit(config: EngineConfig, backend: Backend, capacity: Capacity) -> None:
    """Whether the backend can serve this config.

    Raises:
        ConfigError: it has no room, or there is nothing to overlap.
    """
    if capacity.num_blocks < 1 or capacity.block_size < 1:
        raise ConfigError(f"{backend.name} has no room for a single KV block; give it more memory")
    if config.overlap and isinstance(backend.clock, VirtualClock):
        raise ConfigError(
            f"overlap hides the host's time behind the device's, and {backend.name} has a virtual clock, on "
            "which the host's work takes no time: leave overlap off, or use a backend that runs a model"
        )
