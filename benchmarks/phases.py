"""Where the time of a step goes, on the host and on the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from batchwright import Engine, Request
from batchwright_backends.torch.backend import TorchBackend
from batchwright_backends.torch.devices import CudaDevice

PHASES = ("input preparation", "forward", "sampling", "bookkeeping")


@dataclass
class StepTimes:
    """Seconds of one step.

    Attributes:
        num_rows: of the batch.
        num_tokens: of the batch.
        is_decode: whether every row is one token, and samples.
        whole: of the step.
        host: by phase; on a GPU the time to queue it, and what is waited for counts as bookkeeping.
        device: from the first to the last work that the device got; None on CPU.
    """

    num_rows: int = 0
    num_tokens: int = 0
    is_decode: bool = False
    whole: float = 0.0
    host: dict[str, float] = field(default_factory=dict)
    device: float | None = None


class Watch:
    """Times the steps of an engine."""

    def __init__(self, engine: Engine) -> None:
        assert isinstance(engine.backend, TorchBackend)
        self.steps: list[StepTimes] = []
        self._engine = engine
        self._runner: Any = engine.backend.runner
        self._is_gpu = isinstance(self._runner.device, CudaDevice)
        self._now = StepTimes()
        self._marks: list[tuple[StepTimes, Any, Any]] = []
        for name, phase in (("prepare", "input preparation"), ("forward", "forward"), ("sample", "sampling")):
            setattr(self._runner, name, self._timed(phase, getattr(self._runner, name)))

    def step(self) -> None:
        """One step of the engine."""
        self._now = now = StepTimes()
        start = time.perf_counter()
        self._engine.step()
        now.whole = time.perf_counter() - start
        now.host["bookkeeping"] = now.whole - sum(now.host.values())
        self.steps.append(now)

    def finish(self) -> None:
        """Read the device's times, once all is done."""
        if self._is_gpu:
            torch.cuda.synchronize()
        for step, first, last in self._marks:
            step.device = first.elapsed_time(last) / 1000
        self._marks.clear()

    def _timed(self, phase: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start, first = time.perf_counter(), self._mark()
            out = inner(*args)
            if phase == "input preparation":
                self._take(out)
            elif self._is_gpu and phase == "forward":
                self._marks.append((self._now, first, first))
            elif self._is_gpu:
                step, first, _ = self._marks[-1]
                self._marks[-1] = (step, first, self._mark())
            self._now.host[phase] = time.perf_counter() - start
            return out

        return timed

    def _take(self, step: Any) -> None:
        inputs = step.inputs
        self._now.num_rows, self._now.num_tokens = inputs.num_rows, len(inputs.token_ids)
        self._now.is_decode = inputs.is_decode
        if hasattr(step.plan, "groups"):  # a plan that is made when a layer asks for it: it is no part of the model
            for window in {layer.window for layer in self._runner.layers.values()}:
                step.plan.groups(window)

    def _mark(self) -> Any:
        if not self._is_gpu:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def medians(steps: Sequence[StepTimes]) -> dict[str, float]:
    """Median milliseconds of each phase, of the whole step, and on a GPU of the device."""
    out = {phase: 1e3 * statistics.median(s.host.get(phase, 0.0) for s in steps) for phase in PHASES}
    out["step"] = 1e3 * statistics.median(s.whole for s in steps)
    device = [s.device for s in steps if s.device is not None]
    if device:
        out["device"] = 1e3 * statistics.median(device)
    return out


@contextmanager
def serving(engine: Engine, requests: Sequence[Request]) -> Iterator[Watch]:
    """An engine with these requests, watched."""
    for request in requests:
        engine.add_request(request)
    watch = Watch(engine)
    yield watch
    watch.finish()
