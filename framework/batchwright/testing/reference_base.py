"""Around a step of the reference: asking its policy, telling observers, and the coming and going of requests."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from batchwright.backend import StepResult
from batchwright.batch import Batch
from batchwright.errors import PolicyError, RefusedRequestError, UnknownRequestError
from batchwright.feasibility import Feasibility
from batchwright.hookspecs import HOLD, IN_STEP, Refusal
from batchwright.limits import Limits
from batchwright.request import FINISHED, WAITING, Request
from batchwright.resolve import default_policy, resolve_fallback
from batchwright.testing.reference_view import View

if TYPE_CHECKING:
    from batchwright.testing.reference_blocks import Blocks

_END = object()


class ReferenceBase:
    """Queues, and whom they belong to; ``Reference`` adds what happens in a step."""

    def __init__(self, policy: Any, blocks: Blocks, settings: Mapping[str, Any]) -> None:
        self.blocks = blocks
        self.limits: Limits = settings.get("limits") or Limits()
        self._eos = frozenset(settings.get("eos_token_ids", ()))
        self._seed = settings.get("seed", 0)
        self._on_policy_error = settings.get("on_policy_error", "raise")
        self._fallback = resolve_fallback(settings.get("fallback_policy"))
        self._feasible = Feasibility(self.limits, cast(Any, blocks), settings.get("vocab_size"))
        self.rng = random.Random(self._seed)
        self.plugins = list(settings.get("plugins", ()))
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.num_arrivals = self._num_steps = self.num_policy_faults = self.num_observer_faults = 0
        self.neutral: Any = default_policy()  # answers what a policy leaves open
        self.step = View(cast(Any, self), 0)
        self.swap_policy(policy if policy is not None else self.default())

    def default(self) -> Any:
        """A fresh default policy."""
        return type(self.neutral)()

    def fallback(self, step: View) -> Any:
        """Who builds a step in the place of a policy that broke a rule; it is told of what it did not see."""
        if self._fallback is None:
            return self.default()
        [policy] = set(self._fallback.slots.values())
        for hook in ("policy_attached", "step_started"):
            _call(getattr(policy, hook, lambda: None), {"step": step})
        return policy

    # Requests --------------------------------------------------------------------------------------------------

    def has_unfinished(self) -> bool:
        """Whether anybody waits or is resident."""
        return bool(self.waiting or self.running)

    def add(
        self,
        request: Request,
        *,
        num_output_tokens: int | None = None,
        stop_check: Callable[[int], bool] | None = None,
    ) -> None:
        """Take a request that could fit, unless the policy refuses it."""
        ids = [r.request_id for r in (*self.waiting, *self.running)]
        request.max_tokens = self._feasible.check(request, ids, num_output_tokens)
        if request.predicted_output_tokens is None:
            request.predicted_output_tokens = self._predict(request)
        try:
            answer = self.ask("arrival", request=request)
            self.check(answer in (None, True) or isinstance(answer, Refusal), "arrival", "type", answer)
        except PolicyError:
            if self._on_policy_error == "raise":
                raise
            self.num_policy_faults, answer = self.num_policy_faults + 1, True
        if isinstance(answer, Refusal):
            raise RefusedRequestError(f"request {request.request_id!r}: {answer.reason}", answer.reason)
        request._end = request.num_prompt_tokens + min(request.max_tokens, num_output_tokens or request.max_tokens)
        request.arrival_index, self.num_arrivals = self.num_arrivals, self.num_arrivals + 1
        params = request.sampling_params
        request._stop_ids = frozenset((*params.stop_token_ids, *(() if params.ignore_eos else self._eos)))
        request._stop_check = stop_check
        request._state = WAITING
        self.waiting.append(request)
        self.tell("request_arrived", request=request)

    def _predict(self, request: Request) -> int | None:
        try:
            answer = self.ask("predict_output", request=request)
            self.check(answer is None or type(answer) is int, "predict_output", "type", answer)
            self.check(answer is None or answer >= 0, "predict_output", "range", answer)
        except PolicyError:
            if self._on_policy_error == "raise":
                raise
            self.num_policy_faults, answer = self.num_policy_faults + 1, None
        return cast("int | None", answer)

    def abort(self, request_id: str, *, error: str | None = None) -> None:
        """End a request, whatever it is doing; between ``schedule`` and ``update`` its row's token is dropped."""
        found = [r for r in (*self.waiting, *self.running) if r.request_id == request_id]
        if not found:
            raise UnknownRequestError(f"unknown request {request_id!r}")
        self.end([(found[0], "abort" if error is None else "error")])

    def end(self, over: list[tuple[Request, str]]) -> None:
        """Free what ended, in order, then tell."""
        for request, reason in over:
            self.blocks.shrink(request, 0)
            (self.waiting if request in self.waiting else self.running).remove(request)
            request._state, request._prefilling, request.finish_reason = FINISHED, False, reason
        for request, reason in over:
            self.tell("request_finished", request=request, reason=reason)

    def finish(self, step: View, over: list[tuple[Request, str]], result: StepResult) -> View:
        """The step is executed, and these requests end with it."""
        step.finished = [r for r, _ in over]
        self.end(over)
        self.tell("step_finished", step=step, result=result)
        for request in step.batch:
            request.num_scheduled = 0
        return step

    def requeue(self, victims: Sequence[Request]) -> None:
        """Victims wait again, the last evicted first."""
        for request in victims:
            (self.waiting if request in self.waiting else self.running).remove(request)
            self.waiting.insert(0, request)
            request._state = WAITING

    def stops(self, request: Request, token: int) -> str | None:
        """Why it ends with this token, if it does."""
        if token in request._stop_ids or (request._stop_check is not None and request._stop_check(token)):
            return "stop"
        if request.num_tokens < request._end:
            return None
        return "length" if request.num_output_tokens == request.max_tokens else "trace"

    def fail(self, batch: Batch, error: str, *, retry: bool, now: int = 0) -> View:
        """The backend failed: the batch's requests end, or are evicted to be computed again."""
        step, num_before = self.step, len(self.step.preempted)
        step.end = now
        there = [r for r in step.batch if not r.is_finished]
        self.forget(step, step.batch)
        if retry:
            for request in reversed(there):
                request.num_scheduled = 0
                step.batch.remove(request)
                self.evict(step, request, None)
            self.requeue(step.preempted[num_before:])
        over = [] if retry else [(r, "error") for r in there]
        return self.finish(step, over, StepResult((), now - step.now))

    def forget(self, step: View, requests: Iterable[Request]) -> None:
        """Blocks that were to be filled in this step and are not: nobody may share them."""
        for block in [block for r in requests for block in step.fresh.pop(r, ())]:
            self.blocks.content.pop(block, None)

    def evict(self, step: View, victim: Request, asker: Request | None) -> None:
        """See ``Reference``."""
        raise NotImplementedError

    def swap_policy(self, policy: Any) -> None:
        """From the next step on another policy decides."""
        self.policy = self.decider = policy
        self._feasible.chunks = policy.chunks
        view = View(cast(Any, self), self.step.end or self.step.now)
        _call(getattr(policy, "policy_attached", lambda: None), {"step": view})

    def register(self, plugin: object) -> None:
        """Add an observer."""
        self.plugins.append(plugin)

    def tell(self, hook: str, **arguments: Any) -> None:
        """Tell the observers; a fault of theirs is counted and undoes nothing."""
        for observer in (self.policy, *self.plugins):
            try:
                _call(getattr(observer, hook, lambda: None), arguments)
            except Exception:
                self.num_observer_faults += 1

    # Decisions, each checked -----------------------------------------------------------------------------------

    def ask(self, hook: str, **arguments: Any) -> Any:
        """A decision. What a policy leaves open of admission and preemption the default policy answers."""
        for policy in (self.decider, self.neutral) if hook in ("admission", "preemption") else (self.decider,):
            method = getattr(policy, hook, lambda: None)
            answer = self.guard(hook, _call, method, arguments)
            if answer is not None:
                return answer
        return None

    def guard(self, hook: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call into a policy: what it raises is its fault."""
        try:
            return function(*arguments)
        except Exception as error:
            raise self.fault(hook, "raised", error) from error

    def check(self, is_kept: bool, hook: str, rule: str, value: object) -> None:
        """Hold an answer to a rule."""
        if not is_kept:
            raise self.fault(hook, rule, value)

    def fault(self, hook: str, rule: str, value: object) -> PolicyError:
        """What a broken rule raises."""
        name, step = type(self.decider).__name__, self._num_steps if hook not in IN_STEP else self.step.index
        return PolicyError(repr(value), plugin=name, hook=hook, step=step, rule=rule, value=value)

    def ask_offers(self, step: View) -> Iterator[Request]:
        """What ``admission`` yields, one by one; the rest of a sequence is not looked at once the batch is full."""
        offers = self.ask("admission", step=step)
        self.check(hasattr(offers, "__iter__"), "admission", "type", offers)
        iterator = iter(offers)
        while (offer := self.guard("admission", next, iterator, _END)) is not _END:
            if isinstance(offer, Request):
                yield offer
                continue
            self.check(hasattr(offer, "__iter__"), "admission", "type", offer)
            for request in offer:
                if len(step.batch) == self.limits.max_num_seqs:
                    break
                self.check(isinstance(request, Request), "admission", "type", request)
                yield request

    def ask_number(self, hook: str, step: View, request: Request, neutral: int, most: int | None) -> int:
        """What ``chunking`` or ``reservation`` answers."""
        answer = self.ask(hook, step=step, request=request)
        if answer is None:
            return neutral
        self.check(isinstance(answer, int) and not isinstance(answer, bool), hook, "type", answer)
        self.check(answer >= 0 and (most is None or answer <= most), hook, "range", answer)
        return int(answer)

    def ask_victim(self, step: View, asker: Request, lacking: str) -> Request | None:
        """What ``preemption`` answers; None: nobody."""
        step.asker, step.lacking = asker, lacking
        try:
            victim = self.ask("preemption", step=step, request=asker)
        finally:
            step.asker = step.lacking = None
        if victim is HOLD:
            return None
        self.check(isinstance(victim, Request), "preemption", "type", victim)
        residents = [r for r in (*step.running, *step.batch) if r.is_resident]
        self.check(victim in residents, "preemption", "victim", victim)
        return cast(Request, victim)


def _call(method: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    return method(**{name: arguments[name] for name in inspect.signature(method).parameters})
