"""Buffers through which the arrays of a step reach a device that works on its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from batchwright_backends.torch.devices import Device, Event

ALIGNMENT = 16  # bytes; kernels may read rows of a block table in vectors
NUM_SLOTS = 2
LEAST_BYTES = 1 << 16


class Staging:
    """All arrays of a step lie behind each other in one pinned buffer, and go to the device in one copy.

    There are two such buffers on the host, taken in turn: while the copy of one step is on its way, the next step fills
    the other one, and before a buffer is filled again its copy must have ended. One buffer on the device is enough,
    since work there is done in order: what a step reads has been read when the next copy comes.

    A tensor from ``put`` is filled from ``flush`` on, and holds until the next ``begin``.
    """

    def __init__(self, device: Device, num_bytes: int = LEAST_BYTES) -> None:
        """Takes the memory.

        Args:
            device: where the arrays go.
            num_bytes: of a step; it grows if that is not enough.
        """
        self._device = device
        self._hosts: list[torch.Tensor] = []
        self._views: list[NDArray[np.uint8]] = []
        self._copied: list[Event | None] = []
        self._turn = 0
        self._used = self._sent = 0
        self._is_open = False
        self._grow(num_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes of a step that there is room for."""
        return len(self._target)

    def begin(self) -> None:
        """Start the arrays of a step: those of the step before are given up."""
        self._turn = (self._turn + 1) % NUM_SLOTS
        event = self._copied[self._turn]
        if event is not None:
            event.synchronize()
            self._copied[self._turn] = None
        self._used = self._sent = 0
        self._is_open = True

    def put(self, array: NDArray[Any], dtype: DTypeLike | None = None) -> torch.Tensor:
        """See :class:`~batchwright_backends.torch.inputs.Upload`. After ``flush`` it copies at once."""
        kind = np.dtype(array.dtype if dtype is None else dtype)
        size = array.size * kind.itemsize
        start = -(-self._used // ALIGNMENT) * ALIGNMENT
        if start + size > self.num_bytes:
            self._send()  # what was put goes where its tensors are
            self._grow(2 * (start + size))
            start = 0
        self._used = start + size
        np.copyto(
            self._views[self._turn][start : self._used].view(kind).reshape(array.shape), array, casting="same_kind"
        )
        if not self._is_open:
            self._send()
        # Read through numpy's dtypes, so that both sides agree on them.
        return self._target[start : self._used].view(_TORCH[kind]).view(array.shape)

    def flush(self) -> None:
        """Copy what was put; what is put from here on is copied at once."""
        self._send()
        self._is_open = False

    def _send(self) -> None:
        if self._used == self._sent:
            return
        host = self._hosts[self._turn]
        self._target[self._sent : self._used].copy_(host[self._sent : self._used], non_blocking=True)
        self._copied[self._turn] = self._device.mark()
        self._sent = self._used

    def _grow(self, num_bytes: int) -> None:
        """New buffers; torch keeps the old ones until the copies that were queued are done."""
        self._hosts = [self._device.host_bytes(num_bytes) for _ in range(NUM_SLOTS)]
        self._views = [host.numpy() for host in self._hosts]
        self._copied = [None] * NUM_SLOTS
        self._target = torch.empty(num_bytes, dtype=torch.uint8, device=self._device.device)
        self._used = self._sent = 0


_TORCH = {np.dtype(name): getattr(torch, name) for name in ("bool", "int32", "int64", "float32", "float64", "uint8")}
