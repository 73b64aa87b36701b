"""The engine: a scheduler and a backend, step by step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchwright.answers import Answers
from batchwright.backend import Backend, Capacity, Clock, VirtualClock
from batchwright.backend_choice import check_fit, make_backend, narrowed
from batchwright.batch import Batch
from batchwright.config import EngineConfig
from batchwright.detectors import Detectors
from batchwright.effective import Effective, effective_settings
from batchwright.errors import BatchwrightError, ConfigError, InvalidRequestError
from batchwright.limits import Limits
from batchwright.outputs import OutputText, RequestOutput
from batchwright.overlap import Overlap
from batchwright.plugins import Plugins, load_plugins
from batchwright.policy import Policy
from batchwright.predictor import Predictor, asked
from batchwright.request import Request
from batchwright.resolve import default_policy, resolve_fallback, resolve_policy, resolve_predictor
from batchwright.scheduler import Scheduler
from batchwright.settlement import describe
from batchwright.step import Step

if TYPE_CHECKING:
    from batchwright.trace import TracedStep

MAX_RETRIES = 3
"""Failures of the backend in a row after which a batch's requests fail, ``on_backend_error: retry`` or not."""


class Engine:
    """Runs requests under a policy on a backend.

    ``add_request``, then ``step`` while ``has_unfinished``; each step returns what it brought. Not thread-safe: see
    :class:`~batchwright.AsyncEngine` for many callers.

    Attributes:
        config: as given.
        effective: the settings in force, with their sources.
        backend: what executes.
        capacity: what the backend holds.
        scheduler: the mechanism; usable alone.
        plugins: what is installed.
        predictor: who predicts output lengths; None: nobody.
        on_abort: called with the last output of a request that is aborted between two steps; one that is aborted
            within a step, by an observer, is among the outputs of that step.
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        *,
        backend: Backend | None = None,
        policy: Policy | None = None,
        plugins: Sequence[object] = (),
        origins: Mapping[str, str] | None = None,
        installed: Plugins | None = None,
    ) -> None:
        """Makes backend and scheduler.

        Args:
            config: settings; the defaults without it.
            backend: one that exists already, in the place of ``config.backend``.
            policy: an object, in the place of ``config.policy``.
            plugins: further objects with hookimpls: observers, wrappers.
            origins: where the config's values come from, for ``effective``.
            installed: plugins loaded already; else they are loaded here.

        Raises:
            ConfigError, PluginError, BackendError: something of it cannot be had; the message says what to do.
        """
        if config is not None and not isinstance(config, EngineConfig):
            raise ConfigError(
                f"config must be an EngineConfig, not {config!r}; EngineConfig.parse makes one of a mapping"
            )
        self.config = config = config if config is not None else EngineConfig()
        if config.replicas > 1:
            raise ConfigError(
                f"replicas is {config.replicas}, and an Engine is one: run them with batchwright run or ab, "
                "batchwright.lab.run_arm, or batchwright.Fleet; or set replicas to 1"
            )
        self.plugins = installed if installed is not None else load_plugins(config.no_plugins)
        active = resolve_policy(policy if policy is not None else config.policy, self.plugins)
        predictor = resolve_predictor(config.predict, self.plugins)
        self.predictor: Predictor | None = predictor[1] if predictor is not None else None
        self.effective: Effective = effective_settings(config, active, origins, predictor)
        listed = [self.plugins.active(name) for name in config.plugins]
        self.backend = backend if backend is not None else make_backend(config, self.effective.limits, self.plugins)
        try:
            self.capacity: Capacity = self.backend.capacity()
            self.limits: Limits = narrowed(self.effective, self.capacity, self.backend.name)
            detectors = Detectors(config.detectors)
            check_fit(config, self.backend, self.capacity)
            self.scheduler = Scheduler(
                active,
                num_blocks=self.capacity.num_blocks,
                block_size=self.capacity.block_size,
                limits=self.limits,
                prefix_cache=self.effective.prefix_cache,
                eos_token_ids=self.capacity.eos_token_ids,
                vocab_size=self.capacity.vocab_size,
                seed=config.seed,
                on_policy_error=config.on_policy_error,
                fallback_policy=resolve_fallback(config.fallback_policy, self.plugins),
                plugins=[detectors, *listed, *plugins],
                predictor=predictor,
                strict=config.strict,
                predict_s=self.backend.predict_s if self.backend.predicts else None,
                default=lambda: default_policy(self.plugins),
                overlap=config.overlap,
            )
            detectors.stop = self.scheduler.stop
        except BaseException:
            self.backend.close()
            raise
        self._answers = Answers(self._text_failed)
        self._failures = 0
        self._stepping = False
        self.on_abort: Callable[[RequestOutput], None] | None = None
        self._overlap = Overlap(self) if config.overlap else None
        self._looks_ahead = self.backend.looks_ahead and isinstance(self.backend.clock, VirtualClock)

    @property
    def clock(self) -> Clock:
        """The backend's clock."""
        return self.backend.clock

    @property
    def policy_name(self) -> str:
        """Name of the active policy."""
        return self.scheduler.policy.name

    def has_unfinished(self) -> bool:
        """Whether anybody waits or runs, a step is under way (with ``overlap``), or a last output is to be given still.

        The last is so after a step that aborted somebody and raised.
        """
        if self.scheduler.has_unfinished() or self._answers.any_aborted:
            return True
        return self._overlap is not None and self._overlap.is_under_way

    def add_request(self, request: Request, *, num_output_tokens: int | None = None, prompt: str | None = None) -> None:
        """Take a request.

        Args:
            request: a new one.
            num_output_tokens: how long it really runs, where a trace is replayed: hidden from policies.
            prompt: its text, to be given back with the output.

        Raises:
            InvalidRequestError: a field is out of its range, or it asks for what the backend has not: stop strings
                without a tokenizer, log-probabilities.
            InfeasibleRequestError: it could never fit; with its numbers.
            RefusedRequestError: the policy refused it.
        """
        if self._owes(request.request_id):
            raise InvalidRequestError(
                f"request id {request.request_id!r} is in use: the last output of that request is still to come"
            )
        stop = tuple(request.sampling_params.stop)
        tokenizer = self.backend.tokenizer
        if stop and tokenizer is None:
            raise InvalidRequestError(
                f"request {request.request_id!r}: stop strings need text, and {self.backend.name} has no tokenizer; "
                "use stop_token_ids"
            )
        if request.sampling_params.logprobs is not None and not self.backend.gives_logprobs:
            raise InvalidRequestError(
                f"request {request.request_id!r} wants log-probabilities, and {self.backend.name} gives none; leave "
                "logprobs at None, or use a backend that runs a model, such as cpu:MODEL"
            )
        text = OutputText(tokenizer.decoder(), stop) if tokenizer is not None else None
        check = text.push if stop and text is not None else None
        if self.predictor is None:
            self.scheduler.add(request, num_output_tokens=num_output_tokens, stop_check=check)
        else:
            with asked(self.predictor, request, num_output_tokens, self.clock):
                self.scheduler.add(request, num_output_tokens=num_output_tokens, stop_check=check)
        self._answers.take(request.request_id, text, prompt)

    def _owes(self, request_id: str) -> bool:
        """Whether a request of that id has ended and its last output was not given: it would get the other's text."""
        if self._overlap is not None and self._overlap.holds(request_id):
            return True
        return self._answers.owes(request_id, stepping=self._stepping)

    def advance(self, *, deferred: bool = False) -> Step | None:
        """One step without outputs, for drivers that read what they need through observers.

        Args:
            deferred: a simulator need not draw the step's tokens before somebody reads them, where nothing depends on
                them. What comes of it is the same.

        Returns:
            The step as executed; None when nobody is here. With ``overlap`` the step before the one that was submitted;
            None with the first.

        Raises:
            PolicyError: with ``on_policy_error: raise``; the engine is whole and can go on.
        """
        if self._overlap is not None:
            return self._overlapped(self._overlap, with_outputs=False)[0]
        step = self._advanced(deferred=deferred and self._looks_ahead)
        if self._answers.any_aborted or (step is not None and step.finished):
            self.outputs_of(step, wanted=False)
        return step

    def _advanced(self, *, deferred: bool = False) -> Step | None:
        if not self.scheduler.has_unfinished():
            return None
        self._stepping = True
        try:
            return self._step(deferred=deferred)
        except BaseException:  # a PolicyError, say, or an interrupt: nothing is lost, and evictions stay
            if self.scheduler.in_flight is not None:  # its batch can be computed again
                batch = self.scheduler.in_flight
                self.scheduler.fail(batch, "interrupted", retry=True, now=self.clock.now_ns())
            raise
        finally:
            self._stepping = False
            step = self.scheduler.step
            if step.finished or step.preempted:
                self.release(step)

    def leap(self, until_ns: int | None = None, max_steps: int | None = None, *, whole: bool = False) -> int:
        """Take the next steps at once, as far as nothing can be decided in them; for those who drive by ``advance``.

        That is possible on a simulator. What comes of them is what single steps would bring; observers of single steps,
        and requests with stop strings, keep it from happening. It ends with the step in which somebody ends by its
        length, and before blocks run out.

        Args:
            until_ns: no step starts at this time of the engine's clock or later: when the next request arrives.
            max_steps: so many steps at most.
            whole: no step ends after ``until_ns`` either.

        Returns:
            How many steps were taken; 0: call ``advance``.
        """
        if not self._looks_ahead or max_steps == 0:
            return 0
        found = self.scheduler.look_ahead()
        if found is None:
            return 0
        batch, most = found
        now = self.clock.now_ns()
        ahead = self.backend.look_ahead(batch, most if max_steps is None else min(most, max_steps), until_ns)
        if ahead is not None and whole and until_ns is not None:
            ahead = ahead.upto(until_ns)
        if ahead is None:
            return 0
        self._stepping = True
        try:
            taken = self.scheduler.leap(batch, ahead, now, self.clock.wait_until_ns)
        finally:
            self._stepping = False
        if taken and (self.scheduler.step.finished or self._answers.any_aborted):
            self.release(self.scheduler.step)
            self.outputs_of(self.scheduler.step, wanted=False)
        return taken

    def _overlapped(
        self, overlap: Overlap, *, schedule: bool = True, with_outputs: bool = True
    ) -> tuple[Step | None, list[RequestOutput]]:
        self._stepping = True
        try:
            return overlap.run(schedule=schedule, with_outputs=with_outputs)
        finally:
            self._stepping = False

    def collect(self) -> list[RequestOutput]:
        """With ``overlap``: take the results of the step that is under way, and schedule none; its outputs.

        ``has_unfinished`` says afterwards whether anybody waits or runs. Without overlap nothing is ever under way.
        """
        return self._overlapped(self._overlap, schedule=False)[1] if self._overlap is not None else []

    def _step(self, *, deferred: bool = False) -> Step:
        scheduler, backend = self.scheduler, self.backend
        clock = backend.clock
        batch = scheduler.schedule(clock.now_ns())
        if not batch.num_tokens:
            return scheduler.update(batch, (), clock.now_ns())
        try:
            ahead = backend.look_ahead(batch, 1, None) if deferred and scheduler.can_defer else None
            if ahead is not None and ahead.draw is not None:
                end = ahead.ends_ns[0]
                clock.wait_until_ns(end)
                step = scheduler.update_deferred(batch, ahead, end)
            else:
                result = backend.execute(batch)
                step = scheduler.update(batch, result.token_ids, clock.now_ns(), result.failed, result.logprobs)
        except Exception as error:
            if scheduler.in_flight is None:
                raise
            return self.backend_failed(batch, error)
        self._failures = 0
        return step

    def release(self, step: Step) -> None:
        """Let the backend forget who ended or was evicted with a step."""
        if step.finished or step.preempted:
            self.backend.release([r.request_id for r in (*step.finished, *step.preempted)])

    def backend_failed(self, batch: Batch, error: Exception) -> Step:
        """The backend failed with the last batch."""
        return self.scheduler.fail(batch, describe(error), retry=self.count_failure(), now=self.clock.now_ns())

    def count_failure(self) -> bool:
        """The backend failed once more; whether what it failed with is computed again."""
        self._failures += 1
        return self.config.on_backend_error == "retry" and self._failures <= MAX_RETRIES

    def count_success(self) -> None:
        """The backend executed a step."""
        self._failures = 0

    def step(self) -> list[RequestOutput]:
        """One step; what it brought, for each request that got a token or ended, in batch order.

        With ``overlap`` a call submits one step and brings what the step before it did; the first brings nothing.
        """
        if self._overlap is not None:
            return self._overlapped(self._overlap)[1]
        return self.outputs_of(self._advanced())

    def outputs_of(self, step: Step | None, *, wanted: bool = True) -> list[RequestOutput]:
        """What a step brought, and who was aborted within it or since; unless it is ``wanted`` only dropped."""
        return self._answers.of_step(step, wanted=wanted)

    def _text_failed(self, request: Request, why: str) -> None:
        self.scheduler.abort(request.request_id, error=why)
        self.backend.release([request.request_id])

    def trace(self) -> Generator[TracedStep, None, None]:
        """Step while anybody is there, and give each step as it was: queues, batch, blocks, and why who ran or did not.

        Decisions are the same as without it. Requests may be added between two steps. ``step.outputs`` is what ``step``
        would have returned. When the iterator is closed, or at its end, nothing of it is left in the engine.

        Raises:
            PolicyError: as ``step``.
        """
        from batchwright.trace.tracer import trace

        return trace(self)

    def abort(self, request_id: str) -> RequestOutput:
        """End a request at once; its blocks are free when this returns. What it has brought so far is returned.

        Raises:
            UnknownRequestError: no such request is waiting or running.
        """
        awaited = self.scheduler.awaited
        request = self.scheduler.abort(request_id)
        self.backend.release([request_id])
        is_new = awaited is not None and awaited.has_token(request)  # somebody waited for it before it was told
        output = self._answers.of_aborted(request, is_new=is_new, within=self._stepping)
        if not self._stepping and self.on_abort is not None:
            self.on_abort(output)
        return output

    def swap_policy(self, policy: Policy | str | Mapping[str, Any]) -> None:
        """Put another policy in force; no request is lost, no token changes. Limits and cache settings stay.

        Raises:
            ConfigError, PluginError: the policy is unknown, or cannot serve here; the old one stays.
        """
        self.scheduler.swap_policy(resolve_policy(policy, self.plugins))

    def close(self) -> None:
        """Abort what is unfinished and close the backend. A step that is under way is waited for."""
        try:
            self.collect()
            for request_id in [r.request_id for r in (*self.scheduler.running, *self.scheduler.waiting)]:
                try:
                    self.abort(request_id)
                except BatchwrightError:  # a step was interrupted; the backend goes away anyhow
                    break
        finally:
            self.backend.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
