"""A backend whose times are plain, and an arm that runs on it."""

from __future__ import annotations

from typing import Any

from batchwright.backend import Backend, Capacity, RealClock, StepResult, VirtualClock
from batchwright.config import EngineConfig
from batchwright.lab.run_record import RunRecord

MS = 1_000_000
MIXED = "synthetic:rate=200,n=40,prompt=uniform(5,90),output=uniform(1,30),prefix=32,prefixes=3,clients=2,seed=7"


class Machine(Backend):
    """A step takes 1 ms and 10 µs a token; its pool and the steps that fail are given."""

    name = "machine"

    def __init__(self, num_blocks: int = 1000, *, real: bool = False, fails: tuple[int, ...] = ()) -> None:
        self.clock = RealClock() if real else VirtualClock()
        self._num_blocks = num_blocks
        self._fails = fails
        self._num_steps = 0

    def capacity(self) -> Capacity:
        return Capacity(self._num_blocks, block_size=4, max_model_len=200, vocab_size=1000)

    def submit(self, batch: Any) -> StepResult:
        elapsed = MS + 10_000 * batch.num_tokens
        self._num_steps += 1
        if self._num_steps in self._fails:
            raise RuntimeError("out of order")
        self.clock.wait_until_ns(self.clock.now_ns() + elapsed)
        return StepResult([5] * int(batch.samples.sum()), elapsed)

    def collect(self, handle: StepResult) -> StepResult:
        return handle


def config(**values: Any) -> EngineConfig:
    return EngineConfig(**({"max_num_seqs": 8, "max_num_batched_tokens": 64} | values))


def statuses(run: RunRecord) -> list[str]:
    return [r.status for r in run.requests]
