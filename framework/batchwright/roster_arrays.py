"""What a backend reads of the decodes on the roster: one row a request, kept up as requests enter and grow.

Lengths are always kept. Block tables and sampling parameters are kept from the first time that somebody reads them: a
simulator never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchwright.request import Request

Ints = NDArray[np.int32]
Rows = NDArray[np.intp]

_SAMPLING = {
    "temperature": np.float32,
    "top_k": np.int32,
    "top_p": np.float32,
    "min_p": np.float32,
    "seed": np.uint64,
    "num_prompt_tokens": np.int64,
    "logprobs": np.int32,
}


class RosterArrays:
    """Arrays whose rows are those of a roster."""

    def __init__(self, riders: Sequence[Request | None]) -> None:
        """Takes the roster's requests by row; the sequence grows and changes with it."""
        self._riders = riders
        self._offsets = np.zeros(0, dtype=np.int64)  # length of a request, less the steps of the roster
        self._tables: Ints | None = None
        self._widths: Ints = np.zeros(0, dtype=np.int32)
        self._sampling: dict[str, NDArray[Any]] | None = None

    def make_rows(self, num: int) -> None:
        """Have so many rows."""
        more = num - len(self._offsets)
        self._offsets = np.concatenate((self._offsets, np.zeros(more, dtype=np.int64)))
        if self._tables is not None:
            self._widths = np.concatenate((self._widths, np.zeros(more, dtype=np.int32)))
            self._tables = np.concatenate((self._tables, np.zeros((more, self._tables.shape[1]), dtype=np.int32)))
        if self._sampling is not None:
            self._sampling = {
                name: np.concatenate((column, np.zeros(more, dtype=column.dtype)))
                for name, column in self._sampling.items()
            }

    def fill(self, row: int, request: Request, steps: int) -> None:
        """A request enters in this row, when the roster has advanced so many steps."""
        self._offsets[row] = len(request._known) - steps
        if self._tables is not None:
            self._fill_table(row, request.block_table)
        if self._sampling is not None:
            self._fill_sampling(self._sampling, row, request)

    # Lengths ------------------------------------------------------------------------------------------------

    def lengths(self, order: Rows, steps: int) -> Ints:
        """int32[n]: tokens of each row's request, when the roster has advanced so many steps."""
        return (self._offsets[order] + steps).astype(np.int32)

    # Block tables -------------------------------------------------------------------------------------------

    def block_tables(self, order: Rows) -> Ints:
        """int32[n, widest]: KV blocks of each of these rows in order; unused places are 0."""
        if self._tables is None:
            self._tables = np.zeros((len(self._riders), 16), dtype=np.int32)
            self._widths = np.zeros(len(self._riders), dtype=np.int32)
            for row, request in enumerate(self._riders):
                if request is not None:
                    self._fill_table(row, request.block_table)
        widest = int(np.maximum.reduce(self._widths.take(order), initial=0))
        tables = self._tables.take(order, axis=0)
        return tables if widest == tables.shape[1] else tables[:, :widest].copy()

    def grew(self, requests: Sequence[Request]) -> None:
        """These took one more block each."""
        if self._tables is None:
            return
        rows = [r._row for r in requests]
        widths = [len(r.block_table) for r in requests]
        self._make_wide(max(widths))
        self._widths[rows] = widths
        self._tables[rows, self._widths[rows] - 1] = [r.block_table[-1] for r in requests]

    def _fill_table(self, row: int, blocks: list[int]) -> None:
        self._make_wide(len(blocks))
        assert self._tables is not None
        self._tables[row, : len(blocks)] = blocks
        self._tables[row, len(blocks) : int(self._widths[row])] = 0
        self._widths[row] = len(blocks)

    def _make_wide(self, width: int) -> None:
        assert self._tables is not None
        rows, old = self._tables.shape
        if width > old:
            more = np.zeros((rows, max(width, 2 * old) - old), dtype=np.int32)
            self._tables = np.concatenate((self._tables, more), axis=1)

    # Sampling parameters ------------------------------------------------------------------------------------

    def sampling(self, name: str, order: Rows) -> NDArray[Any]:
        """A sampling parameter of each of these rows: ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``seed``,
        ``logprobs``.
        """
        if self._sampling is None:
            self._sampling = {n: np.zeros(len(self._riders), dtype=kind) for n, kind in _SAMPLING.items()}
            for row, request in enumerate(self._riders):
                if request is not None:
                    self._fill_sampling(self._sampling, row, request)
        return self._sampling[name].take(order)

    def num_outputs(self, order: Rows, steps: int) -> NDArray[np.int64]:
        """int64[n]: output tokens of each row's request, when the roster has advanced so many steps."""
        outputs: NDArray[np.int64] = self._offsets[order] + steps - self.sampling("num_prompt_tokens", order)
        return outputs

    def _fill_sampling(self, columns: dict[str, NDArray[Any]], row: int, request: Request) -> None:
        params = request.sampling_params
        columns["temperature"][row] = params.temperature
        columns["top_k"][row] = params.top_k or 0
        columns["top_p"][row] = params.top_p
        columns["min_p"][row] = params.min_p
        columns["seed"][row] = request._seed
        columns["num_prompt_tokens"][row] = request.num_prompt_tokens
        columns["logprobs"][row] = -1 if params.logprobs is None else params.logprobs
