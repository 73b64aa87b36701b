"""The batch of one step, as arrays.

A backend reads a batch through these arrays and never walks request objects. Rows are requests in batch order; each
brings one or more tokens, and all rows' tokens lie flat behind each other. Decodes and chunks of prompts mix freely.
An array is built when it is first read and kept: read what you need before the next step is scheduled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchwright.request import RESIDENT, Request

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
    """

    temperature: NDArray[np.float32]
    top_k: Ints
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seed: NDArray[np.uint64]
    output_index: NDArray[np.int64]


class Batch:
    """What one step runs: n rows, T tokens.

    Attributes:
        step_index: index of the step.
        block_size: tokens of a KV block.
        num_tokens: T, tokens of all rows.
    """

    def __init__(
        self,
        step_index: int,
        block_size: int,
        requests: Sequence[Request],
        num_scheduled: Sequence[int],
        *,
        only_decodes: bool = False,
    ) -> None:
        """Takes rows and their tokens; ``only_decodes`` says that each continues with its one last sampled token."""
        self.step_index = step_index
        self.block_size = block_size
        self.num_tokens = len(requests) if only_decodes else sum(num_scheduled)
        self._requests = requests
        self._counts = num_scheduled
        self._only_decodes = only_decodes

    def __len__(self) -> int:
        return len(self._requests)

    @cached_property
    def request_ids(self) -> list[str]:
        """Id of each row."""
        return [r.request_id for r in self._requests]

    @cached_property
    def num_scheduled(self) -> Ints:
        """int32[n]: tokens of each row in this step."""
        return np.array(self._counts, dtype=np.int32)

    @cached_property
    def num_computed(self) -> Ints:
        """int32[n]: tokens of each row whose K and V lie in its blocks before this step."""
        if self._only_decodes:
            return np.array([len(r._tokens) - 1 for r in self._requests], dtype=np.int32)
        computed = [
            r._computed if r._prefilling or r._state != RESIDENT else len(r._tokens) - 1 for r in self._requests
        ]
        return np.array(computed, dtype=np.int32)

    @cached_property
    def context_lens(self) -> Ints:
        """int32[n]: tokens that the last token of each row attends to, itself included."""
        return self.num_computed + self.num_scheduled

    @cached_property
    def query_starts(self) -> Ints:
        """int32[n + 1]: row i's tokens are ``query_starts[i]:query_starts[i + 1]`` of the flat arrays."""
        starts = np.zeros(len(self) + 1, dtype=np.int32)
        np.cumsum(self.num_scheduled, out=starts[1:])
        return starts

    @cached_property
    def samples(self) -> NDArray[np.bool_]:
        """bool[n]: rows that sample a token, since nothing is pending after this step."""
        if self._only_decodes:
            return np.ones(len(self), dtype=np.bool_)
        known = np.array([len(r._tokens) for r in self._requests], dtype=np.int32)
        return np.equal(self.context_lens, known)

    @cached_property
    def is_decode(self) -> NDArray[np.bool_]:
        """bool[n]: rows that continue a request with its one last sampled token."""
        if self._only_decodes:
            return np.ones(len(self), dtype=np.bool_)
        return np.array([not r.is_prefilling for r in self._requests], dtype=np.bool_)

    @cached_property
    def token_ids(self) -> Ints:
        """int32[T]: the tokens to compute."""
        parts = [
            r._tokens[r.num_computed : r.num_computed + n] for r, n in zip(self._requests, self._counts, strict=True)
        ]
        return np.concatenate([np.frombuffer(p, dtype=np.int32) for p in parts]) if parts else _no_ints()

    @cached_property
    def positions(self) -> Ints:
        """int32[T]: place of each token in its request, from 0."""
        offset = np.repeat(self.num_computed - self.query_starts[:-1], self.num_scheduled)
        return (np.arange(self.num_tokens, dtype=np.int32) + offset).astype(np.int32, copy=False)

    @cached_property
    def block_tables(self) -> Ints:
        """int32[n, widest]: KV blocks of each row in order; unused places are 0."""
        tables = [r.block_table for r in self._requests]
        out = np.zeros((len(tables), max(map(len, tables), default=0)), dtype=np.int32)
        for row, table in zip(out, tables, strict=True):
            row[: len(table)] = table
        return out

    @cached_property
    def slots(self) -> NDArray[np.int64]:
        """int64[T]: where each token's K and V go: block id * block_size + offset in the block."""
        rows = np.repeat(np.arange(len(self)), self.num_scheduled)
        block, offset = np.divmod(self.positions, self.block_size)
        return self.block_tables[rows, block].astype(np.int64) * self.block_size + offset

    @cached_property
    def _sampling_requests(self) -> Sequence[Request]:
        if self._only_decodes:
            return self._requests
        return [r for r, s in zip(self._requests, self.samples.tolist(), strict=True) if s]

    @cached_property
    def seeds(self) -> NDArray[np.uint64]:
        """uint64[m]: as in ``sampling``, for a backend that needs no more of it."""
        return np.array([r._seed for r in self._sampling_requests], dtype=np.uint64)

    @cached_property
    def output_indices(self) -> NDArray[np.int64]:
        """int64[m]: as in ``sampling``, for a backend that needs no more of it."""
        return np.array([len(r._tokens) - r.num_prompt_tokens for r in self._sampling_requests], dtype=np.int64)

    @cached_property
    def sampling(self) -> SamplingArrays:
        """Sampling parameters of the rows of ``samples``."""
        params = [r.sampling_params for r in self._sampling_requests]

        def column(values: list[Any], dtype: type) -> NDArray[Any]:
            return np.array(values, dtype=dtype)

        return SamplingArrays(
            temperature=column([p.temperature for p in params], np.float32),
            top_k=column([p.top_k or 0 for p in params], np.int32),
            top_p=column([p.top_p for p in params], np.float32),
            min_p=column([p.min_p for p in params], np.float32),
            seed=self.seeds,
            output_index=self.output_indices,
        )


def _no_ints() -> Ints:
    return np.zeros(0, dtype=np.int32)
