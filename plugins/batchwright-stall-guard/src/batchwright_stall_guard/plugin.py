"""Entry point of the distribution: what it brings."""

from __future__ import annotations

from batchwright import Policy, hookimpl
from batchwright_stall_guard.stall_guard import StallGuard


@hookimpl
def register_policies() -> dict[str, type[Policy]]:
    """The one policy of this distribution; a config activates it by its name."""
    return {"stall_guard": StallGuard}
