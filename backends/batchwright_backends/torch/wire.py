"""What ranks tell each other: one message a step, in one piece."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from batchwright.backend import BackendSettings
from batchwright_backends.torch.inputs import StepInputs

# The arrays of a step in their order, each of one dimension but for the block tables.
_ARRAYS = ("slots", "sampled", "token_ids", "positions", "starts", "context_lens", "block_tables")
_DTYPES = {"slots": np.int64, "sampled": np.int64}


@dataclass(frozen=True, slots=True)
class Start:
    """What a worker is told first.

    Attributes:
        rank: its own.
        size: number of ranks.
        device_name: ``cpu`` or ``cuda``.
        settings: of the backend.
        num_threads: of torch in each rank.
        rendezvous: where the ranks find each other.
        timeout_s: of collectives.
    """

    rank: int
    size: int
    device_name: str
    settings: BackendSettings
    num_threads: int
    rendezvous: str
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says: ``here``, ``loaded``, ``ready``, or ``failed`` with the cause.

    Attributes:
        word: one of these.
        cause: in a sentence.
    """

    word: str
    cause: str = ""


def pack(inputs: StepInputs) -> bytes:
    """A step as bytes: the length of each array, the number of rows of the block tables, then the arrays."""
    arrays = [np.ascontiguousarray(getattr(inputs, name), _DTYPES.get(name, np.int32)) for name in _ARRAYS]
    sizes = np.array([*(a.size for a in arrays), inputs.num_rows], dtype=np.int64)
    return b"".join([sizes.tobytes(), *(a.tobytes() for a in arrays)])


def unpack(message: bytes) -> StepInputs:
    """The step that :func:`pack` was given."""
    *sizes, num_rows = np.frombuffer(message, np.int64, len(_ARRAYS) + 1).tolist()
    at = 8 * (len(_ARRAYS) + 1)
    arrays: dict[str, Any] = {}
    for name, size in zip(_ARRAYS, sizes, strict=True):
        dtype = np.dtype(_DTYPES.get(name, np.int32))
        # A copy: torch wants memory that may be written.
        arrays[name] = np.frombuffer(message, dtype, size, at).copy()
        at += size * dtype.itemsize
    arrays["block_tables"] = arrays["block_tables"].reshape(num_rows, -1)
    return StepInputs(**arrays)
