"""One model over several devices: rank 0 is the engine's process, every other rank a process that it starts and ends.

transformers' tensor-parallel plan of the model says how weights and heads are split. Rank 0 tells the others of each
step in one message; all run the same forward, and rank 0 has the logits whole and samples. What fails in one rank ends
all of them, since no two would then be at the same step.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from batchwright.backend import BackendSettings, StepResult
from batchwright.batch import Batch
from batchwright.errors import BackendError, BatchwrightError
from batchwright_backends.torch import loading
from batchwright_backends.torch.backend import Submitted, TorchBackend
from batchwright_backends.torch.group import Group, abort, join, leave, surroundings
from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.models import ModelSource, resolve
from batchwright_backends.torch.options import TorchOptions
from batchwright_backends.torch.tensor_plan import check_plan
from batchwright_backends.torch.wire import Start, pack
from batchwright_backends.torch.workers import GRACE_S, Workers, is_lost_partner

logger = logging.getLogger(__name__)

# Seconds that a rank waits for the others in one collective.
TIMEOUT_S = 300.0


class ShardedBackend(TorchBackend):
    """Rank 0 of a tensor-parallel model. Make it with :func:`create_sharded`.

    Attributes:
        workers: the other ranks.
    """

    workers: Workers
    _threads_before: int
    _ended: str | None = None

    def submit(self, batch: Batch) -> Submitted:
        """See :class:`~batchwright.backend.Backend`.

        Raises:
            BackendError: a rank failed, now or earlier; the message names rank and cause.
        """
        with self._together():
            return super().submit(batch)

    def collect(self, handle: Submitted) -> StepResult:
        """See :class:`~batchwright.backend.Backend`. Errors as of :meth:`submit`."""
        with self._together():
            return super().collect(handle)

    def close(self) -> None:
        """End the other ranks, and give back the memory of this one."""
        if self._ended is None:
            self._ended = "it was closed"
        self.workers.end()
        super().close()
        leave()
        torch.set_num_threads(self._threads_before)

    def announce(self, inputs: StepInputs) -> None:
        """Tell the other ranks of the step that this one is about to run."""
        self.workers.tell(pack(inputs))

    @contextmanager
    def _together(self) -> Iterator[None]:
        if self._ended is not None:
            raise BackendError(f"{self.name} has ended, since {self._ended}: make a new engine")
        try:
            yield
        except BaseException as error:
            # An interrupt too: the others are in the middle of a step that this rank will not finish.
            self._ended = _cause(self.workers, error)
            self.workers.kill()
            if not isinstance(error, Exception):
                raise
            raise BackendError(f"{self._ended}. All ranks were ended: make a new engine") from error


def create_sharded(device_name: str, settings: BackendSettings) -> TorchBackend:
    """Start the other ranks, load all shards, and give rank 0.

    Args:
        device_name: ``cpu`` or ``cuda``.
        settings: of the engine, with the option ``tensor_parallel_size`` above 1.

    Raises:
        ConfigError, BackendError: as of :meth:`TorchBackend.create`; or the model, the machine or this process does not
            allow it; or a rank failed, whose number and cause the message names.
    """
    options = TorchOptions.parse(settings.options)
    size = options.tensor_parallel_size
    _refuse(device_name, settings, size)
    source = resolve(settings.target)
    outline, config = loading.outline(source)
    check_plan(outline, config, size, f"model {loading.name_of(source)} ({config.model_type})")
    # The name may mean more than a path, and work for it must be done once.
    before = torch.get_num_threads()
    num_threads = options.num_threads or (max(1, before // size) if device_name == "cpu" else before)
    with tempfile.TemporaryDirectory(prefix="batchwright-") as folder:
        rendezvous = os.path.join(folder, "ranks")
        worker_settings = replace(settings, target=_as_target(source))
        start = Start(0, size, device_name, worker_settings, num_threads, rendezvous, TIMEOUT_S)
        starts = [replace(start, rank=rank) for rank in range(1, size)]
        workers = Workers(starts, on_failure=abort if device_name == "cuda" else None)
        try:
            torch.set_num_threads(num_threads)
            backend = _create_rank_0(workers, start, settings)
        except BaseException as error:
            # What this rank says of itself needs no rank's name: the others would say the same.
            is_own = isinstance(error, BatchwrightError) and not _is_of_others(error)
            cause = None if is_own or not isinstance(error, Exception) else _cause(workers, error)
            workers.kill()
            leave()
            torch.set_num_threads(before)
            if cause is not None:
                raise BackendError(cause) from error
            raise
    backend._threads_before = before
    return backend


def _create_rank_0(workers: Workers, start: Start, settings: BackendSettings) -> ShardedBackend:
    def meet() -> None:
        workers.wait_for("loaded")
        workers.tell(b"go")

    group = Group(0, start.size, meet)
    device = group.device(start.device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    workers.wait_for("here", start.timeout_s)
    with surroundings(group):
        join(device, group, start.rendezvous, start.timeout_s)
        backend = ShardedBackend.create(start.device_name, settings, group)
    assert isinstance(backend, ShardedBackend)
    workers.wait_for("ready", start.timeout_s)
    backend.workers = workers
    backend.runner.announce = backend.announce
    backend.notes = (*backend.notes, f"tensor parallel over {start.size} ranks")
    logger.info("%s: %s ranks, %s threads each", backend.name, start.size, start.num_threads)
    return backend


def _cause(workers: Workers, error: BaseException) -> str:
    """In a sentence, which rank failed and why."""
    own = f"tensor-parallel rank 0 of {workers.size} failed: {error}"
    if not isinstance(error, Exception):
        return f"it was interrupted in a step ({type(error).__name__})"
    lost = _is_of_others(error)
    failure = workers.failure(GRACE_S if lost else 0.0)
    if failure is not None:
        return failure
    if lost:
        return (
            f"one of the tensor-parallel ranks 1 to {workers.size - 1} did not answer in {TIMEOUT_S:g} s "
            f"({type(error).__name__}: {error})"
        )
    return own


def _is_of_others(error: BaseException) -> bool:
    """Whether an error of this rank may come of another one's end."""
    return isinstance(error, OSError) or is_lost_partner(str(error))


