"""Schedulers behind one small interface, so that a benchmark drives all of them alike.

nano-vLLM's own scheduler is read from the folder that the environment variable ``NANO_VLLM`` names (a checkout of
GeeeekExplorer/nano-vllm); without it that peer is left out.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from batchwright import Limits, Request, SamplingParams, Scheduler
from batchwright.config import EngineConfig
from batchwright.effective import effective_settings
from batchwright.resolve import resolve_policy

FOREVER = 10**9


class Peer(Protocol):
    name: str

    def add(self, prompt: Sequence[int], max_tokens: int = FOREVER) -> None: ...
    def schedule(self) -> int:
        """Build a batch; returns its number of requests."""
        ...

    def update(self, tokens: list[int]) -> None:
        """Take one token for each request of the batch that samples."""
        ...


class Ours:
    def __init__(self, policy: str, num_blocks: int, block_size: int, max_num_seqs: int, budget: int) -> None:
        self.name = f"batchwright {policy}"
        active = resolve_policy(policy)
        config = EngineConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)
        settings = effective_settings(config, active)
        self.core = Scheduler(
            active,
            num_blocks=num_blocks,
            block_size=block_size,
            limits=Limits(max_num_seqs, budget, settings.limits.max_num_residents),
            prefix_cache=settings.prefix_cache,
        )
        self._num = 0
        self._batch: Any = None

    def add(self, prompt: Sequence[int], max_tokens: int = FOREVER) -> None:
        # Feasibility counts max_tokens, so "for ever" is as long as the pool allows.
        blocks = self.core.blocks
        most = blocks.num_blocks * blocks.block_size - len(prompt)
        params = SamplingParams(max_tokens=min(max_tokens, most), ignore_eos=True)
        self.core.add(Request(f"r{self._num}", prompt, params))
        self._num += 1

    def schedule(self) -> int:
        self._batch = self.core.schedule()
        return len(self._batch)

    def update(self, tokens: list[int]) -> None:
        self.core.update(self._batch, tokens)


class Nano:
    name = "nano-vllm"

    def __init__(self, num_blocks: int, block_size: int, max_num_seqs: int, budget: int) -> None:
        scheduler, sequence = _nano_modules()
        sequence.Sequence.block_size = block_size
        config = SimpleNamespace(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            eos=-1,
            kvcache_block_size=block_size,
            num_kvcache_blocks=num_blocks,
        )
        self.core = scheduler.Scheduler(config)
        self._sequence = sequence.Sequence
        self._block_size = block_size
        self._scheduled: tuple[list[Any], bool] = ([], False)

    def add(self, prompt: Sequence[int], max_tokens: int = FOREVER) -> None:
        params = SimpleNamespace(temperature=1.0, max_tokens=max_tokens, ignore_eos=True)
        self.core.add(self._sequence(list(prompt), params))

    def schedule(self) -> int:
        self._sequence.block_size = self._block_size  # a class attribute there, and other sizes run in this process
        self._scheduled = self.core.schedule()
        return len(self._scheduled[0])

    def update(self, tokens: list[int]) -> None:
        sequences, is_prefill = self._scheduled
        self.core.postprocess(sequences, tokens, is_prefill)


def nano_missing() -> str | None:
    """Why nano-vLLM cannot be a peer here; None: it can."""
    path = os.environ.get("NANO_VLLM")
    if not path:
        return "NANO_VLLM is not set (the folder of a checkout of GeeeekExplorer/nano-vllm)"
    if not (Path(path) / "nanovllm" / "engine" / "scheduler.py").is_file():
        return f"NANO_VLLM is {path}, and there is no nanovllm/engine/scheduler.py in it"
    return None


def _nano_modules() -> tuple[Any, Any]:
    root = Path(os.environ["NANO_VLLM"]) / "nanovllm"
    if "nanovllm" not in sys.modules:
        # Its packages import model code, which needs a GPU's libraries; the scheduler alone does not.
        for name, folder in (("nanovllm", root), ("nanovllm.engine", root / "engine")):
            package = types.ModuleType(name)
            package.__path__ = [str(folder)]
            sys.modules[name] = package
        config = types.ModuleType("nanovllm.config")
        config.Config = object  # type: ignore[attr-defined]
        sys.modules["nanovllm.config"] = config
    return importlib.import_module("nanovllm.engine.scheduler"), importlib.import_module("nanovllm.engine.sequence")
