"""Errors of torch as errors of the backend: what failed, and where memory ran out, what had it and what to lower."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from batchwright.errors import BackendError
from batchwright_backends.torch.memory import size_text

LOWER_WEIGHTS = (
    "choose a smaller model, or a smaller backend_options.dtype (bfloat16 takes half of the memory of float32)"
)
LOWER_POOL = "lower num_blocks, backend_options.kv_cache_gib or backend_options.memory_fraction"
LOWER_STEP = (
    "lower max_num_batched_tokens or max_num_seqs, or give the KV cache less (num_blocks, backend_options.kv_cache_gib "
    "or backend_options.memory_fraction)"
)


def no_bytes() -> dict[str, int]:
    """Nothing is held yet."""
    return {}


@contextmanager
def torch_errors(what: str, lower: str, held: Callable[[], dict[str, int]] = no_bytes) -> Iterator[None]:
    """Raise what torch raises inside as a ``BackendError``.

    Args:
        what: is done inside, such as ``loading cpu:gpt2``.
        lower: the way on where memory runs out.
        held: what holds memory then, and how many bytes.

    Raises:
        BackendError: torch failed.
    """
    try:
        yield
    except (RuntimeError, IndexError, MemoryError) as error:
        first = (str(error).strip().splitlines() or ["no message"])[0]
        if not is_out_of_memory(error):
            raise BackendError(f"{what} failed in torch, {type(error).__name__}: {error}") from error
        holders = " and ".join(f"{name} ({size_text(size)})" for name, size in held().items())
        beside = f", beside {holders}" if holders else ""
        raise BackendError(f"memory ran out while {what}{beside}: {first}; {lower}") from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on the device or on the host."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error)
    return "can't allocate memory" in text or "not enough memory" in text
