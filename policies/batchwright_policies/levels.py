"""Multi-level feedback queues: what ``mlfq`` and ``plas`` have in common."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from itertools import accumulate
from math import ceil, inf

from pydantic import Field

from batchwright.hookspecs import hookimpl
from batchwright.policy import Params
from batchwright.ranked import Ranked
from batchwright.request import Request
from batchwright.step import Step


class LevelsParams(Params):
    """Parameters of :class:`Levels`."""

    quantum: float = Field(
        default=8.0,
        gt=0,
        description="Iterations of service in the first level; who has had them goes down to the next.",
    )
    ratio: float = Field(
        default=2.0, gt=1, description="Each level's quantum is this many times that of the one before."
    )
    levels: int = Field(default=8, ge=2, description="Levels; in the last one, first come, first served to the end.")
    iteration_tokens: int = Field(
        default=256,
        ge=1,
        description="Prompt tokens that cost about as much time as one iteration of decodes.",
    )
    starve_s: float | None = Field(
        default=30.0,
        gt=0,
        description="Whoever waits this many seconds without a token is put in the first level. None: never.",
    )


class Levels(Ranked):
    """Requests in levels by the service they have had; a lower level passes and evicts a higher one. A base class.

    A subclass says ``rank``: the level of a request, from ``level_after``. Service is counted in iterations: one for
    each output token, and one for every ``iteration_tokens`` of the prompt.
    """

    Params = LevelsParams
    params: LevelsParams
    preemptive = True

    def __init__(self, params: LevelsParams | None = None, **values: object) -> None:
        super().__init__(params, **values)
        p = self.params
        self._quanta = [p.quantum * p.ratio**k for k in range(p.levels - 1)]  # the last level has no end
        self._ends = [list(accumulate(self._quanta[join:])) for join in range(p.levels)]
        self._iteration = p.iteration_tokens
        self._promoted: dict[Request, int] = {}  # to the output tokens it had then
        self._since: OrderedDict[Request, int] = OrderedDict()  # when each that waits began to, the longest first

    def level_after(self, service: float, join: int = 0) -> int:
        """The level of one that joined in level ``join`` and has had this much service since."""
        return join + bisect_right(self._ends[join], service)

    def tokens_left(self, service: float, join: int = 0, first: float = 1.0) -> float:
        """Output tokens with which one that has had this much service stays in its level; ``first``: what the next of
        them adds to it, where each further one adds an iteration."""
        ends = self._ends[join]
        place = bisect_right(ends, service)
        return max(0, ceil(ends[place] - service - first)) if place < len(ends) else inf

    def level_of_first(self, service: float) -> int:
        """The first level whose quantum covers this much service."""
        return bisect_left(self._quanta, service)

    def prompt_service(self, request: Request) -> float:
        """Iterations that computing its prompt takes, at least one."""
        service = request.num_prompt_tokens / self._iteration
        return service if service > 1 else 1.0

    def service(self, request: Request) -> float:
        """Iterations that it has had."""
        outputs = request.num_output_tokens
        return self.prompt_service(request) + outputs - 1 if outputs else 0.0

    def since_promotion(self, request: Request) -> int | None:
        """Iterations since it was put in the first level; None: it never was."""
        before = self._promoted.get(request)
        return None if before is None else request.num_output_tokens - before

    @hookimpl
    def policy_attached(self, step: Step) -> None:
        """Take over who waits; waiting begins anew."""
        self._promoted.clear()
        self._since = OrderedDict.fromkeys(step.waiting, step.now)
        super().policy_attached(step)

    @hookimpl
    def step_started(self, step: Step) -> None:
        """Promote those that starve: waiting ones, as many in a step as a batch holds, the longest first, and residents
        for whom there is no place in the batch."""
        if self.params.starve_s is None:
            return
        before = step.now - round(self.params.starve_s * 1e9)
        for _ in range(step.limits.max_num_seqs):
            if not self._since or next(iter(self._since.values())) > before:
                break
            request, _ = self._since.popitem(last=False)
            self._promoted[request] = request.num_output_tokens
            self._since[request] = step.now
            self.queue.push(request)
        if len(step.running) > step.limits.max_num_seqs:
            for request in step.running:
                last = request.last_token_ns
                if last is not None and last <= before and self.rank(request):
                    self._promoted[request] = request.num_output_tokens

    @hookimpl
    def request_arrived(self, request: Request) -> None:
        """It waits from now on."""
        self._since[request] = request.arrival_ns
        super().request_arrived(request)

    @hookimpl
    def request_admitted(self, request: Request) -> None:
        """It waits no longer."""
        self._since.pop(request, None)
        super().request_admitted(request)

    @hookimpl
    def request_preempted(self, step: Step, victim: Request) -> None:
        """It waits again."""
        self._since[victim] = step.now
        super().request_preempted(step, victim)

    @hookimpl
    def request_finished(self, request: Request) -> None:
        """Forget it."""
        self._since.pop(request, None)
        self._promoted.pop(request, None)
        super().request_finished(request)
