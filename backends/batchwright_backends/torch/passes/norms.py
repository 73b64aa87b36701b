"""RMSNorm in one pass over its input, where torch makes eight."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from batchwright_backends.torch.native.library import Functions
from batchwright_backends.torch.passes.modules import is_bound, replace


class FusedRMSNorm(nn.Module):
    """``x / sqrt(mean(x**2) + epsilon) * weight``.

    Args:
        functions: that compute it.
        weight: float32[width].
        epsilon: added to the mean.
        early: the quotient is rounded before the weight is multiplied, as Llama does; else after, as Gemma does.
    """

    def __init__(self, functions: Functions, weight: torch.Tensor, epsilon: float, *, early: bool) -> None:
        super().__init__()
        self.weight: torch.Tensor
        self.register_buffer("weight", weight, persistent=False)
        self._run = functions.rms_norm
        self._weight = weight  # without the detour of a module's attributes
        self.epsilon = epsilon
        self.early = early

    def is_like(self, other: FusedRMSNorm) -> bool:
        """Whether they differ in nothing but the weight."""
        return (self.early, self.epsilon) == (other.early, other.epsilon)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., width] to the same."""
        return self._run(x, self._weight, self.epsilon, early=self.early)


def fuse(model: nn.Module, functions: Functions) -> int:
    """Replace each module that is found to compute an RMSNorm. Returns how many were replaced."""
    found = {name: fused for name, module in model.named_modules() if (fused := match(module, functions)) is not None}
    replace(model, found)
    return len(found)


def match(module: nn.Module, functions: Functions) -> FusedRMSNorm | None:
    """The same function of this module, or None where there is none.

    What a module does is not read from its name: its output for random input decides, bit by bit in bfloat16, where
    the order of rounding shows.
    """
    weight = getattr(module, "weight", None)
    epsilon = next((e for e in (getattr(module, n, None) for n in ("variance_epsilon", "eps")) if e is not None), None)
    if not isinstance(weight, torch.Tensor) or weight.dim() != 1 or not isinstance(epsilon, float):
        return None
    if weight.dtype != functions.dtype or is_bound(module) or any(True for _ in module.children()):
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, weight.shape[0], generator=generator).to(weight.dtype)
    x[1] *= 1e-3  # where epsilon counts
    try:
        expected: Any = module(x)
    except Exception:  # it wants more than one argument: another thing
        return None
    if not isinstance(expected, torch.Tensor) or expected.shape != x.shape or expected.dtype != x.dtype:
        return None
    for scale in (weight.float(), 1.0 + weight.float()):  # Gemma keeps what is more than one
        for early in (True, False):
            fused = FusedRMSNorm(functions, scale.contiguous(), epsilon, early=early)
            if _same(fused(x), expected):
                return fused
    return None


def _same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    if got.dtype == torch.float32:
        return torch.allclose(got, expected, rtol=1e-5, atol=1e-6)
    # The sum's order differs, so a value may fall to the other side of a rounding edge: one in hundreds does.
    return bool((got != expected).float().mean() < 0.02) and torch.allclose(got, expected, rtol=1e-2, atol=1e-2)
