"""What executes batches: the border between the engine and a model, a device or a simulator.

A backend knows nothing of policies, and the engine nothing of devices. The engine builds a
:class:`~batchwright.batch.Batch`, the backend executes it and answers with one token for each row whose pending
tokens are then done, and with the time that took.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from batchwright.batch import Batch
    from batchwright.calibration import CalibrationReport, CalibrationSettings
    from batchwright.config import EngineConfig
    from batchwright.lab.run_record import RunRecord
    from batchwright.lab.workload import Workload
    from batchwright.logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a backend can hold.

    Attributes:
        num_blocks: KV blocks of the pool.
        block_size: tokens in a block.
        max_model_len: tokens of one request at most, prompt and output together.
        vocab_size: token ids are in ``range(vocab_size)``.
        eos_token_ids: sampled tokens that end a request unless it ignores them.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...] = ()


@dataclass(slots=True)
class StepResult:
    """What one executed batch gave.

    Attributes:
        token_ids: one sampled token for each row of ``batch.samples`` that is true, in batch order.
        elapsed_ns: time of the step in nanoseconds, virtual or real.
        failed: request id to cause, for rows whose result must not be used (a NaN among the logits, say);
            their place in ``token_ids`` is kept and its value ignored.
        logprobs: log-probabilities of each of ``token_ids``, in the same order; None in the place of a row whose
            request wants none (``batch.sampling.logprobs``), or altogether where nobody does.
    """

    token_ids: Sequence[int]
    elapsed_ns: int
    failed: Mapping[str, str] = field(default_factory=dict)
    logprobs: Sequence[TokenLogprobs | None] | None = None


Draw = Callable[[int, int, int], "Sequence[int] | NDArray[np.uint32]"]
"""Gives tokens that follow from a request's seed and their places alone: of a seed, the place in its output of the
first, and how many."""


class Ahead:
    """What a batch will give, and the steps after it in which its rows go on decoding, known beforehand.

    Attributes:
        ends_ns: end of each step, in nanoseconds of the clock; the next one starts then.
        draw: makes tokens one by one, when somebody reads them; None: all are in ``token_ids``.
    """

    __slots__ = ("_make", "_token_ids", "draw", "ends_ns")

    def __init__(
        self,
        token_ids: NDArray[np.uint32] | Callable[[], NDArray[np.uint32]],
        ends_ns: Sequence[int],
        draw: Draw | None = None,
    ) -> None:
        """Takes tokens, or what makes them when they are first read, and ends."""
        self._make = token_ids if callable(token_ids) else None
        self._token_ids = None if callable(token_ids) else token_ids
        self.ends_ns = ends_ns
        self.draw = draw

    @property
    def token_ids(self) -> NDArray[np.uint32]:
        """uint32[steps, rows that sample]: the token of each row in each step."""
        if self._token_ids is None:
            assert self._make is not None
            self._token_ids = self._make()
        return self._token_ids

    def upto(self, when_ns: int) -> Ahead:
        """Its steps that end by that time."""
        num = bisect_right(self.ends_ns, when_ns)
        if num == len(self.ends_ns):
            return self
        return Ahead(lambda: self.token_ids[:num], self.ends_ns[:num], self.draw)


class Clock(Protocol):
    """Time in integer nanoseconds since the backend started."""

    def now_ns(self) -> int:
        """Nanoseconds since the start."""
        ...

    def wait_until_ns(self, when_ns: int) -> None:
        """Return at ``when_ns`` or later: sleeps, or moves a virtual clock forward."""
        ...


class VirtualClock:
    """A clock that a simulator moves; waiting takes no time."""

    def __init__(self) -> None:
        self._now_ns = 0

    def now_ns(self) -> int:
        """Nanoseconds since the start."""
        return self._now_ns

    def wait_until_ns(self, when_ns: int) -> None:
        """Move forward to ``when_ns``; a time in the past changes nothing."""
        self._now_ns = max(self._now_ns, when_ns)

    def advance_ns(self, elapsed_ns: int) -> None:
        """Move forward by ``elapsed_ns``."""
        self._now_ns += elapsed_ns


class RealClock:
    """The machine's monotonic clock, from the moment of construction."""

    def __init__(self) -> None:
        self._start_ns = time.perf_counter_ns()

    def now_ns(self) -> int:
        """Nanoseconds since the start."""
        return time.perf_counter_ns() - self._start_ns

    def wait_until_ns(self, when_ns: int) -> None:
        """Sleep until ``when_ns``."""
        delay_ns = when_ns - self.now_ns()
        if delay_ns > 0:
            time.sleep(delay_ns / 1e9)


class IncrementalDecoder(Protocol):
    """Turns the output tokens of one request into text as they come."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Take further token ids; the text that is certain now and was not returned before."""
        ...

    def finish(self) -> str:
        """The text still held back (an incomplete character becomes U+FFFD)."""
        ...


class Tokenizer(Protocol):
    """Text to token ids and back."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the model wants at its start."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        ...

    def decoder(self) -> IncrementalDecoder:
        """A decoder for the output of one request."""
        ...


class ChatPrompt(NamedTuple):
    """A conversation as a model reads it.

    Attributes:
        text: as the model's template writes it.
        token_ids: of that text, with the special tokens that the template has, and no others.
    """

    text: str
    token_ids: list[int]


@runtime_checkable
class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that also knows how its model reads conversations. A backend need not have one."""

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatPrompt:
        """A conversation as a prompt.

        Args:
            messages: each with ``role`` and what else the template reads, such as ``content``.
            options: of :meth:`LLM.chat <batchwright.LLM.chat>`: ``add_generation_prompt``, ``continue_final_message``,
                ``tools``, ``chat_template``, ``chat_template_kwargs``; what is left out has the default that it has
                there.

        Raises:
            InvalidRequestError: the model has no template, or its template does not take these messages.
        """
        ...


