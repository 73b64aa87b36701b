"""Asking a policy, and holding its answers to the contract.

Every answer of a policy passes through here once; what breaks a rule raises :class:`~batchwright.PolicyError` with
plugin, hook, step, rule and value. ``None`` falls to the core's neutral answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from batchwright.decisions import Decisions
from batchwright.errors import PolicyError, Written, place_of
from batchwright.hookspecs import HOLD, Refusal
from batchwright.queues import QueueView
from batchwright.request import FINISHED, RESIDENT, Request
from batchwright.step import Step

NO_MORE = object()
"""In place of an offer: there are no more."""


class Rules:
    """The bound decisions of one policy, each answer checked.

    Attributes:
        decisions: the bound hooks.
        counts_decodes: whether a decode takes a token of the budget.
    """

    def __init__(self, decisions: Decisions) -> None:
        self.decisions = decisions
        self.counts_decodes = decisions.policy.budget_counts_decodes
        self._neutral = decisions.neutral

    def error(self, at: Step | int, hook: str, rule: str, message: str, value: object = None) -> PolicyError:
        """An error that names the plugin whose decision it was; ``at`` is the step, or the number of the next."""
        who, index = self.decisions.who(hook), at if isinstance(at, int) else at.index
        return PolicyError(message, plugin=who, hook=hook, step=index, rule=rule, value=value)

    def _call(self, step: Step, hook: str, request: Request) -> Any:
        decide = getattr(self.decisions, hook)
        if decide is None:
            return None
        try:
            return decide(step, request)
        except Exception as error:
            raise self.raised(step, hook, error) from error

    def _call_between(self, step_index: int, hook: str, request: Request) -> Any:
        """What is decided between two steps."""
        decide = getattr(self.decisions, hook)
        if decide is None:
            return None
        try:
            return decide(request)
        except Exception as error:
            raise self.raised(step_index, hook, error) from error

    def raised(self, at: Step | int, hook: str, error: Exception) -> PolicyError:
        """The error for something that the policy raised."""
        if isinstance(error, Written):
            return self.error(at, hook, "write", str(error), error.what)
        return self.error(at, hook, "raised", f"it raised {type(error).__name__}: {error}{place_of(error)}", error)

    def admission(self, step: Step) -> Iterator[Any]:
        """The policy's offers; ``close`` them. What is raised while they are taken is ``raised`` by the policy."""
        decide = self.decisions.admission
        try:
            offers = decide(step) if decide is not None else None
        except Exception as error:
            raise self.raised(step, "admission", error) from error
        if offers is None:
            offers = self._neutral.admission(step)
        return self._iterate(step, offers)

    def close(self, step: Step, offers: Any) -> None:
        """End a sequence of offers that may not be at its end."""
        try:
            if hasattr(offers, "close"):
                offers.close()
        except Exception as error:  # from a finally of the policy, say
            raise self.raised(step, "admission", error) from error

    def arrival(self, request: Request, step_index: int) -> bool | Refusal:
        """Whether a request that could fit is taken; asked between two steps."""
        answer = self._call_between(step_index, "arrival", request)
        if answer is None:
            return True
        if answer is not True and not isinstance(answer, Refusal):
            message = f"it must return True, a Refusal or None, not {answer!r}"
            raise self.error(step_index, "arrival", "type", message, answer)
        return answer

    def prediction(self, request: Request, step_index: int) -> int | None:
        """Output tokens that a request is expected to have; asked between two steps."""
        answer = self._call_between(step_index, "predict_output", request)
        return None if answer is None else self._tokens(step_index, "predict_output", request, answer, "an int or None")

    def _tokens(self, at: Step | int, hook: str, request: Request, answer: Any, expected: str = "an int") -> int:
        """An answer that is a number of tokens."""
        if not isinstance(answer, int) or isinstance(answer, bool):
            raise self._no_number(at, hook, request, answer, expected)
        if answer < 0:
            message = f"request {request.request_id!r}: {answer} tokens, it must be at least 0"
            raise self.error(at, hook, "range", message, answer)
        return answer

    def _no_number(self, at: Step | int, hook: str, request: Request, answer: Any, expected: str) -> PolicyError:
        message = f"request {request.request_id!r}: it must return {expected}, not {answer!r}"
        return self.error(at, hook, "type", message, answer)

    def _iterate(self, step: Step, offers: Any) -> Iterator[Any]:
        if not hasattr(offers, "__iter__"):
            message = f"it must return an iterable of requests or None, not {offers!r}"
            raise self.error(step, "admission", "type", message, offers)
        try:
            return iter(offers)
        except Exception as error:
            raise self.raised(step, "admission", error) from error

    def sequence(self, step: Step, offers: Any) -> Iterable[Any]:
        """A yielded sequence, so that iterating it can raise nothing of the policy's."""
        if isinstance(offers, (list, tuple, QueueView)):
            return offers
        if not hasattr(offers, "__iter__"):
            message = f"it yielded {offers!r}: neither a request nor a sequence of requests"
            raise self.error(step, "admission", "type", message, offers)
        most = 10 * (len(step.waiting) + len(step.running)) + 1000
        try:
            requests = list(islice(offers, most + 1))
        except Exception as error:
            raise self.raised(step, "admission", error) from error
        if len(requests) > most:
            raise self.error(step, "admission", "endless", f"it yielded more than {most} requests; does it ever end?")
        return requests

    def chunk(self, step: Step, request: Request) -> int:
        """Tokens of the request in this step."""
        most = min(request.num_tokens - request.num_computed, step.budget)
        answer = self._call(step, "chunking", request)
        if answer is None:
            return most
        if not isinstance(answer, int) or isinstance(answer, bool):
            raise self._no_number(step, "chunking", request, answer, "an int")
        if not 0 <= answer <= most:
            message = (
                f"request {request.request_id!r}: {answer} tokens, allowed are 0 to {most} "
                f"({request.num_pending} pending, {step.budget} left in the budget)"
            )
            raise self.error(step, "chunking", "range", message, answer)
        return answer

    def reserve(self, step: Step, request: Request) -> int:
        """Tokens for which blocks are taken at admission, at most prompt + max_tokens - 1."""
        answer = self._call(step, "reservation", request)
        if answer is None:
            return request.num_tokens
        num_tokens = self._tokens(step, "reservation", request, answer)
        return min(num_tokens, request.num_prompt_tokens + request.max_tokens - 1)

    def victim(self, step: Step, request: Request) -> Request | None:
        """Whom to evict for ``request``; None: nobody."""
        answer = self._call(step, "preemption", request)
        if answer is None:
            answer = self._neutral.preemption(step, request)
        if answer is HOLD:
            return None
        if not isinstance(answer, Request):
            message = f"for {request.request_id!r}: it must return a request or HOLD, not {answer!r}"
            raise self.error(step, "preemption", "type", message, answer)
        if answer._state != RESIDENT or not (answer in step.running or answer in step._admitted):
            what = "finished" if answer._state == FINISHED else "not a resident: it holds no blocks here"
            message = f"for {request.request_id!r}: victim {answer.request_id!r} is {what}"
            raise self.error(step, "preemption", "victim", message, answer)
        return answer
