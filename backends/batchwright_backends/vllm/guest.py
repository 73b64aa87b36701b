"""A policy of ours as a guest in vLLM's own scheduler: it orders queues and sets the bounds of each step.

vLLM's scheduler does all the work, so whatever it carries stays carried. Before each step the policy's hooks are asked,
on a view of vLLM's queues, what they would do (:mod:`batchwright_backends.vllm.plan`); then the queues are ordered, the
budget is set, and who is to be evicted is, so that vLLM does just that. What it did is compared with what was planned.

A policy is not asked where what it declares says what it would decide (:mod:`batchwright_backends.vllm.guest_unasked`).
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
from batchwright_backends.vllm.expressible import check_config, check_policy
from batchwright_backends.vllm.guest_execution import carry_out, otherwise
from batchwright_backends.vllm.guest_observers import WARNED, Observers
from batchwright_backends.vllm.guest_pool import GuestPool
from batchwright_backends.vllm.guest_queue import GuestQueue
from batchwright_backends.vllm.guest_request import Guest
from batchwright_backends.vllm.guest_settings import read_guest_settings, seated
from batchwright_backends.vllm.guest_shadow import Shadow
from batchwright_backends.vllm.guest_step import GuestStep
from batchwright_backends.vllm.guest_unasked import Unasked
from batchwright_backends.vllm.honoured import of_ranks
from batchwright_backends.vllm.lacking import check_scheduler
from batchwright_backends.vllm.plan import Plan, TooLong
from batchwright_backends.vllm.settings import SECTION
from batchwright_backends.vllm.translation import translate
from batchwright_backends.vllm.watchdog import Watchdog

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]
    from vllm.v1.core.sched.output import SchedulerOutput  # pyright: ignore[reportMissingImports]
    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]

    from batchwright.request import Request

logger = logging.getLogger("vllm.batchwright")

_NEVER_NS = 1 << 62
_UNPAUSED = PauseState.UNPAUSED


class GuestMixin:
    """Put in front of vLLM's ``Scheduler`` or ``AsyncScheduler``.

    Attributes:
        num_fallbacks: steps that were not made as the policy wanted, by cause: ``raised`` (it broke a rule or raised),
            ``late`` (it took too long), ``inexpressible`` (vLLM cannot be made to do what it wanted), ``idle`` (it
            wanted nothing though somebody could run), which are made in vLLM's own order; ``otherwise`` (vLLM did
            something else than was planned, for a reason of its own, such as a limit on adapters). Under ``fields``
            requests are counted that said for the policy what cannot be, and are taken as if they had said nothing.
        num_faults: faults of observers.
        num_steps: steps that were made.
        num_unasked: steps of them for which the policy was not asked.
        policy_ns: time spent in the policy.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        me: Any = self
        config: VllmConfig = me.vllm_config
        check_scheduler(self)
        check_config(config)
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
        self.limits = seated(effective_settings(parsed, active).limits, me.max_num_active_reqs)
        notes = check_policy(self.decisions, self.limits, config)
        self._shadow = Shadow()
        self._queue = me.waiting = GuestQueue()
        num_groups = len(me.kv_cache_config.kv_cache_groups)
        self._pool = GuestPool(me.kv_cache_manager, me.block_size, me.hash_block_size, num_groups)
        self._rng = random.Random(parsed.seed)
        self._step: GuestStep | None = None  # the last, whose end observers were not told of
        most_ms = self._own.max_policy_ms
        self._watch: Watchdog | nullcontext[None] = (
            Watchdog(most_ms / 1e3, active.slots.values()) if most_ms is not None else nullcontext()
        )
        self._observers = Observers(self.decisions, self._watch)
        self._unasked = Unasked(self.decisions, self._observers, self.limits, self._shadow, self._pool)
        self._start_ns = time.perf_counter_ns()
        self._num_arrived = 0
        self.num_steps = self.num_unasked = self.policy_ns = 0
        self.num_fallbacks: dict[str, int] = {}
        self._observers.tell("policy_attached", self._view())
        logger.warning("policy %s is a guest in vLLM's %s", active.name, type(self).__mro__[2].__name__)
        for note in notes:
            logger.warning("policy %s, not quite: %s", active.name, note)
        for warning in of_ranks(config, active):
            logger.warning("%s", warning)

    @property
    def num_faults(self) -> int:
        """Faults of observers."""
        return self._observers.num_faults

    # Requests -----------------------------------------------------------------------------------------------

    def add_request(self, request: VllmRequest) -> None:
        """Take a request."""
        me: Any = self
        is_new = request.request_id not in me.requests
        super().add_request(request)  # type: ignore[misc]
        self._unasked.still = False
        if not is_new:
            return
        opaque = request.resumable or request.prompt_token_ids is None or request.sampling_params is None
        ours = None if opaque else self._translate(request)
        if ours is None:
            self._shadow.strange[request.request_id] = request
        else:
            guest = Guest(request, ours, self._num_arrived, self._pool.table, self._shadow.riding)
            self._num_arrived += 1
            self._shadow.arrive(guest)
            self._observers.tell("request_arrived", guest)

    def _translate(self, request: VllmRequest) -> Request | None:
        """As policies see it: vLLM has it already, so what it says that cannot be is left out.

        None: it cannot be shown to them at all, and vLLM serves it beside.
        """
        try:
            return translate(request, self._now(), trusted=self._own.trust_requests, stamps=self._own.stamps)
        except (BatchwrightError, TypeError, ValueError) as error:
            self._note("fields", f"what request {request.request_id!r} says for the policy is not heard: {error}")
        try:
            ours = translate(request, self._now(), trusted=False)
        except (BatchwrightError, TypeError, ValueError) as error:
            self._note("fields", f"request {request.request_id!r} is not shown to the policy: {error}")
            return None
        if self._own.stamps is not None and not self._own.trust_requests:
            ours.priority = 0  # vLLM's own is not stamped
        return ours

    def _free_request(self, request: VllmRequest, *args: Any, **kwargs: Any) -> Any:
        """It has ended, one way or another."""
        freed = super()._free_request(request, *args, **kwargs)  # type: ignore[misc]
        self._unasked.still = False
        guest = self._shadow.leave(request.request_id)
        if guest is not None:
            guest.finish_reason = _reason(request.status)
            self._observers.tell("request_finished", guest, guest.finish_reason)
        return freed

    def _preempt_request(self, request: VllmRequest, *args: Any, **kwargs: Any) -> None:
        """It loses its blocks: by the policy's wish, or by vLLM's."""
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]
        self._unasked.still = False
        self._shadow.evict(request.request_id)

    # Steps --------------------------------------------------------------------------------------------------

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """The next step: as the policy wants it, else in vLLM's own order."""
        me: Any = self
        if self._step is not None:
            self._finish_step(self._step)
        if me._pause_state is not _UNPAUSED:
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        if self._unasked.holds(me):
            return self._go_on(super().schedule, args, kwargs)  # type: ignore[misc]
        before = time.perf_counter_ns()
        step = self._step = self._view()
        self._observers.tell("step_started", step)
        plan = self._plan(step)
        self.policy_ns += time.perf_counter_ns() - before
        self.num_steps += 1
        schedule = super().schedule  # type: ignore[misc]
        if plan is None:
            output = schedule(*args, **kwargs)
        else:
            output = carry_out(me, self._shadow, self._queue, plan, lambda: schedule(*args, **kwargs))
            if why := otherwise(plan, self._shadow, output):
                self._note("otherwise", f"vLLM made step {step.index} otherwise than it was planned: {why}")
        num = len(me.running)
        moved = self._take_note(step, output)
        self._unasked.still = (
            plan is not None
            and not moved
            and not self._shadow.prefilling
            and len(output.num_scheduled_tokens) == output.total_num_scheduled_tokens == num
        )
        return output

    def _go_on(self, schedule: Any, args: Any, kwargs: Any) -> SchedulerOutput:
        """A step for which the policy is not asked."""
        step = None
        if self._unasked.tells:
            before = time.perf_counter_ns()
            step = self._step = self._view()
            self._observers.tell("step_started", step)
            self.policy_ns += time.perf_counter_ns() - before
        self.num_steps += 1
        self.num_unasked += 1
        self._queue.shut()
        try:
            output = schedule(*args, **kwargs)
        finally:
            self._queue.close()
        if self._shadow.evicted:
            self._take_note(step if step is not None else self._view(), output)
        elif step is not None:
            self._observers.keep(step, self._shadow, output)
        return output

    def _view(self) -> GuestStep:
        shadow = self._shadow
        self._pool.new_step()
        return GuestStep(
            self.num_steps,
            self._now(),
            self.limits,
            shadow.waiting,
            shadow.residents,
            shadow.prefilling,
            self._pool,
            self._rng,
        )

    def _plan(self, step: GuestStep) -> Plan | None:
        """What the policy wants; None: vLLM's own order holds."""
        self._shadow.block(self)
        if not len(step.waiting) and not len(step.running):
            return None
        most = self._own.max_policy_ms
        until = _NEVER_NS if most is None else time.perf_counter_ns() + round(most * 1e6)
        plan = Plan(step, self.decisions, self._pool, self._shadow.riding, until)
        cause = why = None
        try:
            with self._watch:
                plan.make()
            if plan.num_tokens == 0 and not plan.victims and not self._shadow.any_held():
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
            self._pool.watch()
        self._unasked.failed = cause is not None
        if cause is None:
            return plan
        self._note(cause, f"step {step.index} is made in vLLM's own order ({cause}): {why}")
        return None

    def _note(self, cause: str, message: str) -> None:
        self.num_fallbacks[cause] = num = self.num_fallbacks.get(cause, 0) + 1
        if num <= WARNED:
            logger.warning("%s", message)

    def _take_note(self, step: GuestStep, output: SchedulerOutput) -> bool:
        """What vLLM made of it, told to the observers; whether anybody was admitted or evicted."""
        shadow, tell = self._shadow, self._observers.tell
        evicted = shadow.take_evicted()
        if evicted:
            step.preempted = evicted
            for victim in evicted:
                tell("request_preempted", step, victim, None)
        cached = output.scheduled_cached_reqs
        entered = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        if cached.resumed_req_ids:
            done = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            entered |= {name: done[name] for name in cached.resumed_req_ids}
        me: Any = self
        for request in me.running[len(me.running) - len(entered) :]:  # in order of admission
            guest = shadow.guests.get(request.request_id)
            if guest is None:
                continue
            shadow.admit(guest)
            if not guest.num_preemptions:
                guest.num_cached = entered[guest.request_id]
            if guest.first_scheduled_ns is None:
                guest.first_scheduled_ns = step.now
            tell("request_admitted", step, guest)
        if shadow.prefilling:
            for one in [g for g in shadow.prefilling if not g.theirs.is_prefill_chunk]:
                shadow.prefilling.discard(one)
                if one.first_token_ns is None:
                    one.first_token_ns = step.now
        self._observers.keep(step, shadow, output)
        return bool(evicted or entered)

    def _finish_step(self, step: GuestStep) -> None:
        self._step = None
        self._observers.finish(step, self._shadow, self._now())

    def _now(self) -> int:
        return time.perf_counter_ns() - self._start_ns


def _reason(status: RequestStatus) -> str:
    reason = RequestStatus.get_finished_reason(status)
    return {"stop": "stop", "length": "length", "abort": "abort"}.get(str(reason), "error")