class Backend(ABC):
    """Executes batches. Implement ``capacity``, ``submit``, ``collect``; the rest has defaults.

    Attributes:
        name: as a user would write it, such as ``sim:llama-3.1-8b@h100``.
        tokenizer: None where there is no text, as in a simulator.
        clock: where the engine reads time and waits for arrivals.
        gives_logprobs: whether it gives log-probabilities to rows that want them; where it does not, a request that
            wants them is refused.
        notes: what a reader of results should know, in sentences (a GPU whose constants are not calibrated, say).
    """

    name: str
    tokenizer: Tokenizer | None = None
    clock: Clock
    gives_logprobs: bool = False
    notes: Sequence[str] = ()

    @abstractmethod
    def capacity(self) -> Capacity:
        """Size of the KV pool, limits and vocabulary; the same at every call."""

    @abstractmethod
    def submit(self, batch: Batch) -> Any:
        """Start executing ``batch``, after everything submitted before; returns a handle for ``collect``.

        All that is read of the batch is read before this returns.
        """

    @abstractmethod
    def collect(self, handle: Any) -> StepResult:
        """Wait for a submitted batch, and give its result. Each handle is collected once."""

    def execute(self, batch: Batch) -> StepResult:
        """``submit`` and ``collect`` in one."""
        return self.collect(self.submit(batch))

    def look_ahead(self, batch: Batch, most: int, until_ns: int | None) -> Ahead | None:
        """What executing a batch will give, and the steps after it in which its rows go on decoding.

        Each row's token is the input of its next step. Nothing is executed, and the clock stands still; each step is
        what ``submit`` and ``collect`` would give at that time. For backends with a virtual clock.

        Args:
            batch: as the first of these steps will run it. Blocks that these steps fill may lack in its block tables.
            most: steps at most, at least 1; 1 where rows are no decodes.
            until_ns: no step starts at this time of the clock or later; None: no such time.

        Returns:
            None: this backend cannot tell.
        """
        return None

    @property
    def looks_ahead(self) -> bool:
        """Whether ``look_ahead`` tells anything."""
        return type(self).look_ahead is not Backend.look_ahead

    def release(self, request_ids: Sequence[str]) -> None:  # noqa: B027 - most backends keep nothing
        """Forget what is kept for these requests: they ended, or lost their blocks."""

    def predict_s(self, batch: Batch) -> float | None:
        """Estimated seconds of a batch without executing it; None: this backend has no cost estimate."""
        return None

    @property
    def predicts(self) -> bool:
        """Whether ``predict_s`` gives a number."""
        return type(self).predict_s is not Backend.predict_s

    def close(self) -> None:  # noqa: B027 - most backends hold nothing to close
        """Give back threads, memory and devices. The backend is not used afterwards."""


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """What a backend is made from.

    Attributes:
        target: what follows the colon of the backend's name: ``llama-3.1-8b@h100`` of ``sim:llama-3.1-8b@h100``.
        block_size: tokens a block; None leaves it to the backend.
        num_blocks: KV blocks; None lets the backend size the pool by its memory.
        max_model_len: None takes the model's own.
        max_num_seqs: requests of one batch at most, as configured.
        max_num_batched_tokens: tokens of one batch at most, as configured.
        seed: of whatever the backend draws.
        options: the backend's own options, unchecked: the backend refuses what it does not know.
    """

    target: str
    block_size: int | None = None
    num_blocks: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BackendEntry:
    """What ``register_backends`` gives for one name.

    Attributes:
        create: makes the backend; heavy imports happen inside it. Raises ``BackendError`` or ``ConfigError``.
        summary: one line for ``batchwright backends``.
        syntax: how the target is written, such as ``sim:MODEL@GPU[xTP]``.
        available: None, or in one sentence why it cannot run here and what to do (no GPU, no torch).
        virtual_time: whether its clock is virtual: several replicas can then run in one time, and several runs beside
            each other without taking time from each other.
        calibrate: fits its estimates to measurements, for ``batchwright calibrate``; None: there is nothing to fit.
            Raises ``ConfigError``.
        run_arm: of what brings an engine of its own, such as vLLM: runs an arm of the lab, and gives its record, from
            a config, a workload and the options of :func:`~batchwright.lab.run_arm`. ``create`` then says that there is
            nothing to drive. None: Batchwright's engine drives what ``create`` makes.
        packages: that it computes with, by the names they are imported by: what a run gives depends on their releases,
            so ``--resume`` makes it anew after an upgrade.
    """

    create: Callable[[BackendSettings], Backend]
    summary: str
    syntax: str
    available: Callable[[], str | None] = lambda: None
    virtual_time: bool = False
    calibrate: Callable[[CalibrationSettings], CalibrationReport] | None = None
    run_arm: Callable[[EngineConfig, Workload, Mapping[str, Any]], RunRecord] | None = None
    packages: tuple[str, ...] = ()
