"""What ``--scheduler-cls batchwright_backends.vllm.scheduler`` gives: a guest in vLLM's scheduler, or that as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from batchwright_backends.vllm.measuring import measure
from batchwright_backends.vllm.seats import NULL_BLOCKS
from batchwright_backends.vllm.settings import is_off, read_settings
from batchwright_backends.vllm.traffic import OBSERVE, is_observing, record_traffic

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]


def choose_scheduler(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Any:
    """The scheduler that a configuration asks for.

    With policy ``observe`` it is vLLM's own, and with ``BATCHWRIGHT_VLLM=off`` in the environment that without
    anything around it; else a policy is a guest in it.

    Args:
        vllm_config: of the whole of vLLM.
        args, kwargs: further ones of vLLM's scheduler.

    Raises:
        ConfigError: configuration or policy cannot be carried; the message says why.
    """
    if is_off():
        return own_class(vllm_config)(vllm_config, *args, **kwargs)
    settings, values = read_settings(vllm_config.additional_config)
    if is_observing(values):
        policy: Any = OBSERVE
        scheduler = own_class(vllm_config)(vllm_config, *args, **kwargs)
    else:
        from batchwright_backends.vllm.guest_making import make_scheduler

        policy = values.get("policy", "prefill_first")
        scheduler = make_scheduler(vllm_config, *args, **kwargs)
        measure(
            scheduler,
            "guest",
            settings,
            log_stats=scheduler.log_stats,
            register=scheduler.decisions.register,
            policy=lambda: scheduler.decisions.policy,
        )
    record_traffic(
        scheduler,
        vllm_config,
        settings,
        policy=str(policy),
        num_blocks=(vllm_config.cache_config.num_gpu_blocks or NULL_BLOCKS) - NULL_BLOCKS,
        block_size=scheduler.block_size,
    )
    return scheduler


def own_class(vllm_config: VllmConfig) -> Any:
    """The class of vLLM's own that a configuration would take."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # pyright: ignore[reportMissingImports]
    from vllm.v1.core.sched.scheduler import Scheduler  # pyright: ignore[reportMissingImports]

    return AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
