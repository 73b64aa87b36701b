"""Which scheduler a configuration of vLLM asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # pyright: ignore[reportMissingImports]
from vllm.v1.core.sched.scheduler import Scheduler  # pyright: ignore[reportMissingImports]

from batchwright_backends.vllm.guest import GuestMixin
from batchwright_backends.vllm.settings import is_off
from batchwright_backends.vllm.versions import check_version

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]


def make_scheduler(vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Any:
    """The scheduler that a configuration asks for: synchronous or asynchronous, as vLLM's own would be.

    ``BATCHWRIGHT_VLLM=off`` in the environment gives vLLM's own back.

    Raises:
        ConfigError: configuration or policy cannot be carried; the message says why.
    """
    base = AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler
    if not is_off():
        check_version()
        base = type(f"Guest{base.__name__}", (GuestMixin, base), {})
    return base(vllm_config, *args, **kwargs)
