"""The batch of one step, as arrays.

A backend reads a batch through these arrays and never walks request objects. Rows are requests in batch order; each
brings one or more tokens, and all rows' tokens lie flat behind each other. Decodes and chunks of prompts mix freely.
An array is built when it is first read and kept: read what you need before the next step is scheduled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from batchwright.kept import kept
from batchwright.request import Request

if TYPE_CHECKING:
    from batchwright.roster import Roster

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SamplingArrays:
    """Sampling parameters of the rows that sample, in batch order; m rows.

    Attributes:
        temperature: float32[m]; 0 is greedy.
        top_k: int32[m]; 0: all tokens.
        top_p: float32[m].
        min_p: float32[m].
        seed: uint64[m].
        output_index: int64[m], place of the sampled token in the request's output, from 0. A draw is a function of
            (seed, output_index), so that batching and preemption change no token.
        logprobs: int32[m]; -1: the request wants no log-probabilities; 0: that of its sampled token; above: of so many
            likeliest tokens beside it. See :class:`~batchwright.TokenLogprobs`.
    """

    temperature: NDArray[np.float32]
    top_k: Ints
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seed: NDArray[np.uint64]
    output_index: NDArray[np.int64]
    logprobs: Ints


class Row(NamedTuple):
    """A row of a batch.

    Attributes:
        num_computed: its tokens whose K and V exist before the step.
        num_scheduled: its tokens in this step.
        samples: whether it samples.
        seed, output_index: as in :class:`SamplingArrays`.
    """

    num_computed: int
    num_scheduled: int
    samples: bool
    seed: int
    output_index: int


class Riders:
    """The first rows of a batch, where they are decodes that go on together; read them while the batch is read.

    Attributes:
        who: equal in two batches of one engine: the same rows.
        when: how far they are: between two batches with the same ``who`` each row grows by the difference.
    """

    __slots__ = ("_num", "_roster", "when", "who")

    def __init__(self, roster: Roster) -> None:
        """Takes the roster that they are, with somebody on it."""
        self._roster = roster
        self._num = roster.count
        self.who = roster.version
        self.when = roster.steps

    def __len__(self) -> int:
        return self._num

    @property
    def num_tokens(self) -> int:
        """Tokens that they attend to, in all."""
        return self._roster.num_tokens

    @property
    def most_tokens(self) -> int:
        """The most that one of them attends to."""
        return self._roster.most_tokens

    def draws(self) -> list[tuple[int, int]]:
        """Of each its seed, and the place in its output of the token that it samples: for few of them."""
        return [(r._seed, self.when + r._offset - r.num_prompt_tokens) for r in self._roster.members]

    @property
    def context_lens(self) -> Ints:
        """int32[n]: see ``Batch``."""
        return self._roster.arrays.lengths(self._roster.order, self.when)

    @property
    def seeds(self) -> NDArray[np.uint64]:
        """uint64[n]: see ``SamplingArrays``."""
        return self._roster.arrays.sampling("seed", self._roster.order)

    @property
    def output_indices(self) -> NDArray[np.int64]:
        """int64[n]: see ``SamplingArrays``."""
        return self._roster.arrays.num_outputs(self._roster.order, self.when)


class Batch:
    """What one step runs: n rows, T tokens.

    Attributes:
        step_index: index of the step.
        block_size: tokens of a KV block.
        num_tokens: T, tokens of all rows.
        num_riding: rows, its first, that are decodes which go on together.
    """

    def __init__(
        self,
        step_index: int,
        block_size: int,
        requests: Sequence[Request],
        num_scheduled: Sequence[int],
        *,
        roster: Roster | None = None,
    ) -> None:
        """Takes rows and their tokens.

        Args:
            step_index: index of the step.
            block_size: tokens of a KV block.
            requests: the rows.
            num_scheduled: tokens of each row that is not of the roster.
            roster: its decodes are the first rows, one token each; None: all rows are in ``num_scheduled``.
        """
        self.step_index = step_index
        self.block_size = block_size
        self._requests = requests
        self._roster = roster
        if roster is not None:
            self._steps = roster.steps
            self.num_tokens = self.num_riding = roster.count
        else:
            self._steps = self.num_tokens = self.num_riding = 0
        self._counts = num_scheduled
        if num_scheduled:
            self.num_tokens += sum(num_scheduled)

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def riders(self) -> Riders | None:
        """Its first rows, where they are decodes that go on together."""
        return Riders(self._roster) if self._roster is not None and self.num_riding else None

    def rows_behind(self) -> Iterator[Row]:
        """The rows behind the riders, as plain numbers: for a backend that needs little, and of few rows."""
        for request, num in zip(self._others, self._counts, strict=True):
            first = request.num_computed
            samples = first + num == request.num_tokens
            yield Row(first, num, samples, request._seed, request.num_output_tokens)

    def keep(self) -> None:
        """Make the arrays now: somebody of the batch is about to lose its blocks."""
        _ = self.token_ids, self.slots, self.context_lens, self.samples, self.is_decode, self.sampling

    @kept
    def _order(self) -> NDArray[np.intp]:
        """The rows of the roster."""
        return self._roster.order if self._roster is not None else _NOBODY

    @kept
    def _others(self) -> Sequence[Request]:
        """The rows behind those of the roster."""
        return self._requests[self.num_riding :] if self.num_riding else self._requests

    @kept
    def request_ids(self) -> list[str]:
        """Id of each row."""
        return [r.request_id for r in self._requests]

    @kept
    def num_scheduled(self) -> Ints:
        """int32[n]: tokens of each row in this step."""
        return self._behind(np.ones(self.num_riding, dtype=np.int32), self._counts)

    @kept
    def num_computed(self) -> Ints:
        """int32[n]: tokens of each row whose K and V lie in its blocks before this step."""
        return self._behind(self._lengths - 1, [r.num_computed for r in self._others])

    @kept
    def _lengths(self) -> Ints:
        """int32: tokens of the rows of the roster."""
        return self._roster.arrays.lengths(self._order, self._steps) if self._roster is not None else _no_ints()

    def _behind(self, first: NDArray[Any], others: Sequence[Any]) -> NDArray[Any]:
        """Values of the rows of the roster, and behind them those of the others."""
        if not others:
            return first
        rest = np.array(others, dtype=first.dtype)
        return np.concatenate((first, rest)) if len(first) else rest

    @kept
    def context_lens(self) -> Ints:
        """int32[n]: tokens that the last token of each row attends to, itself included."""
        return self.num_computed + self.num_scheduled if self._counts else self._lengths

    @kept
    def query_starts(self) -> Ints:
        """int32[n + 1]: row i's tokens are ``query_starts[i]:query_starts[i + 1]`` of the flat arrays."""
        if not self._counts:
            return np.arange(self.num_riding + 1, dtype=np.int32)
        starts = np.zeros(len(self) + 1, dtype=np.int32)
        np.cumsum(self.num_scheduled, out=starts[1:])
        return starts

    @kept
    def samples(self) -> NDArray[np.bool_]:
        """bool[n]: rows that sample a token, since nothing is pending after this step."""
        ends = [r.num_computed + n == r.num_tokens for r, n in zip(self._others, self._counts, strict=True)]
        return self._behind(np.ones(self.num_riding, dtype=np.bool_), ends)

    @kept
    def is_decode(self) -> NDArray[np.bool_]:
        """bool[n]: rows that continue a request with its one last sampled token."""
        return self._behind(np.ones(self.num_riding, dtype=np.bool_), [not r.is_prefilling for r in self._others])

    @kept
    def token_ids(self) -> Ints:
        """int32[T]: the tokens to compute."""
        parts = [self._roster.last_tokens(self._order)] if self._roster is not None else []
        for request, n in zip(self._others, self._counts, strict=True):
            first = request.num_computed
            parts.append(np.frombuffer(request._tokens[first : first + n], dtype=np.int32))
        return np.concatenate(parts) if len(parts) > 1 else parts[0] if parts else _no_ints()

    @kept
    def positions(self) -> Ints:
        """int32[T]: place of each token in its request, from 0."""
        if not self._counts:
            return self.num_computed
        offset = np.repeat(self.num_computed - self.query_starts[:-1], self.num_scheduled)
        return (np.arange(self.num_tokens, dtype=np.int32) + offset).astype(np.int32, copy=False)

    @kept
    def block_tables(self) -> Ints:
        """int32[n, widest]: KV blocks of each row in order; unused places are 0."""
        first = self._roster.arrays.block_tables(self._order) if self._roster is not None else None
        if first is not None and not self._counts:
            return first
        tables = [r.block_table for r in self._others]
        widest = max(first.shape[1] if first is not None else 0, max(map(len, tables), default=0))
        out = np.zeros((len(self), widest), dtype=np.int32)
        if first is not None:
            out[: self.num_riding, : first.shape[1]] = first
        for row, table in zip(out[self.num_riding :], tables, strict=True):
            row[: len(table)] = table
        return out

    @kept
    def slots(self) -> NDArray[np.int64]:
        """int64[T]: where each token's K and V go: block id * block_size + offset in the block."""
        size, tables, positions = self.block_size, self.block_tables, self.positions
        if size & (size - 1):
            number = positions // size
            offset = positions - number * size
        else:  # a power of two, as most often
            number, offset = positions >> (size.bit_length() - 1), positions & (size - 1)
        first = _up_to(len(self)) * tables.shape[1]  # of each row, in the tables laid flat
        if self._counts:
            first = np.repeat(first, self.num_scheduled)
        first += number
        slots: NDArray[np.int64] = tables.reshape(-1).take(first).astype(np.int64)
        slots *= size
        slots += offset
        return slots

    @kept
    def sampled_tokens(self) -> NDArray[np.int64]:
        """int64[m]: place among the T tokens of the last one of each row that samples."""
        if not self._counts:
            return _up_to(self.num_riding).copy()
        return self.query_starts[1:][self.samples].astype(np.int64) - 1

    @kept
    def _sampling_others(self) -> Sequence[Request]:
        return [r for r, s in zip(self._others, self.samples[self.num_riding :].tolist(), strict=True) if s]

    @kept
    def seeds(self) -> NDArray[np.uint64]:
        """uint64[m]: as in ``sampling``, for a backend that needs no more of it."""
        return self._column("seed", np.uint64, [r._seed for r in self._sampling_others])

    @kept
    def output_indices(self) -> NDArray[np.int64]:
        """int64[m]: as in ``sampling``, for a backend that needs no more of it."""
        first = np.zeros(0, dtype=np.int64)
        if self._roster is not None:
            first = self._roster.arrays.num_outputs(self._order, self._steps)
        return self._behind(first, [r.num_output_tokens for r in self._sampling_others])

    def _column(self, name: str, dtype: type, others: Sequence[Any]) -> NDArray[Any]:
        if self._roster is not None:
            return self._behind(self._roster.arrays.sampling(name, self._order), others)
        return np.array(others, dtype=dtype)

    @kept
    def sampling(self) -> SamplingArrays:
        """Sampling parameters of the rows of ``samples``."""
        params = [r.sampling_params for r in self._sampling_others]
        return SamplingArrays(
            temperature=self._column("temperature", np.float32, [p.temperature for p in params]),
            top_k=self._column("top_k", np.int32, [p.top_k or 0 for p in params]),
            top_p=self._column("top_p", np.float32, [p.top_p for p in params]),
            min_p=self._column("min_p", np.float32, [p.min_p for p in params]),
            seed=self.seeds,
            output_index=self.output_indices,
            logprobs=self._column("logprobs", np.int32, [-1 if p.logprobs is None else p.logprobs for p in params]),
        )


_NOBODY = np.zeros(0, dtype=np.intp)


_numbers = np.arange(1024, dtype=np.int64)


def _up_to(num: int) -> NDArray[np.int64]:
    """int64[num]: 0, 1, 2 and so on; the same memory for all."""
    global _numbers
    if num > len(_numbers):
        _numbers = np.arange(2 * num, dtype=np.int64)
    return _numbers[:num]


def _no_ints() -> Ints:
    return np.zeros(0, dtype=np.int32)
