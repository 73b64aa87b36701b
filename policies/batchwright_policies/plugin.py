"""Entry point of the first-party policies."""

from __future__ import annotations

from batchwright.hookspecs import hookimpl
from batchwright.policy import Policy

from batchwright_policies.prefill_first import PrefillFirst


@hookimpl
def register_policies() -> dict[str, type[Policy]]:
    """The policies that come with Batchwright."""
    return {"prefill_first": PrefillFirst}
