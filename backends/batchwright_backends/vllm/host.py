"""Our scheduler behind vLLM's ``SchedulerInterface``: vLLM's workers execute what a policy of ours decides.

``vllm serve MODEL --scheduler-cls batchwright_backends.vllm.host.HostScheduler
--additional-config '{"batchwright": {"policy": "vtc"}}'``
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState, SchedulerInterface  # pyright: ignore[reportMissingImports]
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutputs  # pyright: ignore[reportMissingImports]
from vllm.v1.metrics.stats import SchedulerStats  # pyright: ignore[reportMissingImports]
from vllm.v1.request import RequestStatus  # pyright: ignore[reportMissingImports]

from batchwright.backend import RealClock
from batchwright.config import EngineConfig
from batchwright.detectors import Detectors
from batchwright.effective import effective_settings
from batchwright.errors import BatchwrightError, ConfigError, InvalidRequestError, UnknownRequestError
from batchwright.plugins import load_plugins
from batchwright.predictor import asked
from batchwright.resolve import default_policy, resolve_fallback, resolve_policy, resolve_predictor
from batchwright.scheduler import Scheduler
from batchwright_backends.vllm.answers import Answers
from batchwright_backends.vllm.carried import check_config, check_request
from batchwright_backends.vllm.choosing import own_class
from batchwright_backends.vllm.flights import Flights
from batchwright_backends.vllm.grammars import Grammars
from batchwright_backends.vllm.honoured import of_ranks
from batchwright_backends.vllm.measuring import measure
from batchwright_backends.vllm.seats import NULL_BLOCKS, Seats
from batchwright_backends.vllm.settings import SECTION, is_off, read_settings
from batchwright_backends.vllm.told import Told
from batchwright_backends.vllm.traffic import OBSERVE, is_observing, record_traffic
from batchwright_backends.vllm.translation import hidden_length, repetition_check, translate
from batchwright_backends.vllm.versions import check_version
from batchwright_backends.vllm.watchdog import Watchdog

if TYPE_CHECKING:
    from vllm.config import VllmConfig  # pyright: ignore[reportMissingImports]
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput  # pyright: ignore[reportMissingImports]
    from vllm.v1.kv_cache_interface import KVCacheConfig  # pyright: ignore[reportMissingImports]
    from vllm.v1.outputs import ModelRunnerOutput  # pyright: ignore[reportMissingImports]
    from vllm.v1.request import Request as VllmRequest  # pyright: ignore[reportMissingImports]

    from batchwright.batch import Batch
    from batchwright.request import Request

logger = logging.getLogger("vllm.batchwright")


class HostScheduler(SchedulerInterface):  # type: ignore[misc]  # vLLM has no types where it is not installed
    """Batchwright's scheduler core in the place of vLLM's.

    It keeps its own pool of KV blocks, prefix cache and queues; vLLM's requests are kept beside ours, since workers are
    told of those. Where vLLM schedules asynchronously, as is its default, a step is scheduled while the one before it
    runs. What is not carried is refused when vLLM starts, or request by request.

    Attributes:
        core: the scheduler.
        num_fallbacks: steps, and requests, of which another decided than the policy, by cause: ``raised`` (it broke a
            rule or raised), ``late`` (it took too long).
        policy_ns: time in which steps were built, in nanoseconds.
        connector, ec_connector: None; vLLM asks for them.
        structured_output_manager: vLLM's.
    """

    connector = None
    ec_connector = None

    def __new__(cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> Any:
        """With ``BATCHWRIGHT_VLLM=off`` in the environment this is vLLM's own scheduler, as it would be without us."""
        if not is_off():
            return super().__new__(cls)
        logger.warning("BATCHWRIGHT_VLLM=off: vLLM's own scheduler runs")
        return own_class(vllm_config)(vllm_config, *args, **kwargs)

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: KVCacheConfig,
        structured_output_manager: Any,
        block_size: int,
        hash_block_size: int | None = None,
        mm_registry: Any = None,
        include_finished_set: bool = False,
        log_stats: bool = False,
    ) -> None:
        check_version()
        check_config(vllm_config, kv_cache_config, block_size, hash_block_size or block_size)
        self._settings, values = read_settings(vllm_config.additional_config)
        if is_observing(values):
            raise ConfigError(
                f"policy {OBSERVE!r} leaves vLLM's own scheduler as it is, and HostScheduler takes its place: use "
                "--scheduler-cls batchwright_backends.vllm.scheduler, or policy vllm_v1, which decides the same"
            )
        limits, cache = vllm_config.scheduler_config, vllm_config.cache_config
        config = EngineConfig.parse(
            {
                "on_policy_error": "fallback",  # a server goes on
                "fallback_policy": {"use": "vllm_v1", "scheduling_policy": str(limits.policy)},
                **values,
                "prefix_cache": {"enabled": cache.enable_prefix_caching, **values.get("prefix_cache", {})},
                "max_num_seqs": limits.max_num_seqs,
                "max_num_batched_tokens": limits.max_num_scheduled_tokens or limits.max_num_batched_tokens,
                "max_model_len": vllm_config.model_config.max_model_len,
            },
            f"additional_config.{SECTION}",
        )
        self._caching = bool(config.prefix_cache.enabled)
        self._log_stats = log_stats
        self._clock = RealClock()
        is_async = bool(limits.async_scheduling)
        self._seats = Seats(second_runner=vllm_config.use_v2_model_runner, is_async=is_async)
        self._told = Told(self._seats, log_stats=log_stats)
        self._answers = Answers(
            self._seats, block_size if self._caching else 0, include_finished_set=include_finished_set
        )
        self.structured_output_manager = structured_output_manager
        self._grammars = Grammars(structured_output_manager, self._seats)
        self._paused = PauseState.UNPAUSED
        plugins = load_plugins(config.no_plugins)
        active = resolve_policy(config.policy, plugins)
        predictor = resolve_predictor(config.predict, plugins)
        self._predictor = predictor[1] if predictor is not None else None
        self.effective = effective_settings(config, active, None, predictor)
        detectors = Detectors(config.detectors)
        self.core = Scheduler(
            active,
            num_blocks=kv_cache_config.num_blocks - NULL_BLOCKS,
            block_size=block_size,
            limits=self.effective.limits,
            prefix_cache=self.effective.prefix_cache,
            vocab_size=vllm_config.model_config.get_vocab_size(),
            seed=config.seed,
            on_policy_error=config.on_policy_error,
            fallback_policy=resolve_fallback(config.fallback_policy, plugins),
            plugins=[detectors, self._told, *map(plugins.active, config.plugins)],
            predictor=predictor,
            strict=config.strict,
            default=lambda: default_policy(plugins),
            overlap=is_async,
        )
        self._flights = Flights(self.core, self._seats, self._grammars, is_async=is_async)
        detectors.stop = self.core.stop
        most_ms = self._settings.max_policy_ms
        self._watch: Watchdog | nullcontext[None] = (
            Watchdog(most_ms / 1e3, active.slots.values()) if most_ms is not None else nullcontext()
        )
        self.policy_ns = 0
        self.num_fallbacks: dict[str, int] = {}
        self._noted = (0, 0)  # faults and timeouts that are in it
        measure(
            self,
            "host",
            self._settings,
            log_stats=log_stats,
            register=self.core.register,
            policy=lambda: self.core.policy,
            age_s=lambda request: (self._clock.now_ns() - request.arrival_ns) / 1e9,
        )
        logger.info(
            "Batchwright's scheduler, policy %s: %s blocks of %s tokens",
            active.name,
            self.core.blocks.num_blocks,
            block_size,
        )
        for warning in of_ranks(vllm_config, active):
            logger.warning("%s", warning)
        record_traffic(
            self,
            vllm_config,
            self._settings,
            policy=active.name,
            num_blocks=self.core.blocks.num_blocks,
            block_size=block_size,
            said=lambda request: self.our_request(request.request_id),
        )

    @property
    def batch(self) -> Batch | None:
        """The batch that was scheduled last; None once its results are there."""
        last = self._flights.last
        return None if last is None else last.batch

    # Requests -----------------------------------------------------------------------------------------------

    def add_request(self, request: VllmRequest) -> None:
        """Take a request; one that cannot be taken ends with an error, and the log says why."""
        try:
            self._take(request)
        except BatchwrightError as error:
            self._refuse(request, error)

    def _refuse(self, request: VllmRequest, error: BatchwrightError) -> None:
        logger.warning("request %r is refused: %s", request.request_id, error)
        request.batchwright_error = str(error)  # for records
        self._answers.refuse(request)

    def _take(self, request: VllmRequest) -> None:
        check_request(request, caching=self._caching)
        if self._grammars.any_done:
            self._admit_compiled()  # they can run before this one came
        if self._seats.get(request.request_id) is not None:
            raise InvalidRequestError(f"request id {request.request_id!r} is in use")
        ours = translate(
            request, self._clock.now_ns(), trusted=self._settings.trust_requests, stamps=self._settings.stamps
        )
        self._seats.take(ours, request)
        if not self._grammars.wait_for(ours, request):
            self._admit(ours, request)
        if self._log_stats:
            request.record_event(EngineCoreEventType.QUEUED)

    def _admit(self, ours: Request, theirs: VllmRequest) -> None:
        """Let a request into the core."""
        length = hidden_length(theirs)
        predicted = asked(self._predictor, ours, length, self._clock) if self._predictor is not None else nullcontext()
        try:
            check = self._grammars.checking(theirs, repetition_check(theirs))
            with predicted, self._watch:
                self.core.add(ours, num_output_tokens=length, stop_check=check)
        except BaseException:
            self._seats.drop(ours.request_id)
            raise

    def _admit_compiled(self) -> None:
        """Let in those whose grammars were compiled meanwhile."""
        for ours, theirs in self._grammars.take_done():
            try:
                self._admit(ours, theirs)
            except BatchwrightError as error:
                self._refuse(theirs, error)

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[VllmRequest]:
        """End requests from outside: aborted by a client, or stopped by a string in their text."""
        if isinstance(request_ids, str):
            request_ids = (request_ids,)
        ended = []
        for request_id in list(self._seats) if request_ids is None else dict.fromkeys(request_ids):
            try:
                self.core.abort(request_id)
            except UnknownRequestError:
                seat = self._seats.get(request_id)
                if seat is None:
                    continue
                self._grammars.give_up(seat.request)  # else its last step is under way
            theirs = self._answers.leave(request_id)
            theirs.status = finished_status
            ended.append(theirs)
        return ended

    def their_request(self, request_id: str) -> VllmRequest | None:
        """vLLM's request of that id, while it is unfinished."""
        seat = self._seats.get(request_id)
        return None if seat is None else seat.theirs

    def our_request(self, request_id: str) -> Request | None:
        """Ours of that id, while vLLM's is unfinished."""
        seat = self._seats.get(request_id)
        return None if seat is None else seat.request

    # Steps --------------------------------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """The next step, as vLLM's workers are told of it; asynchronously, while the one before it runs."""
        if self._paused is PauseState.PAUSED_ALL:
            return self._flights.take_off(self._seats.tell(None, ()), None)
        if self._grammars.any_done:
            self._admit_compiled()
        start = self._clock.now_ns()
        with self._watch:
            self._flights.make_way(start)
            batch = self.core.schedule(start)
        self.policy_ns += self._clock.now_ns() - start
        if self.core.num_policy_faults != self._noted[0]:
            self._note_faults()
        told = self._seats.tell(batch, self.core.step.batch if len(batch) else ())
        return self._flights.take_off(told, batch)

    def _note_faults(self) -> None:
        faults, timeouts = self.core.num_policy_faults, getattr(self._watch, "num_timeouts", 0)
        new = faults - self._noted[0]
        late = min(new, timeouts - self._noted[1])
        self._noted = faults, timeouts
        for cause, num in (("late", late), ("raised", new - late)):
            if num:
                self.num_fallbacks[cause] = self.num_fallbacks.get(cause, 0) + num

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take what the workers sampled; what each client is to be told."""
        with self._watch:
            self._flights.land(scheduler_output, model_runner_output, self._answers, self._clock.now_ns())
        outputs = self._answers.outputs()
        stats = self.make_stats()
        if stats is not None:
            # One of the clients is told, even where nobody has an output.
            first = next(iter(outputs.values()), None)
            if first is None:
                first = outputs[0] = EngineCoreOutputs()
            first.scheduler_stats = stats
        return outputs

    # What vLLM asks beside ----------------------------------------------------------------------------------

    def get_request_counts(self) -> tuple[int, int]:
        """Residents, and who waits, be it for a grammar."""
        return len(self.core.running), len(self.core.waiting) + self._grammars.num_compiling

    def get_num_unfinished_requests(self) -> int:
        """Who is here, or about to be told that he cannot be."""
        return 0 if self._paused is PauseState.PAUSED_ALL else len(self._seats) + self._answers.num_refused

    def has_finished_requests(self) -> bool:
        """Whether workers are still to be told of an end."""
        return self._seats.has_finished

    @property
    def num_preemptions(self) -> int:
        """Evictions since the start."""
        return self._told.num_preemptions

    def get_kv_cache_usage(self) -> float:
        """Share of the blocks that somebody holds."""
        return 1 - self.core.blocks.num_free / self.core.blocks.num_blocks

    def make_stats(self) -> SchedulerStats | None:
        """Statistics since the last step; None where vLLM keeps none."""
        if not self._log_stats:
            return None
        return SchedulerStats(
            num_running_reqs=len(self.core.running),
            num_waiting_reqs=len(self.core.waiting),
            num_skipped_waiting_reqs=self._grammars.num_compiling,
            kv_cache_usage=self.get_kv_cache_usage(),
            prefix_cache_stats=self._told.take_prefixes(),
        )

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forget all cached content; whether that could be done: not while somebody holds blocks."""
        if reset_running_requests and len(self.core.running):
            raise NotImplementedError(
                "Batchwright's scheduler does not evict residents to reset the prefix cache: wait until nobody runs"
            )
        if len(self.core.running):
            logger.warning("the prefix cache is not reset: %s requests hold blocks", len(self.core.running))
            return False
        for block in range(self.core.blocks.num_blocks):
            self.core.blocks.unregister(block)
        self._told.forget_prefixes()
        return True

    def reset_encoder_cache(self) -> None:
        """There is none."""

    @property
    def pause_state(self) -> PauseState:
        """Whether steps are run."""
        return self._paused

    def set_pause_state(self, pause_state: PauseState) -> None:
        """Stop or go on."""
        if pause_state is PauseState.PAUSED_NEW:
            raise NotImplementedError(
                "Batchwright's scheduler cannot run residents only: pause everybody (mode 'keep'), or abort them"
            )
        self._paused = pause_state

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """What rows of a step may sample that a grammar constrains; None: there are none."""
        if not scheduler_output.has_structured_output_requests:
            return None
        return self._flights.mask(scheduler_output)

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        """Never: speculative decoding is refused."""
        raise NotImplementedError("speculative decoding is not carried")

    def update_draft_token_ids_in_output(self, draft_token_ids: Any, scheduler_output: SchedulerOutput) -> None:
        """Never: speculative decoding is refused."""
        raise NotImplementedError("speculative decoding is not carried")

    def shutdown(self) -> None:
        """Nothing is held that would have to be given back."""
