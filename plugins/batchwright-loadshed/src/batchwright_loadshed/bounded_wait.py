"""Refuse a request at once whose first token would come too late."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from batchwright import HOLD, Limits, Params, Policy, Refusal, Request, Step, hookimpl
from batchwright.hookspecs import Hold
from batchwright_loadshed.prompt_rate import PromptRate


class BoundedWaitParams(Params):
    """Parameters of :class:`BoundedWait`."""

    max_wait_s: float = Field(
        default=5.0,
        gt=0,
        description="Expected seconds to the first token above which a request is refused.",
    )
    use_slo: bool = Field(
        default=True, description="Take a request's own slo.ttft_s in the place of max_wait_s, where it has one."
    )
    max_waiting: int | None = Field(
        default=None, ge=1, description="Requests that may wait, whatever is expected; null: any number."
    )
    protected_priority: int | None = Field(
        default=None, description="Requests of this priority number or a lower one are never refused; null: none is."
    )
    half_life_s: float = Field(
        default=10.0, gt=0, description="Seconds after which a measurement of the prompt rate counts half."
    )


class BoundedWait(Policy):
    """First come, first served, and whoever would wait too long is told so when it comes.

    A server that takes everything under overload serves nobody in time: its queue grows, and each request waits behind
    those whose callers have given up. This policy estimates the time to the first token when a request arrives: prompt
    tokens ahead of it, and its own, over the rate at which prompt tokens left the queue lately
    (:class:`~batchwright_loadshed.PromptRate`). Beyond the bound the request is refused, with the numbers.

    Who is taken runs as under chunked prefill: decodes, then prompts that go on, then newcomers in order of arrival, up
    to the first that does not fit. All of it is in ``arrival`` and the observers, so another policy can decide the
    rest: ``policy: {arrival: bounded_wait, admission: stall_free, chunking: stall_free}``.

    An arrival costs O(1); a step O(its batch).
    """

    Params = BoundedWaitParams
    params: BoundedWaitParams

    def __init__(self, params: BoundedWaitParams | None = None, **values: object) -> None:
        super().__init__(params, **values)
        self.num_refused = 0
        self._rate = PromptRate(self.params.half_life_s)
        self._waiting: dict[Request, int] = {}  # who waits, and how many tokens its turn will take
        self._num_waiting_tokens = 0
        self._prefilling: dict[Request, None] = {}
        self._num_hits = 0  # tokens that this step's newcomers found in the prefix cache

    def defaults(self, limits: Limits) -> Mapping[str, Any]:
        """A resident always finds a place in the batch."""
        return {"max_num_residents": limits.max_num_seqs}

    # Who is taken --------------------------------------------------------------------------------------------

    @hookimpl
    def arrival(self, request: Request) -> bool | Refusal:
        """True, or the reason why not."""
        protected = self.params.protected_priority
        if protected is not None and request.priority <= protected:
            return True
        reason = self._too_many() or self._too_late(request)
        if reason is None:
            return True
        self.num_refused += 1
        return Refusal(reason)

    def expected_wait_s(self, request: Request) -> float | None:
        """Estimated seconds to the first token of a request that came now; None: nothing was measured yet."""
        rate = self._rate.tokens_per_s
        if rate is None:
            return None
        unfinished = sum(r.num_pending for r in self._prefilling)
        return (self._num_waiting_tokens + unfinished + request.num_tokens) / rate

    def _too_many(self) -> str | None:
        most = self.params.max_waiting
        if most is None or len(self._waiting) < most:
            return None
        return f"{len(self._waiting)} requests wait already (max_waiting {most}); try again later"

    def _too_late(self, request: Request) -> str | None:
        bound_s = self.params.max_wait_s
        if self.params.use_slo and request.slo is not None and request.slo.ttft_s is not None:
            bound_s = request.slo.ttft_s
        wait_s = self.expected_wait_s(request)
        if wait_s is None or wait_s <= bound_s:
            return None
        return f"its first token is expected in {wait_s:.3g} s, later than {bound_s:g} s; try again later"

    # Who runs ------------------------------------------------------------------------------------------------

    @hookimpl
    def admission(self, step: Step) -> Iterator[Request | Sequence[Request]]:
        """Decodes, then prompts that go on, then newcomers up to the first that does not fit."""
        yield step.decodes
        yield step.prefilling
        for request in step.waiting:
            yield request
            if not request.num_scheduled:
                return

    @hookimpl
    def preemption(self, step: Step, request: Request) -> Request | Literal[Hold.HOLD]:
        """The newest resident that is not in the batch; nobody for a newcomer."""
        if request.is_waiting:
            return HOLD
        return step.evictable[-1] if step.evictable else request

    # What it knows -------------------------------------------------------------------------------------------

    @hookimpl
    def policy_attached(self, step: Step) -> None:
        """Take over who is here."""
        self._waiting.clear()
        self._num_waiting_tokens = 0
        self._prefilling = dict.fromkeys(step.prefilling)
        for request in step.waiting:
            self._wait(request)

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        """It waits."""
        self._wait(request)

    @hookimpl
    def request_admitted(self, request: Request) -> None:
        """It waits no longer; what the prefix cache holds of it left the queue at once."""
        self._leave(request)
        self._prefilling[request] = None
        self._num_hits += request.num_cached

    @hookimpl
    def request_preempted(self, victim: Request) -> None:
        """It waits again, with its output to be computed too."""
        self._prefilling.pop(victim, None)
        self._wait(victim)

    @hookimpl
    def request_finished(self, request: Request) -> None:
        """It is gone, aborted while it waited perhaps."""
        self._prefilling.pop(request, None)
        self._leave(request)

    @hookimpl
    def step_finished(self, step: Step) -> None:
        """Measure the rate, where somebody had to wait for the next step."""
        for request in [r for r in self._prefilling if not r.is_prefilling]:
            del self._prefilling[request]
        if self._waiting or self._prefilling:
            seconds = ((step.end if step.end is not None else step.now) - step.now) / 1e9
            self._rate.add(step.num_prefill_tokens + self._num_hits, seconds)
        self._num_hits = 0

    def _wait(self, request: Request) -> None:
        self._leave(request)
        self._waiting[request] = request.num_tokens
        self._num_waiting_tokens += request.num_tokens

    def _leave(self, request: Request) -> None:
        self._num_waiting_tokens -= self._waiting.pop(request, 0)
