"""What the runner needs of a device beside tensors: memory that copies do not wait for, events, graphs, free memory.

The runner reaches streams and graphs here and nowhere else, so that its tests put a recording stand-in in this place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import torch

from batchwright_backends.torch import memory


class Event(Protocol):
    """A point in the work of a device."""

    def synchronize(self) -> None:
        """Return when the work before it is done."""
        ...


class Graph(Protocol):
    """Recorded work."""

    def replay(self) -> None:
        """Queue it once more, over the same memory."""
        ...


class Device(ABC):
    """Where tensors are.

    Attributes:
        device: as torch calls it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abstractmethod
    def host_bytes(self, num: int) -> torch.Tensor:
        """uint8[num] of host memory, from and to which copies are queued without waiting for them."""

    @abstractmethod
    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor in host memory, from an event on that is marked after this."""

    @abstractmethod
    def mark(self) -> Event:
        """An event behind all work queued so far."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Memory that is free now; None: unknown."""

    @abstractmethod
    def release(self) -> None:
        """Give unused memory back to the device."""


class _Done:
    def synchronize(self) -> None:
        """Nothing is left to be done."""


class CpuDevice(Device):
    """The CPU, whose work is done when a call returns, and whose memory is the host's."""

    def host_bytes(self, num: int) -> torch.Tensor:
        """See :class:`Device`."""
        return torch.empty(num, dtype=torch.uint8)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """See :class:`Device`: it is there."""
        return tensor

    def mark(self) -> Event:
        """See :class:`Device`."""
        return _Done()

    def free_bytes(self) -> int | None:
        """See :class:`Device`."""
        return memory.free_host_bytes()

    def release(self) -> None:
        """See :class:`Device`: what is unused was given back when its tensor died."""


class Accelerator(Device):
    """A device with memory of its own, whose work is only queued when a call returns, and can be recorded."""

    @abstractmethod
    def warm_up(self, run: Callable[[], Any]) -> None:
        """Do the work once where ``capture`` will record it: beside the stream that steps run on."""

    @abstractmethod
    def graph_pool(self) -> Any:
        """Memory for the intermediate results of recorded work."""

    @abstractmethod
    def capture(self, run: Callable[[], Any], pool: Any) -> Graph:
        """Record the work. Recordings that share a pool may be replayed one after another only, and what one leaves
        there stands until the next replay.
        """

    @abstractmethod
    def peak_bytes(self, run: Callable[[], Any]) -> int:
        """Memory that tensors take at most while this runs, over what they take now."""

    @abstractmethod
    def total_bytes(self) -> int:
        """All memory of the device."""


class CudaDevice(Accelerator):
    """An NVIDIA or AMD GPU, on whose current stream steps run. Not yet run on one."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._side: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def host_bytes(self, num: int) -> torch.Tensor:
        """See :class:`Device`."""
        return torch.empty(num, dtype=torch.uint8, pin_memory=True)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """See :class:`Device`. torch keeps pinned memory and hands it out again, so this allocates nothing."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def mark(self) -> Event:
        """See :class:`Device`."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def warm_up(self, run: Callable[[], Any]) -> None:
        """See :class:`Accelerator`."""
        current = torch.cuda.current_stream(self.device)
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side):
            run()
        current.wait_stream(self._side)

    def graph_pool(self) -> Any:
        """See :class:`Accelerator`."""
        return torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], Any], pool: Any) -> Graph:
        """See :class:`Accelerator`."""
        graph = torch.cuda.CUDAGraph()
        # Another thread, of a server say, may use the device meanwhile: only what this one does must be recordable.
        with torch.cuda.graph(graph, pool=pool, stream=self._side, capture_error_mode="thread_local"):
            run()
        return graph

    def free_bytes(self) -> int:
        """See :class:`Device`."""
        return torch.cuda.mem_get_info(self.device)[0]

    def total_bytes(self) -> int:
        """See :class:`Accelerator`."""
        return torch.cuda.mem_get_info(self.device)[1]

    def peak_bytes(self, run: Callable[[], Any]) -> int:
        """See :class:`Accelerator`."""
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        run()
        return torch.cuda.max_memory_allocated(self.device) - before

    def release(self) -> None:
        """See :class:`Device`."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()


def device_of(device: torch.device) -> Device:
    """What the runner needs of that device."""
    return CudaDevice(device) if device.type == "cuda" else CpuDevice(device)
