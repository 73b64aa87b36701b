"""Adaptive LIFO for Batchwright: the policy ``adaptive_lifo``."""

from __future__ import annotations

from batchwright_adaptive_lifo.adaptive_lifo import AdaptiveLifo, AdaptiveLifoParams

__all__ = ["AdaptiveLifo", "AdaptiveLifoParams"]
