"""Steps of decodes as CUDA graphs: recorded once for each of a few batch sizes, then replayed.

A model of 28 layers queues some 500 kernels a step, which takes the host several times as long as a GPU needs to run
them. A graph queues them at once. It works on fixed memory: a step writes its arrays there, and the recording of the
next size up runs, with padding rows behind the real ones. A padding row is a request of one token that lies in the null
block: what it writes and reads is there, and nobody else looks at it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from batchwright.errors import BackendError
from batchwright_backends.torch.devices import Accelerator, Device, Graph
from batchwright_backends.torch.inputs import StepInputs, StepTensors, Upload
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kv_cache import KVCache

logger = logging.getLogger(__name__)

T = TypeVar("T")
Forward = Callable[[StepTensors, Any], torch.Tensor]
"""Runs a step's tensors and its attention plan through the model: logits [T, vocabulary]."""

_LEAST_SPACING = 8


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Batch sizes that are recorded, ascending: every size up to ``max_num_seqs`` has one that holds it.

    1, 2, 4 and 8, then further by 8, and from 128 on by an eighth of the power of two below: a batch is padded by at
    most 7 rows, or an eighth.
    """
    sizes, size = [], 1
    while size < max_num_seqs:
        sizes.append(size)
        size += size if size < _LEAST_SPACING else max(_LEAST_SPACING, (1 << size.bit_length() - 1) // 8)
    return [*sizes, max_num_seqs]


@dataclass(slots=True)
class GraphChoice:
    """Which sizes are recorded, and if none, why.

    Attributes:
        sizes: of batches, ascending; empty: steps of decodes are not recorded.
        reason: why not, in one clause.
        is_required: whether it is an error if they cannot be.
    """

    sizes: list[int]
    reason: str | None = None
    is_required: bool = False

    @classmethod
    def make(cls, wanted: bool | Literal["auto"], device: Device, kernel: AttentionKernel, most: int) -> GraphChoice:
        """What the option ``cuda_graphs`` comes to here, for batches of up to ``most``.

        Raises:
            BackendError: they are required, and cannot be.
        """
        if wanted is False:
            return cls([], "cuda_graphs is false")
        choice = cls(graph_sizes(most), is_required=wanted is True)
        if not isinstance(device, Accelerator):
            choice._give_up(f"{device.device.type} has none")
        elif kernel.not_captured is not None:
            choice._give_up(f"not with attention by {kernel.title}: {kernel.not_captured}")
        return choice

    def attempt(self, record: Callable[[], T], otherwise: T) -> T:
        """Record, if that is still wanted; where it fails the model runs every step.

        Raises:
            BackendError: it failed, and is required.
        """
        if not self.sizes:
            return otherwise
        try:
            return record()
        except Exception as error:  # a model may do in its forward what cannot be recorded, and fails in many ways
            first = (str(error).strip().splitlines() or ["no message"])[0]
            self._give_up(f"a step of this model cannot be recorded ({type(error).__name__}: {first})", error)
            return otherwise

    def __str__(self) -> str:
        """In one clause."""
        if not self.sizes:
            return f"no CUDA graphs ({self.reason})"
        return f"decodes of up to {self.sizes[-1]} requests as CUDA graphs of {len(self.sizes)} sizes"

    def _give_up(self, reason: str, cause: Exception | None = None) -> None:
        if self.is_required:
            raise BackendError(
                f"backend_options.cuda_graphs is true, and there can be none: {reason}; set it to auto or false"
            ) from cause
        self.sizes, self.reason = [], reason
        if cause is not None:
            logger.warning("%s", self)


class DecodeGraphs:
    """Graphs of steps of decodes.

    Attributes:
        sizes: of the batches that are recorded, ascending.
        tensors: what they read, for the largest of them.
        logits: what they write, [largest size, vocabulary]; None: nothing is recorded yet.
    """

    def __init__(
        self,
        device: Accelerator,
        kernel: AttentionKernel,
        cache: KVCache,
        forward: Forward,
        sizes: Sequence[int],
        width: int,
    ) -> None:
        """Takes the memory that steps write to.

        Args:
            device: that records.
            kernel: that can be recorded (``not_captured`` is None).
            cache: K and V.
            forward: that is recorded.
            sizes: of batches, ascending.
            width: blocks of the longest request.
        """
        self._device = device
        self._kernel = kernel
        self._forward = forward
        self._null_block, self._block_size = cache.null_block, cache.block_size
        self.sizes = list(sizes)
        most, where = self.sizes[-1], device.device
        # One block of memory, so that a step fills it by one copy: int64 columns, then the int32 one.
        self._columns = torch.zeros(7 * most, dtype=torch.int32, device=where)
        longs = self._columns[: 6 * most].view(torch.int64).view(3, most)
        self.tensors = StepTensors(
            token_ids=longs[0],
            positions=longs[1],
            slots=longs[2],
            starts=torch.arange(most + 1, dtype=torch.int32, device=where),
            context_lens=self._columns[6 * most :],
            block_tables=torch.full((most, width), self._null_block, dtype=torch.int32, device=where),
            sampled=None,
        )
        self.tensors.slots.fill_(self._null_block * self._block_size)
        self.tensors.context_lens.fill_(1)
        self.logits: torch.Tensor | None = None
        self._graphs: dict[int, Graph] = {}
        self._pool = device.graph_pool()

    def capture(self) -> None:
        """Record all sizes. The largest comes first, so that the others fit in the memory that it took."""
        for size in reversed(self.sizes):
            self.capture_one(size)

    def capture_one(self, size: int) -> None:
        """Record a size, after it has run once: what is compiled or set up at first use is not to be recorded."""
        tensors = self._first(size)
        plan = self._kernel.plan_decodes(tensors, self.tensors.block_tables.shape[1] * self._block_size)

        def run() -> None:
            with torch.inference_mode():
                logits = self._forward(tensors, plan)
                if self.logits is None:
                    self.logits = logits.new_empty(self.sizes[-1], logits.shape[-1])
                self.logits[:size].copy_(logits)

        self._device.warm_up(run)
        self._graphs[size] = self._device.capture(run, self._pool)

    def size_for(self, num_rows: int) -> int | None:
        """The size that a batch of so many rows runs in; None: it is too large."""
        return next((size for size in self.sizes if size >= num_rows), None)

    def fill(self, inputs: StepInputs, size: int, upload: Upload) -> tuple[torch.Tensor, torch.Tensor]:
        """A step's arrays and its padding, on their way to the device; :meth:`run` takes them.

        Returns:
            int32[7 * largest size], and the block tables, int32[size, widest of the step].
        """
        most, n = self.sizes[-1], inputs.num_rows
        columns = np.zeros(7 * most, dtype=np.int32)
        longs = columns[: 6 * most].view(np.int64).reshape(3, most)
        longs[0, :n] = inputs.token_ids
        longs[1, :n] = inputs.positions
        longs[2, :n] = inputs.slots
        longs[2, n:] = self._null_block * self._block_size
        columns[6 * most : 6 * most + n] = inputs.context_lens
        columns[6 * most + n :] = 1
        tables = np.full((size, inputs.block_tables.shape[1]), self._null_block, dtype=np.int32)
        tables[:n] = inputs.block_tables
        return upload.put(columns), upload.put(tables)

    def run(self, filled: tuple[torch.Tensor, torch.Tensor], size: int) -> torch.Tensor:
        """Replay: logits [size, vocabulary], which stand until the next replay."""
        assert self.logits is not None
        columns, tables = filled
        self._columns.copy_(columns)
        self.tensors.block_tables[:size, : tables.shape[1]].copy_(tables)
        self._graphs[size].replay()
        return self.logits[:size]

    def _first(self, size: int) -> StepTensors:
        all_rows = self.tensors
        return StepTensors(
            token_ids=all_rows.token_ids[:size],
            positions=all_rows.positions[:size],
            slots=all_rows.slots[:size],
            starts=all_rows.starts[: size + 1],
            context_lens=all_rows.context_lens[:size],
            block_tables=all_rows.block_tables[:size],
            sampled=None,
        )
