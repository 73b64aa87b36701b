"""A GPU played on CPU tensors: graphs, streams, events and memory, each use noted.

A graph holds what a CUDA graph holds: the operators that ran while it was recorded, over the tensors they ran on. A
replay runs them again, in place, and none of the Python between them; so a number that Python read from a tensor stays
what it was, a tensor that is put in the place of another is not seen, and what a recorded operator may not do on a GPU,
waiting for a value, is an error.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from batchwright_backends.torch.devices import Accelerator

# Operators that wait for the device, or whose result has a shape that depends on values.
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique", "repeat_interleave")

_recordings: list[RecordedGraph] = []


class RecordedGraph(TorchDispatchMode):
    """Operators, and calls of functions that are :func:`opaque`, with their arguments and results."""

    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self.number = 0
        self.num_bytes = 0
        self._log = log

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        if name in WAITING or (name == "index" and any(_is_mask(i) for i in args[1])):
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        assert not _recordings, "a graph is replayed while another is recorded"
        self._log.append(("replay", self.number))
        for function, args, kwargs, out in self.calls:
            again = function(*args, **kwargs)
            memory = {_memory(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
            for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and _memory(old) not in memory:
                    old.copy_(new)


def opaque(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a graph holds as one piece, such as the launch of a kernel: what it does inside runs anew."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if not _recordings:
            return function(*args, **kwargs)
        recording = _recordings[-1]
        with _disable_current_modes():
            out = function(*args, **kwargs)
        recording.calls.append((function, args, kwargs, out))
        return out

    return call


class RecordingDevice(Accelerator):
    """A GPU for the runner.

    Attributes:
        log: what was asked of it: ``("warm up",)``, ``("capture", pool)``, ``("replay", number of the capture)``,
            ``("mark",)``, ``("wait", number of the mark)``, ``("to host",)``, ``("peak",)``, ``("release",)``.
        first_graph: bytes that the first graph takes while it is there.
        further_graph: bytes that each other one takes.
        peak: what ``peak_bytes`` answers.
    """

    def __init__(self, device: torch.device | None = None, free: int = 1 << 30, total: int = 2 << 30) -> None:
        super().__init__(device or torch.device("cpu"))
        self.log: list[tuple[Any, ...]] = []
        self.first_graph, self.further_graph, self.peak = 5 << 20, 1 << 20, 3 << 20
        self._free, self._total = free, total
        self._graphs: weakref.WeakSet[RecordedGraph] = weakref.WeakSet()
        self._warm: Callable[[], Any] | None = None
        self._num_pools = 0

    def host_bytes(self, num: int) -> torch.Tensor:
        return torch.empty(num, dtype=torch.uint8)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        self.log.append(("to host",))
        return tensor.clone()

    def mark(self) -> Any:
        number = sum(entry[0] == "mark" for entry in self.log)
        self.log.append(("mark",))
        log = self.log

        class Mark:
            def synchronize(self) -> None:
                log.append(("wait", number))

        return Mark()

    def warm_up(self, run: Callable[[], Any]) -> None:
        self.log.append(("warm up",))
        run()
        self._warm = run

    def graph_pool(self) -> Any:
        self._num_pools += 1
        return f"pool {self._num_pools}"

    def capture(self, run: Callable[[], Any], pool: Any) -> RecordedGraph:
        assert self._warm is run, "recorded before it ran once"
        self._warm = None
        assert not _recordings
        graph = RecordedGraph(self.log)
        graph.number = self.count("capture")
        graph.num_bytes = self.further_graph if self._graphs else self.first_graph
        self.log.append(("capture", pool))
        _recordings.append(graph)
        try:
            with graph:
                run()
        finally:
            _recordings.pop()
        self._graphs.add(graph)
        return graph

    def free_bytes(self) -> int:
        return self._free - sum(graph.num_bytes for graph in self._graphs)

    def total_bytes(self) -> int:
        return self._total

    def peak_bytes(self, run: Callable[[], Any]) -> int:
        self.log.append(("peak",))
        run()
        return self.peak

    def release(self) -> None:
        self.log.append(("release",))

    def count(self, what: str) -> int:
        """How often something was asked."""
        return sum(entry[0] == what for entry in self.log)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