def _refuse(device_name: str, settings: BackendSettings, size: int) -> None:
    """Refuse what cannot work on this machine, or in this process."""
    asked = f"backend_options.tensor_parallel_size is {size}, and"
    if sys.platform == "win32":
        raise BackendError(f"{asked} ranks cannot be started on Windows: use 1")
    if not dist.is_available():
        raise BackendError(f"{asked} this build of torch has no torch.distributed: use 1, or another build")
    if dist.is_initialized():
        raise BackendError(
            f"{asked} this process is in a process group of torch.distributed already: close the other engine with "
            "tensor_parallel_size first, or run this one in a process of its own"
        )
    if device_name == "cuda" and (count := torch.cuda.device_count()) < size:
        raise BackendError(f"{asked} torch finds {count} CUDA device{'s' * (count != 1)}: use at most {max(1, count)}")
    if device_name == "cpu" and torch.accelerator.is_available():
        kind: Any = torch.accelerator.current_accelerator()
        raise BackendError(
            f"{asked} transformers would spread the model over the {kind} devices of this machine: use "
            f"{kind}:{settings.target}, or hide them (CUDA_VISIBLE_DEVICES= in the environment)"
        )
    try:
        from transformers.distributed.configuration_utils import DistributedConfig

        DistributedConfig(tp_size=1)
    except (ImportError, TypeError) as error:
        raise BackendError(f"{asked} this version of transformers is too old for it: install 5.20 or newer") from error


def _as_target(source: ModelSource) -> str:
    return os.path.join(source.path, source.gguf_file) if source.gguf_file else source.path
