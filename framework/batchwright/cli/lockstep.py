"""Two policies in lockstep: the same requests, the same tokens, until their decisions differ."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from batchwright.backend import Backend
from batchwright.cli.arms import Arm
from batchwright.cli.output import ReportProgress
from batchwright.engine import Engine
from batchwright.errors import BackendError, RequestError
from batchwright.lab import Arrivals, Offer, Workload
from batchwright.lab.clients import Clients

_SHARED = (
    "backend",
    "backend_options",
    "block_size",
    "num_blocks",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "seed",
)
"""Settings that make a backend; arms that agree in them share one, so that a model is loaded once."""


@dataclass(frozen=True)
class Row:
    """One request of a batch.

    Attributes:
        num_tokens: in this step.
        num_computed: before it.
        is_prefill: whether it is no decode.
    """

    num_tokens: int
    num_computed: int
    is_prefill: bool


@dataclass(frozen=True)
class Decision:
    """What one arm did in a step.

    Attributes:
        batch: request id to its row, in batch order.
        preempted: victims in order of eviction.
        num_waiting, num_running, free_blocks: before the step.
        refused: requests that arrived before this step and were refused, with the reason.
    """

    batch: dict[str, Row] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    num_waiting: int = 0
    num_running: int = 0
    free_blocks: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch."""
        return sum(row.num_tokens for row in self.batch.values())

    def same_as(self, other: Decision) -> bool:
        """Whether both did the same: same rows in the same order with the same tokens, same victims, same refusals."""
        mine = [(name, row.num_tokens) for name, row in self.batch.items()]
        theirs = [(name, row.num_tokens) for name, row in other.batch.items()]
        refusals = self.refused.keys() == other.refused.keys()
        return mine == theirs and self.preempted == other.preempted and refusals


class _Both:
    """The arrivals of both arms, which are the same while they do the same.

    Attributes:
        second: what the second arm was offered last.
    """

    def __init__(self, one: Arrivals, two: Arrivals) -> None:
        self._one = one
        self._two = two
        self.second: Offer

    @property
    def waits(self) -> bool:
        return self._one.waits

    @property
    def next_ns(self) -> int | None:
        return self._one.next_ns

    def take(self) -> Offer:
        self.second = self._two.take()
        return self._one.take()

    def ended(self, index: int, end_ns: int) -> None:
        for arrivals in (self._one, self._two):
            arrivals.ended(index, end_ns)


@dataclass(frozen=True)
class Parting:
    """Where two arms part.

    Attributes:
        num_steps: steps in which they did the same.
        time_s: seconds from the start of the run to the step that differs.
        decisions: of both arms in that step; None: they never parted.
        is_complete: the workload was run to its end, or to the difference.
    """

    num_steps: int
    time_s: float
    decisions: tuple[Decision, Decision] | None
    is_complete: bool


