"""Batchwright's policies inside vLLM.

``vllm serve MODEL --scheduler-cls batchwright_backends.vllm.host.HostScheduler
--additional-config '{"batchwright": {"policy": "vtc"}}'``. Nothing here is imported before vLLM asks for it.

``--scheduler-cls batchwright_backends.vllm.scheduler`` makes the policy a guest in vLLM's own scheduler instead, which
carries all that vLLM carries.
"""

from __future__ import annotations

from typing import Any


def scheduler(*args: Any, **kwargs: Any) -> Any:
    """Make vLLM's own scheduler with a policy of ours as a guest; for ``--scheduler-cls``.

    With policy ``observe`` nobody is a guest in it, and it can be recorded. ``BATCHWRIGHT_VLLM=off`` in the environment
    gives vLLM's scheduler as it is.

    Args:
        args, kwargs: vLLM's.

    Raises:
        ConfigError: configuration or policy cannot be carried; the message says why.
    """
    from batchwright_backends.vllm.choosing import choose_scheduler

    return choose_scheduler(*args, **kwargs)
