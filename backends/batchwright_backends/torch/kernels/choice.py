"""Which attention kernel runs, and why."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from batchwright.errors import BackendError
from batchwright_backends.torch.kernels.demand import Demand
from batchwright_backends.torch.kernels.flash_attn import FlashAttention2
from batchwright_backends.torch.kernels.flash_attn3 import FlashAttention3
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kernels.native import NativeAttention
from batchwright_backends.torch.kernels.sdpa import ScaledDotProduct
from batchwright_backends.torch.kernels.triton_attention import TritonAttention
from batchwright_backends.torch.kernels.varlen import VarlenAttention

if TYPE_CHECKING:
    from batchwright_backends.torch.attention import AttentionLayer

logger = logging.getLogger(__name__)

KERNELS: tuple[type[AttentionKernel], ...] = (
    FlashAttention3,
    FlashAttention2,
    VarlenAttention,
    TritonAttention,
    NativeAttention,
    ScaledDotProduct,
)
"""In the order in which ``auto`` tries them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel, and what was passed over for it.

    Attributes:
        kernel: that runs.
        wanted: the option ``attention``.
        passed_over: kernel to reason, for those tried before it.
    """

    kernel: AttentionKernel
    wanted: str
    passed_over: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """In one clause: ``attention by sdpa (auto; not flash_attn 2: it needs ...)``."""
        reasons = "".join(f"; not {title}: {why}" for title, why in self.passed_over.items())
        return f"attention by {self.kernel.title} (attention: {self.wanted}{reasons})"


def choose(
    wanted: str, device: torch.device, dtype: torch.dtype, block_size: int | None, layers: Sequence[AttentionLayer]
) -> Choice:
    """The kernel of that name, or for ``auto`` the first of ``KERNELS`` that can run this model here.

    Raises:
        BackendError: the kernel that was asked for cannot; it says why, and which can.
    """
    return decide(wanted, Demand.of(device, dtype, block_size, layers))


def decide(wanted: str, demand: Demand) -> Choice:
    """As :func:`choose`, for a demand."""
    reasons: dict[str, str] = {}
    asked = replace(demand, is_named=wanted != "auto")
    for kernel in KERNELS:
        if wanted not in ("auto", kernel.name):
            continue
        reason = kernel.refusal(asked)
        if reason is None:
            try:
                choice = Choice(kernel.make(asked), wanted, reasons)
            except Exception as error:  # a package built for another torch or CUDA fails in many ways
                reason = f"it is installed, and cannot be loaded ({type(error).__name__}: {error})"
            else:
                logger.info("%s", choice)
                return choice
        reasons[kernel.title] = reason
    why = "; ".join(f"{title} cannot run this model on {demand.device}: {reason}" for title, reason in reasons.items())
    others = [kernel.name for kernel in KERNELS if kernel.name != wanted and kernel.refusal(demand) is None]
    use = " or ".join(dict.fromkeys(others))
    raise BackendError(f"backend_options.attention is {wanted!r}, and {why}. Use attention: {use}, or auto")
