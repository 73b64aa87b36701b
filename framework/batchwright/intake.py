"""Taking requests: what is checked and settled before one waits."""

from __future__ import annotations

from collections.abc import Callable

from xxhash import xxh3_64_intdigest

from batchwright.errors import PolicyError, RefusedRequestError
from batchwright.feasibility import Feasibility
from batchwright.hookspecs import Refusal
from batchwright.request import WAITING, Request
from batchwright.rules import Rules
from batchwright.state import State

_NO_IDS: frozenset[int] = frozenset()


class Intake:
    """Where requests enter one scheduler.

    Attributes:
        feasible: what says whether a request could ever fit.
        num_arrivals: requests taken so far.
    """

    def __init__(
        self,
        state: State,
        feasible: Feasibility,
        *,
        eos_token_ids: frozenset[int],
        seed: int,
        on_fault: Callable[[PolicyError], None],
    ) -> None:
        """Takes what the scheduler has; ``on_fault`` is told of a policy's fault, and raises it or lets it pass."""
        self._state = state
        self.feasible = feasible
        self._eos = eos_token_ids
        self._seed = seed
        self._on_fault = on_fault
        self.num_arrivals = 0

    def take(
        self,
        request: Request,
        rules: Rules,
        step_index: int,
        num_output_tokens: int | None,
        stop_check: Callable[[int], bool] | None,
    ) -> None:
        """Take a request: see ``Scheduler.add``.

        Args:
            request: a new one.
            rules: the policy in force.
            step_index: of the next step, for errors.
            num_output_tokens: how long it really runs, where a trace is replayed.
            stop_check: called with each of its tokens; True ends it.
        """
        state, hooks = self._state, self._state.hooks
        max_tokens = self.feasible.check(request, state.requests, num_output_tokens)
        request.max_tokens = max_tokens
        if hooks.predict_output is not None and request.predicted_output_tokens is None:
            try:
                request.predicted_output_tokens = rules.prediction(request, step_index)
            except PolicyError as error:
                self._on_fault(error)
        answer: bool | Refusal = True
        try:
            answer = rules.arrival(request, step_index)
        except PolicyError as error:
            self._on_fault(error)
        if isinstance(answer, Refusal):
            raise RefusedRequestError(
                f"request {request.request_id!r} was refused by policy {hooks.who('arrival')!r}: {answer.reason}",
                answer.reason,
            )
        length = max_tokens if num_output_tokens is None else min(max_tokens, num_output_tokens)
        request._end = request.num_prompt_tokens + length
        self._settle(request, stop_check)
        request.arrival_index = self.num_arrivals
        self.num_arrivals += 1
        request._state = WAITING
        state.still = False
        state.requests[request.request_id] = request
        state.queue[request] = None
        if hooks.request_arrived:
            state.tell(hooks.request_arrived, request)

    def _settle(self, request: Request, stop_check: Callable[[int], bool] | None) -> None:
        """What stops it, its seed, and what the scheduler counts of it."""
        state, params = self._state, request.sampling_params
        stop_ids = self._eos if not params.ignore_eos else _NO_IDS
        request._stop_ids = stop_ids.union(params.stop_token_ids) if params.stop_token_ids else stop_ids
        request._seed = (
            params.seed if params.seed is not None else xxh3_64_intdigest(request.request_id.encode(), self._seed)
        )
        request._stop_check = stop_check
        request._roster = state.roster
        if request._stop_ids:
            state.stop_ids |= request._stop_ids
        state.num_stop_checks += stop_check is not None
        state.num_logprobs += request._logprobs is not None
