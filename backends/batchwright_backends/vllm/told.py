"""What vLLM wants to know of admissions and evictions for its own metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.engine import EngineCoreEventType  # pyright: ignore[reportMissingImports]
from vllm.v1.metrics.stats import PrefixCacheStats  # pyright: ignore[reportMissingImports]

from batchwright.hookspecs import hookimpl

if TYPE_CHECKING:
    from batchwright.request import Request
    from batchwright.step import Step
    from batchwright_backends.vllm.seats import Seats


class Told:
    """Keeps vLLM's events, prefix-cache statistics and seats up to date.

    Args:
        seats: of the scheduler.
        log_stats: whether vLLM keeps statistics.
    """

    name = "vllm-stats"

    def __init__(self, seats: Seats, *, log_stats: bool) -> None:
        self._seats = seats
        self._log_stats = log_stats
        self._prefixes = PrefixCacheStats()
        self.num_preemptions = 0

    @hookimpl
    def request_admitted(self, step: Step, request: Request) -> None:
        """It got blocks, and those that the cache held."""
        seat = self._seats.get(request.request_id)
        if seat is None:
            return
        theirs = seat.theirs
        if theirs.prefill_stats is not None and not request.num_preemptions:
            theirs.prefill_stats.set(
                num_prompt_tokens=request.num_prompt_tokens,
                num_local_cached_tokens=request.num_cached,
                num_external_cached_tokens=0,
            )
        if self._log_stats:
            theirs.record_event(EngineCoreEventType.SCHEDULED)
            self._prefixes.record(
                num_tokens=request.num_tokens, num_hits=request.num_cached, preempted=request.num_preemptions > 0
            )

    @hookimpl
    def request_preempted(self, step: Step, victim: Request) -> None:
        """It lost them."""
        self.num_preemptions += 1
        seat = self._seats.get(victim.request_id)
        if seat is not None:
            self._seats.preempt(victim)
            seat.theirs.num_preemptions += 1
            if self._log_stats:
                seat.theirs.record_event(EngineCoreEventType.PREEMPTED)

    def take_prefixes(self) -> PrefixCacheStats:
        """Statistics since they were taken last."""
        prefixes, self._prefixes = self._prefixes, PrefixCacheStats()
        return prefixes

    def forget_prefixes(self) -> None:
        """The prefix cache was emptied."""
        self._prefixes = PrefixCacheStats(reset=True)