class Lockstep:
    """Runs two arms on one workload until they part.

    The first arm executes; while both batches are the same, its tokens and its clock are the second's too, so that
    a difference is a decision and no matter of timing.
    """

    def __init__(
        self, arms: tuple[Arm, Arm], workload: Workload, *, declared: str | int, respect_eos: bool, seed: int
    ) -> None:
        """Makes both engines.

        Raises:
            ConfigError, PluginError, BackendError: one of them cannot be had.
        """
        a, b = arms
        self._own: Backend | None = None
        first = Engine(a.config, origins=a.origins, installed=a.plugins)
        self._backend = first.backend
        shared = all(getattr(a.config, name) == getattr(b.config, name) for name in _SHARED)
        try:
            second = Engine(b.config, backend=self._backend if shared else None, origins=b.origins, installed=b.plugins)
        except BaseException:
            if not shared:  # else it was closed already
                self._backend.close()
            raise
        if not shared:
            self._own = second.backend
        self._engines = (first, second)
        self._total = len(workload)
        try:
            made = [
                Arrivals.at(engine, workload, declared, seed=seed, respect_eos=respect_eos) for engine in self._engines
            ]
        except BaseException:
            self.close()
            raise
        self._start_ns = self._backend.clock.now_ns()
        for arrivals in made:
            arrivals.start(self._start_ns)
        self._coming = _Both(*made)
        self._clients = Clients(self._coming, [first])  # the second arm does the same as the first

    def run(self, max_steps: int | None = None, progress: ReportProgress | None = None) -> Parting:
        """Step both until they differ, or to the end.

        Args:
            max_steps: give up after so many steps.
            progress: told how many requests have arrived.

        Raises:
            PolicyError: a policy broke a rule.
            BackendError: the backend failed in a step.
        """
        clock = self._backend.clock
        first, second = (engine.scheduler for engine in self._engines)
        clients = self._clients
        num_steps = num_arrived = 0
        refused: tuple[dict[str, str], dict[str, str]] = ({}, {})
        while True:
            now = clock.now_ns()
            clients.hear()
            while (when := clients.next_ns) is not None and when <= now:
                self._add((clients.take(), self._coming.second), refused)
                num_arrived += 1
            leaving = clients.leaving(now)
            for request in leaving:
                for engine in self._engines:
                    if engine.scheduler.get(request.request_id) is not None:
                        engine.scheduler.abort(request.request_id)
                self._backend.release([request.request_id])
            if progress is not None:
                progress("requests arrived", num_arrived, self._total)
            if leaving:
                continue
            if refused[0].keys() == refused[1].keys() and not first.has_unfinished():
                if when is None:
                    break
                refused = ({}, {})
                clock.wait_until_ns(when)
                continue
            if num_steps == max_steps:
                return Parting(num_steps, (now - self._start_ns) / 1e9, None, False)
            (batch, one), (other, two) = (
                _schedule(engine, now, reasons) for engine, reasons in zip(self._engines, refused, strict=True)
            )
            if not one.same_as(two):
                return Parting(num_steps, (now - self._start_ns) / 1e9, (one, two), True)
            tokens, failed = self._execute(batch)
            now = clock.now_ns()
            step = first.update(batch, tokens, now, failed)
            second.update(other, tokens, now, failed)
            gone = [r.request_id for r in (*step.finished, *step.preempted)]
            if gone:
                self._backend.release(gone)
            num_steps += 1
            refused = ({}, {})
        return Parting(num_steps, (clock.now_ns() - self._start_ns) / 1e9, None, True)

    def _add(self, offers: tuple[Offer, Offer], refused: tuple[dict[str, str], dict[str, str]]) -> None:
        for engine, offer, reasons in zip(self._engines, offers, refused, strict=True):
            try:
                engine.scheduler.add(offer.request, num_output_tokens=offer.num_output_tokens)
            except RequestError as error:
                reasons[offer.request.request_id] = str(error)
        one = offers[0]
        if one.request.request_id in refused[0]:
            self._clients.refused(one.request, one.place, self._backend.clock.now_ns())
        else:
            self._clients.taken(one)

    def _execute(self, batch: Any) -> tuple[Any, Any]:
        if not len(batch):
            return (), {}
        try:
            result = self._backend.execute(batch)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise BackendError(f"{self._backend.name} failed in step {batch.step_index}: {what}") from error
        return result.token_ids, result.failed

    def close(self) -> None:
        """Close the backends."""
        if self._own is not None:
            self._own.close()
        self._backend.close()


def _schedule(engine: Engine, now: int, refused: dict[str, str]) -> tuple[Any, Decision]:
    scheduler = engine.scheduler
    num_waiting, num_running = len(scheduler.waiting), len(scheduler.running)
    free_blocks = scheduler.blocks.num_free
    batch = scheduler.schedule(now)
    step = scheduler.step
    rows = zip(
        batch.request_ids,
        batch.num_scheduled.tolist(),
        batch.num_computed.tolist(),
        batch.is_decode.tolist(),
        strict=True,
    )
    decision = Decision(
        batch={name: Row(count, computed, not decode) for name, count, computed, decode in rows},
        preempted=[r.request_id for r in step.preempted] if step.index == batch.step_index else [],
        num_waiting=num_waiting,
        num_running=num_running,
        free_blocks=free_blocks,
        refused=refused,
    )
    return batch, decision
