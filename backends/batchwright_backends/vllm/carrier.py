"""How counts of a policy get from the scheduler's process to the server's: in a field of vLLM's own statistics.

vLLM sends ``SchedulerStats`` after each step, and drops fields that it does not know. The mapping used here is read by
vLLM only where adapters are, and what is put there is taken out before vLLM's own loggers look.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import Any

GROUP = "vllm.stat_logger_plugins"
"""vLLM's group of entry points for what is to be told of statistics."""
PLUGIN = "batchwright"
FIELD = "waiting_lora_adapters"
"""A mapping of text to numbers."""

_MARK = "batchwright:"


def in_rust() -> bool:
    """Whether vLLM's server is the one in Rust, in which nothing of Python runs: no middleware, no loggers."""
    return os.environ.get("VLLM_USE_RUST_FRONTEND", "") not in ("", "0")


def is_taken() -> bool:
    """Whether the server takes out what is put in: our logger is installed, and ``VLLM_PLUGINS`` lets it be."""
    allowed = os.environ.get("VLLM_PLUGINS")
    return (
        not in_rust()
        and (allowed is None or PLUGIN in allowed.split(","))
        and any(e.name == PLUGIN for e in entry_points(group=GROUP))
    )


def put(stats: Any, text: str) -> None:
    """Give a text to statistics of a step."""
    getattr(stats, FIELD)[_MARK + text] = 1


def take(stats: Any) -> list[str]:
    """Take all texts out of them."""
    carried: dict[str, int] = getattr(stats, FIELD, {})
    found = [key for key in carried if key.startswith(_MARK)]
    for key in found:
        del carried[key]
    return [key.removeprefix(_MARK) for key in found]
