"""A policy of ours as a guest in vLLM's own scheduler: it orders queues and sets the bounds of each step.

vLLM's scheduler does all the work, so whatever it carries stays carried. Before each step the policy's hooks are asked,
on a view of vLLM's queues, what they would do (:mod:`batchwright_backends.vllm.plan`); then the queues are ordered, the
budget is set, and who is to be evicted is, so that vLLM does just that.
"""

from __future__ import annotations

import logging
import random
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState  # pyright: ignore[reportMissingImports]
from vllm.v1.request import RequestStatus  # pyright: ignore[reportMissingImports]

from batchwright.config import EngineConfig
from batchwright.decisions import Decisions
from batchwright.effective import effective_settings
from batchwright.errors import BatchwrightError
from batchwright.neutral import Neutral
from batchwright.plugins import load_plugins
from batchwright.resolve import default_policy, resolve_policy
from batchwright_backends.vllm.expressible import check_config, check_policy, check_surfaces
from batchwright_backends.vllm.guest_pool import GuestPool
from batchwright_backends.vllm.guest_queue import GuestQueue
from batchwright_backends.vllm.guest_request import FINISHED, RESIDENT, WAITING, Guest
from batchwright_backends.vllm.guest_settings import read_guest_settings, seated
from batchwright_backends.vllm.guest_step import GuestStep, Line
from batchwright_backends.vllm.plan import Plan, TooLong
from batchwright_backends.vllm.settings import SECTION
from batchwright_backends.vllm.translation import translate
from batchwright_backends.vllm.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]
    from vllm.v1.core.sched.output import SchedulerOutput  # pyright: ignore[reportMissingImports]
    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]

logger = logging.getLogger("vllm.batchwright")

_NEVER_NS = 1 << 62
_WARNED = 5
"""So many faults are logged one by one."""


