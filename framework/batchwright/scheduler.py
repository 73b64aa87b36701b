"""Building batches: the mechanism around a policy.

``schedule()`` asks the policy whom to offer room, makes room, and returns a batch; ``update()`` takes what the backend
sampled. All state is here; a policy only decides. The contract is in ``docs/contract.md``, and as plain code in
``batchwright.testing.reference``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from batchwright.active_policy import ActivePolicy
from batchwright.awaited import Awaited, AwaitedResult, OverlappedBlocks, OverlappedStep
from batchwright.backend import Ahead, StepResult
from batchwright.batch import Batch
from batchwright.batch_builder import BatchBuilder
from batchwright.block_manager import BlockManager
from batchwright.decisions import Decisions
from batchwright.errors import BatchwrightError, UnknownRequestError
from batchwright.feasibility import Feasibility
from batchwright.in_force import PolicyInForce
from batchwright.intake import Intake
from batchwright.leap import Leaper, last_step
from batchwright.limits import Limits
from batchwright.logprobs import TokenLogprobs
from batchwright.neutral import Neutral
from batchwright.policy import Policy
from batchwright.predictor import Predictor
from batchwright.prefix_cache import PrefixCache
from batchwright.request import Request
from batchwright.resolve import default_policy, resolve_fallback, resolve_policy
from batchwright.results import DeferredResult, Over, checked_tokens, take_deferred, take_results, unknown_tokens
from batchwright.settlement import Settlement
from batchwright.state import State
from batchwright.step import Step
from batchwright.step_end import StepEnd
from batchwright.unshared_blocks import UnsharedBlocks

_UNREAD = StepResult((), 0)


class Scheduler:
    """Queues, KV blocks and budgets under one policy. Usable alone, without engine or backend.

    Attributes:
        limits: bounds of a step and of a request.
        blocks: the pool of KV blocks.
        waiting, running: views of the queues; ``running`` holds residents in order of admission.
        step: the present or last step.

    Raises:
        ConfigError, PluginError: a setting or the policy is wrong.
    """

    def __init__(
        self,
        policy: Policy | ActivePolicy | str | Mapping[str, Any] | None = None,
        *,
        num_blocks: int,
        block_size: int,
        limits: Limits | None = None,
        prefix_cache: PrefixCache | None = None,
        eos_token_ids: Iterable[int] = (),
        vocab_size: int | None = None,
        seed: int = 0,
        on_policy_error: Literal["raise", "fallback"] = "raise",
        fallback_policy: Policy | ActivePolicy | str | Mapping[str, Any] | None = None,
        plugins: Sequence[object] = (),
        predictor: tuple[str, Predictor] | None = None,
        strict: bool = False,
        predict_s: Callable[[Batch], float | None] | None = None,
        default: Callable[[], Policy] = default_policy,
        overlap: bool = False,
    ) -> None:
        """Makes an empty scheduler.

        Args:
            policy: an object, or what a config may say; the default policy without it.
            num_blocks: KV blocks of the pool.
            block_size: tokens of a block.
            limits: bounds of a step and of a request.
            prefix_cache: how blocks are shared.
            eos_token_ids: tokens that end a request unless it ignores them.
            vocab_size: token ids must be below it; None: not checked.
            seed: of ``step.rng``, and of requests without a seed.
            on_policy_error: ``raise``, or ``fallback``: another policy builds that step.
            fallback_policy: that other policy, as under ``policy``; without it the default policy, without a history.
            plugins: further objects with hookimpls: observers, wrappers.
            predictor: who predicts output lengths, with its name.
            strict: hooks of policies are shown everything read-only, and a write is an error that names it.
            predict_s: a backend's estimate of a batch's seconds.
            default: makes the default policy, for what a policy does not answer and for fallbacks.
            overlap: ``expect`` and ``settle`` may take the place of ``update``.
        """
        self.limits = limits if limits is not None else Limits()
        cache = prefix_cache if prefix_cache is not None else PrefixCache()
        kind = OverlappedBlocks if overlap else BlockManager if cache.enabled else UnsharedBlocks
        self.blocks = kind(num_blocks, block_size, cache)
        self._step_class = OverlappedStep if overlap else Step
        self._hooks = Decisions(resolve_policy(policy), Neutral(default), strict=strict)
        if predictor is not None:
            self._hooks.register(predictor[1], f"predictor {predictor[0]}")
        for plugin in plugins:
            self._hooks.register(plugin)
        self._state = State(self.limits, self.blocks, self._hooks, seed, predict_s)
        self._builder = BatchBuilder(self._state)
        self._step_end = StepEnd(self._state)
        self._leaper = Leaper(self._state)
        self.waiting, self.running = self._state.waiting, self._state.running
        self._eos = frozenset(eos_token_ids)
        self._vocab_size = vocab_size if vocab_size is not None else 2**31
        self._seed = seed
        self._num_steps = 0
        self._batch: Batch | None = None
        self.step = Step(self._state, 0, 0)
        self._feasible = Feasibility(self.limits, self.blocks, vocab_size)
        # As the scheduler was made, for recordings of it.
        self._on_policy_error, self._fallback = on_policy_error, resolve_fallback(fallback_policy)
        self._in_force = PolicyInForce(
            self._state,
            self._feasible,
            self._leaper.bind,
            on_error=on_policy_error,
            fallback=self._fallback,
        )
        self._intake = Intake(
            self._state, self._feasible, eos_token_ids=self._eos, seed=seed, on_fault=self._in_force.fault
        )
        self._in_force.take(0, 0)

    # Requests -----------------------------------------------------------------------------------------------

    @property
    def num_policy_faults(self) -> int:
        """Faults of policies since the start that were not raised; each is an event of its step."""
        return self._in_force.num_faults

    @property
    def num_observer_faults(self) -> int:
        """Faults in observers since the start; each is an event of its step."""
        return self._state.num_observer_faults

    @property
    def policy(self) -> ActivePolicy:
        """The active policy."""
        return self._hooks.policy

    @property
    def num_arrivals(self) -> int:
        """Requests that were taken since the start."""
        return self._intake.num_arrivals

    def has_unfinished(self) -> bool:
        """Whether anybody waits or is resident."""
        return bool(self._state.requests)

    def get(self, request_id: str) -> Request | None:
        """The unfinished request of that id."""
        return self._state.requests.get(request_id)

    def add(
        self,
        request: Request,
        *,
        num_output_tokens: int | None = None,
        stop_check: Callable[[int], bool] | None = None,
    ) -> None:
        """Take a request; it waits.

        Args:
            request: a new one, used in no other scheduler.
            num_output_tokens: how long it really runs, where a trace is replayed: hidden from policies.
            stop_check: called with each of its tokens; True ends it, and what it raises ends it with an error.

        Raises:
            InvalidRequestError: its id is in use, or a field is out of its range.
            InfeasibleRequestError: it could never fit.
            RefusedRequestError: a policy's ``arrival`` hook refused it.
        """
        self._not_while_building()
        self._intake.take(request, self._in_force.rules, self._num_steps, num_output_tokens, stop_check)

    def abort(self, request_id: str, *, error: str | None = None) -> Request:
        """End a request at once, whatever it is doing; its blocks are free when this returns.

        Between ``schedule`` and ``update`` too: its row is executed, and the token dropped.

        Args:
            request_id: of an unfinished request.
            error: what went wrong with it; its finish reason is then ``error`` instead of ``abort``.

        Raises:
            UnknownRequestError: no such request is waiting or resident (it may have finished).
        """
        self._not_while_building()
        request = self._state.requests.get(request_id)
        if request is None:
            raise UnknownRequestError(f"unknown request {request_id!r}: it is neither waiting nor running here")
        reason = "abort" if error is None else "error"
        request.error = error
        if self._batch is not None:
            self._batch.keep()  # its row is executed
        self.step._aborted = True  # of this step's batch, perhaps, also while its end is told
        self._state.end(request, reason)
        if self._state.awaited is not None:
            self._state.awaited.drop_token(request)
        if self._hooks.request_finished:
            self._state.tell(self._hooks.request_finished, request, reason)
        return request

    # Building a batch ---------------------------------------------------------------------------------------

    def schedule(self, now: int = 0) -> Batch:
        """Build the next step's batch; ``update`` must follow before the next call.

        Args:
            now: nanoseconds of the engine's clock.

        Returns:
            The batch; empty when nobody is here, and after a step that only evicted.

        Raises:
            PolicyError: the policy broke a rule, and ``on_policy_error`` is ``raise``. The batch was undone and the
                queues are whole: the next call goes on.
        """
        if self._batch is not None:
            raise BatchwrightError("schedule() was called again before update() of the last batch")
        if not self._state.requests:
            return Batch(self._num_steps, self.blocks.block_size, (), ())
        hooks, state = self._hooks, self._state
        if hooks.violation is not None:
            self._in_force.raise_violation()
        step = self.step = self._step_class(state, now, self._num_steps)
        if self.blocks.looked_up:
            self.blocks.looked_up.clear()
        if state.awaited is not None:
            state.awaited.ahead = step
        self._num_steps += 1
        if state.events:
            state.gather_events(step)  # from between two steps
        if hooks.step_started:
            for call, name in hooks.step_started:
                try:
                    call(step)
                except Exception as error:
                    state.observer_failed(call, name, error)
            if not state.requests:  # an observer aborted the last one: there is no step
                self._num_steps -= 1
                return Batch(self._num_steps, self.blocks.block_size, (), ())
            if len(state.residents) != step.num_residents:  # observers may abort
                step._take_stock()
        state.building = True
        try:
            if state.steady and hooks.violation is None and self._builder.build_steady(step, self._in_force.rules):
                batch = self._batch = Batch(step.index, self.blocks.block_size, step.batch, (), roster=state.roster)
                return batch
            try:
                self._in_force.build(step, self._builder)
            finally:
                if step._admitted or step.preempted:
                    self._builder.commit(step)
            batch = self._batch = self._make_batch(step)
            if step._admitted and hooks.request_admitted:
                for request in step._admitted:
                    state.tell(hooks.request_admitted, step, request)
            return batch
        finally:
            state.building = False

    def _make_batch(self, step: Step) -> Batch:
        riding = step._num_riding
        counts = [r._scheduled for r in step.batch[riding:]] if riding != len(step.batch) else ()
        roster = self._state.roster if riding else None
        return Batch(step.index, self.blocks.block_size, step.batch, counts, roster=roster)

    def stop(self, why: str) -> None:
        """The policy gets nobody on: an error of the next step, which the default policy builds with ``fallback``."""
        self._in_force.stop(self.step, why)

    # Taking results -----------------------------------------------------------------------------------------

    def update(
        self,
        batch: Batch,
        token_ids: Sequence[int],
        now: int = 0,
        failed: Mapping[str, str] | None = None,
        logprobs: Sequence[TokenLogprobs | None] | None = None,
    ) -> Step:
        """Take what the backend sampled for the last batch.

        Args:
            batch: what the last ``schedule`` returned.
            token_ids: one for each row of ``batch.samples`` that is true, in batch order.
            now: nanoseconds of the engine's clock, after the execution.
            failed: request id to cause: these rows' tokens are not used, and the requests end with an error.
            logprobs: of each of these tokens, where its request wants them; None: of none.

        Returns:
            The step, with what was sampled and what finished.

        Raises:
            BackendError: too few or too many tokens, one that is no token id, or log-probabilities lack that are
                wanted; nothing was touched, ``fail`` the batch or update it again.
        """
        if batch is not self._batch:
            if not len(batch) and self._batch is None:
                return self.step
            raise BatchwrightError("update() takes the batch of the last schedule(), once")
        step = self.step
        ids, packed = checked_tokens(token_ids, self._vocab_size)
        over: Over = []
        step.sampled = take_results(self._state, step, ids, packed, now, failed or {}, over, logprobs)
        step.end = now
        if failed:  # what a failed row wrote must not be shared
            for request in step.batch:
                for block in step._fresh.get(request, ()) if request.request_id in failed else ():
                    self.blocks.unregister(block)
        self._batch = None
        self._step_end.advance(step, over)
        if over or self._hooks.step_finished:
            given = token_ids if type(token_ids) is list else list(ids)
            self._step_end.tell(step, over, StepResult(given, now - step.now, failed or {}, logprobs))
        else:  # nobody reads it
            self._step_end.tell(step, over, _UNREAD)
        return step

    @property
    def can_defer(self) -> bool:
        """Whether ``update_deferred`` may take the place of ``update`` for the last batch."""
        return self._leaper.can_defer()

    def update_deferred(self, batch: Batch, ahead: Ahead, now: int) -> Step:
        """``update`` with tokens that are drawn when somebody reads them, where ``can_defer`` says that nobody must.

        Args:
            batch: what the last ``schedule`` returned.
            ahead: what the backend will give for it; it draws.
            now: nanoseconds of the engine's clock, after the execution.
        """
        if batch is not self._batch or ahead.draw is None:
            raise BatchwrightError("update_deferred() takes the batch of the last schedule(), once, and what draws")
        step = self.step
        over: Over = []
        step.sampled = take_deferred(self._state, step, ahead.draw, now, over)
        step.end = now
        self._batch = None
        self._step_end.advance(step, over)
        self._step_end.tell(step, over, DeferredResult(step, ahead.draw))
        return step

    def fail(self, batch: Batch, error: str, *, retry: bool, now: int = 0) -> Step:
        """The backend failed with the last batch: its requests end with an error, or are evicted to be retried.

        Args:
            batch: what the last ``schedule`` returned.
            error: what went wrong.
            retry: evict instead of ending them; their computed content is not trusted, so they are recomputed.
            now: nanoseconds of the engine's clock.

        Returns:
            The step; among its events what happened.
        """
        if batch is not self._batch:
            raise BatchwrightError("fail() takes the batch of the last schedule(), once")
        self._batch = None
        self._step_end.fail(self.step, self._in_force.rules, error, self._builder, retry=retry, now=now)
        return self.step

    # Several steps at once ----------------------------------------------------------------------------------

    def look_ahead(self) -> tuple[Batch, int] | None:
        """The batch of the next steps, and how many of them may be taken at once; None: the next is to be scheduled.

        The blocks that these steps take are not taken yet, so its block tables may lack some.
        """
        if self._batch is not None or self._state.awaited is not None:
            return None
        most = self._leaper.most(counts_decodes=self._in_force.rules.counts_decodes)
        if most < 1:
            return None
        state = self._state
        return Batch(self._num_steps, self.blocks.block_size, [*state.residents], (), roster=state.roster), most

    def leap(self, batch: Batch, ahead: Ahead, now: int, wait_until_ns: Callable[[int], None]) -> int:
        """Take steps at once, as far as nothing is to be decided in them; records tell them as single steps.

        Args:
            batch: what ``look_ahead`` gave.
            ahead: what the backend gives for its steps.
            now: nanoseconds of the engine's clock.
            wait_until_ns: moves that clock to the end of what is taken, before observers are told.

        Returns:
            How many steps were taken.
        """
        state = self._state
        leap = self._leaper.take(ahead, batch._requests, self._num_steps, now)
        if leap is None:
            return 0
        self._num_steps += len(leap)
        self.step = last_step(state, leap, counts_decodes=self._in_force.rules.counts_decodes)
        wait_until_ns(leap.ends_ns[-1])
        self._leaper.end(leap, self.step)
        return len(leap)

    @property
    def num_leapt(self) -> int:
        """Steps that were taken at once, since the start."""
        return self._leaper.num_steps

    # Overlap ------------------------------------------------------------------------------------------------

    def expect(self, batch: Batch, collect: Callable[[], StepResult] | None, now_ns: Callable[[], int]) -> Step:
        """Take the last batch for executed while it is still under way, so that the next one can be scheduled.

        Each of its rows that samples counts as having got its token, whose value is not known yet. Who ends by its
        length ends now; who ends by its token goes on until ``settle``. Observers are told of the step, and what they
        read of it that is not known yet is waited for.

        Args:
            batch: what the last ``schedule`` returned, submitted to the backend.
            collect: waits for the backend and gives what it sampled; called once. None: ``settle`` is given it, and
                nobody can wait: until then these tokens have the present time, and no value.
            now_ns: nanoseconds of the engine's clock.
        """
        if batch is not self._batch or not isinstance(self.step, OverlappedStep):
            raise BatchwrightError("expect() takes the batch of the last schedule(), once, of a scheduler with overlap")
        state, step = self._state, self.step
        if state.awaited is not None:
            raise BatchwrightError("expect() was called again before settle() of the last batch")
        awaited = Awaited(state, step, batch, self._vocab_size, collect, now_ns)
        over: Over = []
        with awaited.noting_blocks():
            step.sampled = take_results(state, step, *unknown_tokens(len(awaited.rows)), awaited.told_ns, {}, over)
        awaited.ended = dict(over)
        awaited.attach()
        self._batch = None
        self._step_end.advance(step, over)
        self._step_end.tell(step, over, AwaitedResult(awaited))
        return step

    def settle(self, result: StepResult | None = None, now: int = 0, *, retry: bool = False) -> Step:
        """Take the results of the batch that was expected: waits for them, or is given them.

        Who stops with its token, or failed, ends now, and its row is taken out of the batch scheduled meanwhile, which
        ``in_flight`` is from then on. Where the results will never be there (``awaited.fault``) the requests of the
        expected batch end with an error, or are computed again.

        Args:
            result: they, where nobody was named who collects them. A row ahead of who stops, or was aborted since, may
                have been submitted then: its token is not used.
            now: nanoseconds of the engine's clock, after the execution, where they are given.
            retry: after a fault, compute them again.

        Returns:
            The step that was expected, with what was sampled and what finished.

        Raises:
            BackendError: what was given is not as it must be; nothing was touched.
        """
        awaited = self._state.awaited
        if awaited is None:
            raise BatchwrightError("settle() takes the results of a batch that was expected")
        if awaited.is_given != (result is not None):
            raise BatchwrightError("settle() is given the results where expect() was not told who collects them")
        if result is not None:
            awaited.give(result, now)
        awaited.wait()
        ahead = self.step if self._batch is not None else None
        settlement = Settlement(self._state, self._builder, self._in_force.rules, awaited, ahead)
        over = settlement.settle(retry=retry)
        if ahead is not None:
            self._batch = self._make_batch(ahead)
        for request in settlement.revived:  # told of its end they have forgotten it
            self._state.tell(self._hooks.request_arrived, request)
        for request, reason in over:
            self._state.tell(self._hooks.request_finished, request, reason)
        return awaited.step

    @property
    def awaited(self) -> Awaited | None:
        """The results that were expected and are not settled."""
        return self._state.awaited

    # Policies and plugins -----------------------------------------------------------------------------------

    def swap_policy(self, policy: Policy | ActivePolicy | str | Mapping[str, Any]) -> None:
        """Put another policy in force, between two steps; the newcomer builds its state in ``policy_attached``.

        Limits and cache settings stay as they are.

        Raises:
            ConfigError, PluginError: the policy cannot serve here; the old one stays.
        """
        self._not_while_building()
        if self._batch is not None:
            raise BatchwrightError("swap_policy() between schedule() and update(): finish the step first")
        self._in_force.swap(resolve_policy(policy), self.step.end or self.step.now, self._num_steps)

    def register(self, plugin: object, name: str | None = None) -> None:
        """Add a plugin's decision and observer hooks.

        Raises:
            PluginError: a hook of it is misspelt or mistyped, or the name is taken.
        """
        self._hooks.register(plugin, name)
        self._in_force.bind()

    @property
    def in_flight(self) -> Batch | None:
        """The batch that was scheduled and is not updated yet."""
        return self._batch

    def take_events(self) -> list[dict[str, Any]]:
        """Events since the last step, which no step has told."""
        events, self._state.events = self._state.events, []
        return events

    def _not_while_building(self) -> None:
        if self._state.building:
            raise BatchwrightError(
                "queues are frozen while a step is built: add, abort and swap policies between two steps, or from "
                "step_finished and request_finished"
            )
