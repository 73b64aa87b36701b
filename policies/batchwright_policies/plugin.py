"""Entry point of the first-party policies."""

from __future__ import annotations

from batchwright.hookspecs import hookimpl
from batchwright.policy import Policy
from batchwright_policies.prefill_first import PrefillFirst
from batchwright_policies.stall_free import StallFree
from batchwright_policies.vllm_v1 import VllmV1


@hookimpl
def register_policies() -> dict[str, type[Policy]]:
    """The policies that come with Batchwright."""
    return {"prefill_first": PrefillFirst, "stall_free": StallFree, "vllm_v1": VllmV1}
