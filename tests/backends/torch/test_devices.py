"""What the runner asks of a GPU, as calls of ``torch.cuda``: recorded, since there is none here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from batchwright_backends.torch.devices import Accelerator, CpuDevice, CudaDevice, Device, device_of


class FakeCuda:
    """``torch.cuda`` with one device: streams and graphs by name, and a log."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.current: Any = SimpleNamespace(name="current")
        self.current.wait_stream = lambda other: self.log.append(("current waits for", other.name))
        self.allocated, self.peak = 100, 100

    def Stream(self, device: Any) -> Any:  # noqa: N802 - as torch names it
        return SimpleNamespace(name="side", wait_stream=lambda o: self.log.append(("side waits for", o.name)))

    def Event(self) -> Any:  # noqa: N802
        return SimpleNamespace(record=lambda stream: self.log.append(("record", stream.name)))

    def CUDAGraph(self) -> Any:  # noqa: N802
        return SimpleNamespace(replay=lambda: self.log.append("replay"))

    def current_stream(self, device: Any) -> Any:
        return self.current

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.log.append(("on", stream.name))
        yield
        self.log.append(("off", stream.name))

    @contextmanager
    def graph(self, graph: Any, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
        self.log.append(("record on", stream.name, pool, capture_error_mode))
        yield
        self.log.append("recorded")

    def graph_pool_handle(self) -> str:
        return "pool"

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return 30, 80

    def reset_peak_memory_stats(self, device: Any) -> None:
        self.peak = self.allocated

    def memory_allocated(self, device: Any) -> int:
        return self.allocated

    def max_memory_allocated(self, device: Any) -> int:
        return self.peak

    def synchronize(self, device: Any) -> None:
        self.log.append("synchronize")

    def empty_cache(self) -> None:
        self.log.append("empty")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in dir(fake):
        if not name.startswith("_") and callable(getattr(fake, name)):
            monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


def test_graphs_are_recorded_beside_the_stream_of_the_steps(cuda: FakeCuda) -> None:
    device = device_of(torch.device("cuda"))
    assert isinstance(device, CudaDevice)
    device.warm_up(lambda: cuda.log.append("work"))
    assert cuda.log == [
        ("side waits for", "current"),
        ("on", "side"),
        "work",
        ("off", "side"),
        ("current waits for", "side"),
    ]
    cuda.log.clear()
    graph = device.capture(lambda: cuda.log.append("work"), device.graph_pool())
    graph.replay()
    assert cuda.log == [("record on", "side", "pool", "thread_local"), "work", "recorded", "replay"]


def test_events_and_memory(cuda: FakeCuda) -> None:
    device = device_of(torch.device("cuda"))
    assert isinstance(device, CudaDevice)
    device.mark()
    device.release()
    assert cuda.log == [("record", "current"), "synchronize", "empty"]
    assert (device.free_bytes(), device.total_bytes()) == (30, 80)

    def step() -> None:
        cuda.peak = 170

    cuda.peak = 500  # of what ran before
    assert device.peak_bytes(step) == 70


def test_a_cpu_waits_for_nothing() -> None:
    device = device_of(torch.device("cpu"))
    assert isinstance(device, CpuDevice) and not isinstance(device, Accelerator)
    tensor = torch.ones(3)
    assert device.to_host(tensor) is tensor
    assert device.host_bytes(7).shape == (7,) and device.host_bytes(7).dtype == torch.uint8
    device.mark().synchronize()


def test_a_device_says_all_that_is_asked_of_it() -> None:
    for kind, lacks in ((Device, "to_host"), (Accelerator, "capture")):
        half = type("Half", (kind,), {})
        with pytest.raises(TypeError, match=lacks):
            half(torch.device("cpu"))
