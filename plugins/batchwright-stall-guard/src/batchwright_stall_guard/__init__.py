"""A bound on the gap between two tokens for Batchwright: ``stall_guard``."""

from __future__ import annotations

from batchwright_stall_guard.stall_guard import StallGuard, StallGuardParams

__all__ = ["StallGuard", "StallGuardParams"]