class GuestMixin:
    """Put in front of vLLM's ``Scheduler`` or ``AsyncScheduler``.

    Attributes:
        num_fallbacks: steps that were made in vLLM's own order, by cause: ``raised`` (the policy broke a rule or
            raised), ``late`` (it took too long), ``inexpressible`` (vLLM cannot be made to do what it wanted), ``idle``
            (it wanted nothing though somebody could run).
        num_faults: faults of observers.
        num_steps: steps that were made.
        policy_ns: time spent in the policy.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        me: Any = self
        config: VllmConfig = me.vllm_config
        check_config(config)
        check_surfaces(self)
        self._own, values = read_guest_settings(config.additional_config)
        limits = {
            "max_num_seqs": me.max_num_running_reqs,
            "max_num_batched_tokens": me.max_num_scheduled_tokens,
            "max_model_len": me.max_model_len,
        }
        parsed = EngineConfig.parse({**values, **limits}, f"additional_config.{SECTION}")
        plugins = load_plugins(parsed.no_plugins)
        active = resolve_policy(parsed.policy, plugins)
        self.decisions = Decisions(active, Neutral(lambda: default_policy(plugins)))
        for name in parsed.plugins:
            self.decisions.register(plugins.active(name), name)
        self.limits = seated(effective_settings(parsed, active).limits, me.max_num_running_reqs)
        notes = check_policy(self.decisions, self.limits)
        self._guests: dict[str, Guest] = {}
        self._queue = me.waiting = GuestQueue()
        self._waiting, self._residents, self._prefilling = Line(), Line(), Line()
        self._pool = GuestPool(me.kv_cache_manager, me.block_size)
        self._rng = random.Random(parsed.seed)
        self._step: GuestStep | None = None  # the last, whose end observers were not told of
        self._evicted: list[Guest] = []
        self._watched = bool(self.decisions.step_finished)
        most_ms = self._own.max_policy_ms
        self._watch: Watchdog | nullcontext[None] = (
            Watchdog(most_ms / 1e3, active.slots.values()) if most_ms is not None else nullcontext()
        )
        self._start_ns = time.perf_counter_ns()
        self._num_arrived = 0
        self.num_steps = self.num_faults = self.policy_ns = 0
        self.num_fallbacks: dict[str, int] = {}
        self._tell("policy_attached", self._view())
        logger.warning("policy %s is a guest in vLLM's %s", active.name, type(self).__mro__[2].__name__)
        for note in notes:
            logger.warning("policy %s, not quite: %s", active.name, note)

    # Requests -----------------------------------------------------------------------------------------------

    def add_request(self, request: VllmRequest) -> None:
        """Take a request."""
        me: Any = self
        is_new = request.request_id not in me.requests
        super().add_request(request)  # type: ignore[misc]
        if is_new and not request.resumable:  # a stream of inputs comes and goes by itself
            ours = translate(request, self._now(), trusted=self._own.trust_requests)
            guest = Guest(request, ours, self._num_arrived, self._pool.table)
            self._num_arrived += 1
            self._guests[request.request_id] = guest
            self._waiting.append(guest)
            self._tell("request_arrived", guest)

    def _free_request(self, request: VllmRequest, *args: Any, **kwargs: Any) -> Any:
        """It has ended, one way or another."""
        freed = super()._free_request(request, *args, **kwargs)  # type: ignore[misc]
        guest = self._guests.pop(request.request_id, None)
        if guest is not None:
            guest.state = FINISHED
            for line in (self._waiting, self._residents, self._prefilling):
                line.discard(guest)
            guest.finish_reason = _reason(request.status)
            self._tell("request_finished", guest, guest.finish_reason)
        return freed

    def _preempt_request(self, request: VllmRequest, *args: Any, **kwargs: Any) -> None:
        """It loses its blocks: by the policy's wish, or by vLLM's."""
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]
        guest = self._guests.get(request.request_id)
        if guest is not None:
            self._residents.discard(guest)
            self._prefilling.discard(guest)
            self._waiting.prepend(guest)
            guest.state = WAITING
            self._evicted.append(guest)

    # Steps --------------------------------------------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """The next step: as the policy wants it, else in vLLM's own order."""
        me: Any = self
        self._finish_step()
        if me._pause_state is not PauseState.UNPAUSED:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        before = time.perf_counter_ns()
        step = self._step = self._view()
        self._tell("step_started", step)
        plan = self._plan(step)
        self.policy_ns += time.perf_counter_ns() - before
        self.num_steps += 1
        output = super().schedule(*args, **kwargs) if plan is None else self._carry_out(plan, args, kwargs)  # type: ignore[misc]
        self._take_note(step, output)
        return output

    def _view(self) -> GuestStep:
        self._pool.new_step()
        return GuestStep(
            self.num_steps,
            self._now(),
            self.limits,
            self._waiting,
            self._residents,
            self._prefilling,
            self._pool,
            self._rng,
        )

    def _plan(self, step: GuestStep) -> Plan | None:
        """What the policy wants; None: vLLM's own order holds."""
        self._let_blocked_wait()
        if not len(step.waiting) and not len(step.running):
            return None
        most = self._own.max_policy_ms
        until = _NEVER_NS if most is None else time.perf_counter_ns() + round(most * 1e6)
        plan = Plan(step, self.decisions, self._pool, until)
        cause = why = None
        try:
            with self._watch:
                plan.make()
            if plan.num_tokens == 0 and not plan.victims:
                cause, why = "idle", "it offered nobody who could run, or nobody at all"
            else:
                why = plan.inexpressible()
                cause = "inexpressible" if why else None
        except TooLong:
            cause, why = "late", f"it took longer than {most} ms"
        except BatchwrightError as error:
            cause, why = "raised", str(error)
        finally:
            plan.undo()
        if cause is None:
            return plan
        self.num_fallbacks[cause] = num = self.num_fallbacks.get(cause, 0) + 1
        if num <= _WARNED:
            logger.warning("step %s is made in vLLM's own order (%s): %s", step.index, cause, why)
        return None

    def _carry_out(self, plan: Plan, args: Any, kwargs: Any) -> SchedulerOutput:
        """Make vLLM do what is planned."""
        me: Any = self
        if plan.victims and self._is_native(plan):
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        now = time.monotonic()
        for guest in plan.victims:
            if guest in self._residents:
                me.running.remove(guest.theirs)
                me._preempt_request(guest.theirs, now)
        before, budget = me.running, me.max_num_scheduled_tokens
        strangers = [request for request in before if request.request_id not in self._guests]
        shown = [guest.theirs for guest in plan.residents()]
        if strangers:
            shown = [*strangers, *shown]
        elif plan.cuts:  # else nobody could take more than he has pending
            me.max_num_scheduled_tokens = min(budget, plan.num_tokens)
        in_order = len(shown) == len(before) and shown == before
        if not in_order:
            me.running = shown
        self._queue.open([*self._unknown(), *(guest.theirs for guest in plan.newcomers())])
        try:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            self._queue.close()
            me.max_num_scheduled_tokens = budget
            if not in_order:
                self._put_back(before, shown)

    def _is_native(self, plan: Plan) -> bool:
        """Whether vLLM evicts these by itself, and does the rest: the last of the residents, and lets nobody in."""
        running = [guest.theirs for guest in plan.residents()]
        running += [guest.theirs for guest in reversed(plan.victims)]
        return not plan.cuts and running == self.running and next(plan.newcomers(), None) is None  # type: ignore[attr-defined]

    def _put_back(self, before: list[VllmRequest], shown: list[VllmRequest]) -> None:
        """Everybody runs again, in order of admission: those who were left out of this step among them."""
        me: Any = self
        after = dict.fromkeys(me.running)
        gone = {request for request in shown if request not in after}
        kept = [request for request in before if request not in gone]
        known = set(kept)
        me.running = [*kept, *(request for request in after if request not in known)]

    def _unknown(self) -> Iterable[VllmRequest]:
        """Who waits and is not shown to the policy: inputs that come bit by bit."""
        if len(self._queue) <= len(self._waiting):
            return ()
        return [request for request in self._queue if request.request_id not in self._guests]

    def _let_blocked_wait(self) -> None:
        """Who waits for a grammar is shown to the policy when that is there."""
        me: Any = self
        for request in list(me.deferred_waiting):
            if me._is_blocked_waiting_status(request.status):
                guest = self._guests.get(request.request_id)
                if me._handle_blocked_waiting_request(request):
                    if guest is not None and guest not in self._waiting:
                        self._waiting.append(guest)
                elif guest is not None:
                    self._waiting.discard(guest)

    def _take_note(self, step: GuestStep, output: SchedulerOutput) -> None:
        """What vLLM made of it, told to the observers."""
        evicted, self._evicted = self._evicted, []
        if evicted:
            step.preempted = evicted
            for victim in evicted:
                self._tell("request_preempted", step, victim, None)
        cached = output.scheduled_cached_reqs
        entered = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        if cached.resumed_req_ids:
            done = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            entered |= {name: done[name] for name in cached.resumed_req_ids}
        me: Any = self
        for request in me.running[len(me.running) - len(entered) :]:  # in order of admission
            guest = self._guests.get(request.request_id)
            if guest is None:
                continue
            self._waiting.discard(guest)
            self._residents.append(guest)
            self._prefilling.append(guest)
            guest.state = RESIDENT
            if not guest.num_preemptions:
                guest.num_cached = entered[guest.request_id]
            if guest.first_scheduled_ns is None:
                guest.first_scheduled_ns = step.now
            self._tell("request_admitted", step, guest)
        if self._prefilling:
            for one in [g for g in self._prefilling if not g.theirs.is_prefill_chunk]:
                self._prefilling.discard(one)
                if one.first_token_ns is None:
                    one.first_token_ns = step.now
        if self._watched:
            self._keep(step, output.num_scheduled_tokens)

    def _keep(self, step: GuestStep, counts: Mapping[str, int]) -> None:
        guests = self._guests
        batch = step.batch = [guests[name] for name in counts if name in guests]
        for guest in batch:
            guest.num_scheduled = counts[guest.request_id]
        step.sampled = [guest for guest in batch if not guest.theirs.is_prefill_chunk]
        step.num_decodes = sum(guest.num_scheduled == 1 for guest in step.sampled)
        step.num_prefill_tokens = sum(counts.values()) - step.num_decodes

    def _finish_step(self) -> None:
        """The last step is over: with asynchronous scheduling it may still be executed, and each counts its token."""
        step, self._step = self._step, None
        if step is None or not self._watched:
            return
        step.end = self._now()
        step.finished = [guest for guest in step.batch if guest.is_finished]
        self._tell("step_finished", step, None)
        for guest in step.batch:
            guest.num_scheduled = 0

    def _tell(self, hook: str, *about: Any) -> None:
        for call, name in getattr(self.decisions, hook):
            try:
                with self._watch:
                    call(*about)
            except Exception:
                self.num_faults += 1
                if self.num_faults <= _WARNED:
                    logger.warning("%s of %s failed, and is ignored", hook, name, exc_info=True)

    def _now(self) -> int:
        return time.perf_counter_ns() - self._start_ns


def _reason(status: RequestStatus) -> str:
    reason = RequestStatus.get_finished_reason(status)
    return {"stop": "stop", "length": "length", "abort": "abort"}.get(str(reason), "error")
