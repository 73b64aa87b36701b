"""Which attention kernel runs, and why."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from batchwright.errors import BackendError
from batchwright_backends.torch.kernels.flash_attn import FlashAttention
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kernels.sdpa import ScaledDotProduct

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer

logger = logging.getLogger(__name__)

KERNELS: tuple[type[AttentionKernel], ...] = (FlashAttention, ScaledDotProduct)
"""The fastest first."""


def choose(
    wanted: str, device: torch.device, dtype: torch.dtype, block_size: int | None, layers: Sequence[AttentionLayer]
) -> AttentionKernel:
    """The kernel of that name; for ``auto`` the first of flash_attn, sdpa that can run this model here.

    Raises:
        BackendError: the kernel that was asked for cannot.
    """
    reasons: dict[str, str] = {}
    for kernel in KERNELS:
        if wanted not in ("auto", kernel.name):
            continue
        reason = kernel.refusal(device, dtype, block_size, layers)
        if reason is None:
            passed_over = "".join(f"; {name} not: {why}" for name, why in reasons.items())
            logger.info("attention kernel %s (attention: %s%s)", kernel.name, wanted, passed_over)
            return kernel()
        reasons[kernel.name] = reason
    why = "; ".join(f"{name} cannot run this model on {device}: {reason}" for name, reason in reasons.items())
    raise BackendError(f"backend_options.attention is {wanted!r}, and {why}; use attention: sdpa, or auto")
