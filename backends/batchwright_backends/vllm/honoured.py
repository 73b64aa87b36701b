"""What of a policy each adapter honours, in words; one text for the doctor, the log and the documentation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchwright_backends.vllm.surfaces import GUEST, HOST

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]

    from batchwright.active_policy import ActivePolicy

HONOURED = {
    "admission": {HOST: "yes", GUEST: "yes; residents run before newcomers in a batch"},
    "chunking": {
        HOST: "yes",
        GUEST: "where only the last prompt of a step is cut, and each other gets all that is left",
    },
    "reservation": {
        HOST: "yes",
        GUEST: "the present length or less: a newcomer must find it free, but takes blocks chunk by chunk. More is "
        "refused",
    },
    "preemption": {HOST: "yes", GUEST: "yes"},
    "arrival": {HOST: "yes", GUEST: "refused: vLLM has taken a request before the policy hears of it"},
    "observers": {HOST: "yes", GUEST: "yes"},
}
"""Hook, then adapter, to what becomes of it."""

CLASSES = {HOST: "batchwright_backends.vllm.host.HostScheduler", GUEST: "batchwright_backends.vllm.scheduler"}
"""What ``--scheduler-cls`` names, by adapter."""


def of_ranks(config: VllmConfig, policy: ActivePolicy) -> list[str]:
    """What is to be said of a policy where data parallelism is above 1: that it is fair per rank only.

    The ranks of a model that is no mixture of experts are told that they are one; only the second knows better.
    """
    shares = any(part.policy.fair_to_clients for part in policy.parts.values())
    parallel = config.parallel_config
    if not shares or (parallel.data_parallel_size <= 1 and not parallel.data_parallel_index):
        return []
    return [
        f"policy {policy.name} is fair within each data-parallel rank and not among them: every rank has a scheduler "
        "of its own, so a client whose requests meet fewer others on his rank gets more"
    ]
