"""Puts a meter into a scheduler, where vLLM keeps statistics and its server takes what the meter tells."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from batchwright_backends.vllm.carrier import GROUP, PLUGIN, is_taken
from batchwright_backends.vllm.meter import Meter

if TYPE_CHECKING:
    from batchwright.active_policy import ActivePolicy
    from batchwright.request import Request
    from batchwright_backends.vllm.settings import HostSettings

logger = logging.getLogger("vllm.batchwright")


def measure(
    scheduler: Any,
    adapter: str,
    settings: HostSettings,
    *,
    log_stats: bool,
    register: Callable[[object, str], None],
    policy: Callable[[], ActivePolicy],
    age_s: Callable[[Request], float] = lambda request: 0.0,
) -> None:
    """Let a scheduler's statistics carry what its policy does.

    Args:
        scheduler: of either kind; it has ``make_stats``, ``num_fallbacks`` and ``policy_ns``.
        adapter: which kind.
        settings: how many clients are named.
        log_stats: whether vLLM keeps statistics.
        register: takes an observer and its name.
        policy: gives the active policy.
        age_s: gives the seconds since a request came, at its arrival in the policy's eyes.
    """
    if not log_stats:
        return
    if not is_taken():
        logger.warning(
            "no series of the policy on /metrics: this installation has no entry point %r in %r, or VLLM_PLUGINS "
            "leaves it out (install the package anew, or add it there), or vLLM's server is the one in Rust",
            PLUGIN,
            GROUP,
        )
        return
    meter = Meter(
        adapter,
        policy=policy,
        num_fallbacks=lambda: scheduler.num_fallbacks,
        policy_ns=lambda: scheduler.policy_ns,
        most_clients=settings.metrics_clients,
        age_s=age_s,
    )
    register(meter, "vllm-meter")
    make = scheduler.make_stats

    def make_stats(*args: Any, **kwargs: Any) -> Any:
        stats = make(*args, **kwargs)
        if stats is not None:
            try:
                meter.tell(stats)
            except Exception:  # a description of a policy, say: vLLM serves on without series
                logger.exception("the series of the policy end here, and vLLM goes on without them")
                scheduler.make_stats = make
                meter.close()
        return stats

    scheduler.make_stats = make_stats
