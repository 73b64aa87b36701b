"""How many KV blocks fit."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from batchwright.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from batchwright_backends.torch.devices import Accelerator

GIB = 1 << 30
DEFAULT_CPU_BYTES = GIB


def free_host_bytes() -> int | None:
    """Memory that can be taken without swapping, limits of this control group included; None: unknown here."""
    free = _meminfo_available()
    if free is None and hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = Path("/sys/fs/cgroup")
    try:  # in a container that is limited (control groups, version 2)
        left = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # not Linux, version 1, or "max": no limit
        return free
    return max(0, left if free is None else min(free, left))


def _meminfo_available() -> int | None:
    if platform.system() != "Linux":
        return None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def device_budget(device: Accelerator, fraction: float, step: Callable[[], None], graphs: Callable[[], int]) -> int:
    """Bytes for the KV cache of a GPU: ``fraction`` of it, less what is taken, and what steps and graphs will take.

    Args:
        device: with the model loaded.
        fraction: of its whole memory.
        step: runs a step at full size without a KV cache.
        graphs: gives the bytes of recorded steps.
    """
    device.release()
    taken = device.peak_bytes(step) + graphs()
    device.release()
    free = device.free_bytes() or 0
    return int(free - taken - (1 - fraction) * device.total_bytes())


def cpu_budget(fraction: float) -> int:
    """Bytes for the KV cache on CPU where nobody says how many: 1 GiB, or ``fraction`` of what is free."""
    free = free_host_bytes()
    return DEFAULT_CPU_BYTES if free is None else min(DEFAULT_CPU_BYTES, int(fraction * free))


def num_blocks(
    wanted: int | None,
    kv_cache_gib: float | None,
    free_bytes: int | None,
    budget_bytes: Callable[[], int],
    block_bytes: int,
    block_size: int,
    where: str,
) -> int:
    """Blocks of the pool.

    Args:
        wanted: ``num_blocks`` of the config.
        kv_cache_gib: option of that name.
        free_bytes: on the device now; None: unknown.
        budget_bytes: gives the bytes to use where the config says nothing.
        block_bytes: bytes of one block over all layers.
        block_size: tokens of a block.
        where: the device, for messages.

    Raises:
        ConfigError: both settings are given, or more is asked for than is free.
        BackendError: there is no room for a single block.
    """
    each = f"a block of {block_size} tokens takes {size_text(block_bytes)} over all layers"
    if wanted is not None and kv_cache_gib is not None:
        raise ConfigError(
            f"num_blocks ({wanted}) and backend_options.kv_cache_gib ({kv_cache_gib}) both size the KV cache: give one"
        )
    setting = f"num_blocks is {wanted}" if wanted is not None else f"backend_options.kv_cache_gib is {kv_cache_gib}"
    if wanted is not None:
        blocks = wanted
    else:
        size = int(kv_cache_gib * GIB) if kv_cache_gib is not None else budget_bytes()
        blocks = max(0, size) // block_bytes
    if kv_cache_gib is not None and not blocks:
        raise ConfigError(f"{setting}, and {each}: give at least {block_bytes / GIB:.6f}")
    if (wanted is not None or kv_cache_gib is not None) and free_bytes is not None:
        fits = max(0, free_bytes // block_bytes - 1)  # one block more is kept as padding
        if blocks > fits:
            raise ConfigError(
                f"{setting}: that takes {size_text(blocks * block_bytes)} on {where} ({each}), and "
                f"{size_text(free_bytes)} are free; lower it (at most {fits} blocks fit), or choose a smaller model or "
                "dtype"
            )
    if not blocks:
        raise BackendError(
            f"no memory is left on {where} for a KV cache: {each}; choose a smaller model or dtype, lower "
            "max_num_batched_tokens, or raise backend_options.memory_fraction"
        )
    return blocks


def size_text(size: float) -> str:
    """Bytes in the unit that suits them."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
