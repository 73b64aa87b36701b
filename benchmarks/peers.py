"""Schedulers behind one small interface, so that a benchmark drives all of them alike.

nano-vLLM's own scheduler is read from the folder that the environment variable ``NANO_VLLM`` names (a checkout of
GeeeekExplorer/nano-vllm); without it that peer is left out.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from batchwright import Limits, Policy, Request, SamplingParams, Scheduler, Step, hookimpl
from batchwright.config import EngineConfig
from batchwright.effective import effective_settings
from batchwright.resolve import resolve_policy
from batchwright_policies.priority import Priority

if TYPE_CHECKING:
    import torch

FOREVER = 10**9


class Peer(Protocol):
    name: str

    def add(self, prompt: Sequence[int], max_tokens: int = FOREVER, **fields: Any) -> None:
        """Take a request; ``fields`` are what policies read, where a peer has policies."""
        ...

    def schedule(self) -> int:
        """Build a batch; returns its number of requests."""
        ...

    def num_sampling(self) -> int:
        """Requests of the last batch that sample."""
        ...

    def update(self, tokens: list[int]) -> None:
        """Take one token for each request of the batch that samples."""
        ...


class OneByOne(Policy):
    """Decodes are offered one by one, as a policy does that chooses among them."""

    @hookimpl
    def admission(self, step: Step) -> Iterator[Any]:
        yield from step.running
        yield step.waiting


class Sorted:
    """Who waits, as a list that is sorted each time somebody looks."""

    def __init__(self, place: Callable[[Request], Any]) -> None:
        self._place = place
        self._items: dict[Request, None] = {}

    def __len__(self) -> int:
        return len(self._items)

    def push(self, item: Request) -> None:
        self._items[item] = None

    def discard(self, item: Request) -> None:
        self._items.pop(item, None)

    def fill(self, items: Iterable[Request]) -> None:
        self._items = dict.fromkeys(items)

    def first(self) -> Request | None:
        return next(self.in_order(), None)

    def in_order(self) -> Iterator[Request]:
        return iter(sorted(self._items, key=self._place))


class SortsAll(Priority):
    """What a ranked policy costs that sorts all who are there in each step; it decides what ``priority`` does."""

    def make_queue(self) -> Sorted:
        return Sorted(lambda r: (r.priority, r.arrival_index))

    def rank_holds(self, request: Request) -> None:  # type: ignore[override]
        return None


class Ours:
    def __init__(
        self,
        policy: str | Policy,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        budget: int,
        max_num_residents: int | None = None,
    ) -> None:
        self.name = f"batchwright {policy if isinstance(policy, str) else type(policy).__name__}"
        active = resolve_policy(policy)
        config = EngineConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)
        settings = effective_settings(config, active)
        self.core = Scheduler(
            active,
            num_blocks=num_blocks,
            block_size=block_size,
            limits=Limits(max_num_seqs, budget, max_num_residents or settings.limits.max_num_residents),
            prefix_cache=settings.prefix_cache,
        )
        self._num = 0
        self._batch: Any = None

    def add(self, prompt: Sequence[int], max_tokens: int = FOREVER, **fields: Any) -> None:
        # Feasibility counts max_tokens, so "for ever" is as long as the pool allows.
        blocks = self.core.blocks
        most = blocks.num_blocks * blocks.block_size - len(prompt)
        self.core.add(Request(f"r{self._num}", prompt, _params(min(max_tokens, most)), **fields))
        self._num += 1

    def schedule(self) -> int:
        self._batch = self.core.schedule()
        return len(self._batch)

    def num_sampling(self) -> int:
        return int(self._batch.samples.sum())

    def update(self, tokens: list[int]) -> None:
        self.core.update(self._batch, tokens)

    def num_waiting(self) -> int:
        return len(self.core.waiting)

    def prepare_inputs(self) -> list[torch.Tensor]:
        """What the torch backend makes of the last batch, as tensors."""
        as_tensor, from_batch = _torch_inputs()
        inputs = from_batch(self._batch)
        arrays = (inputs.token_ids, inputs.positions, inputs.slots, inputs.context_lens, inputs.block_tables)
        return [as_tensor(array) for array in arrays]


@cache
def _torch_inputs() -> tuple[Any, Any]:
    import torch

    from batchwright_backends.torch.inputs import StepInputs

    return torch.from_numpy, StepInputs.from_batch


@cache
def _params(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


@cache
def _nano_params(max_tokens: int) -> SimpleNamespace:
    return SimpleNamespace(temperature=1.0, max_tokens=max_tokens, ignore_eos=True)


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

    def add(self, prompt: Sequence[int], max_tokens: int = FOREVER, **_fields: Any) -> None:
        self.core.add(self._sequence(list(prompt), _nano_params(max_tokens)))

    def schedule(self) -> int:
        self._sequence.block_size = self._block_size  # a class attribute there, and other sizes run in this process
        self._scheduled = self.core.schedule()
        return len(self._scheduled[0])

    def num_sampling(self) -> int:
        sequences, is_prefill = self._scheduled
        if not is_prefill:
            return len(sequences)
        return sum(s.num_cached_tokens + s.num_scheduled_tokens == s.num_tokens for s in sequences)

    def update(self, tokens: list[int]) -> None:
        sequences, is_prefill = self._scheduled
        if len(tokens) < len(sequences):  # it takes one for each row, and ignores that of a prompt not at its end
            given = iter(tokens)
            tokens = [
                next(given) if s.num_cached_tokens + s.num_scheduled_tokens == s.num_tokens else 0 for s in sequences
            ]
        self.core.postprocess(sequences, tokens, is_prefill)

    def prepare_inputs(self) -> None:
        """Its own ``prepare_decode`` on the last batch, with CPU tensors."""
        runner = _nano_runner()
        this = SimpleNamespace(
            block_size=self._block_size,
            prepare_block_tables=lambda sequences: runner.prepare_block_tables(None, sequences),
        )
        runner.prepare_decode(this, self._scheduled[0])


class Yardstick:
    """No scheduler: a loop that appends one token to a list for each request. Decodes only."""

    name = "yardstick"

    def __init__(self, *_sizes: int) -> None:
        self._lists: list[list[int]] = []

    def add(self, prompt: Sequence[int], max_tokens: int = FOREVER, **_fields: Any) -> None:
        self._lists.append(list(prompt))

    def schedule(self) -> int:
        return len(self._lists)

    def num_sampling(self) -> int:
        return len(self._lists)

    def update(self, tokens: list[int]) -> None:
        for known, token in zip(self._lists, tokens, strict=True):
            known.append(token)


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


@cache
def _nano_runner() -> Any:
    """Its ModelRunner's input preparation. The module's own imports need a GPU's libraries, so they are stood in for;
    tensors stay on the CPU."""
    import torch

    _nano_modules()
    root = Path(os.environ["NANO_VLLM"]) / "nanovllm"
    package = types.ModuleType("nanovllm.utils")
    package.__path__ = [str(root / "utils")]
    sys.modules["nanovllm.utils"] = package
    for name, attribute in (
        ("nanovllm.models.qwen3", "Qwen3ForCausalLM"),
        ("nanovllm.layers.sampler", "Sampler"),
        ("nanovllm.utils.loader", "load_model"),
    ):
        module = types.ModuleType(name)
        setattr(module, attribute, None)
        sys.modules[name] = module
    module = importlib.import_module("nanovllm.engine.model_runner")

    class OnCpu:
        """torch for that module: no pinned memory, and moving to the device is nothing."""

        def tensor(self, data: Any, dtype: torch.dtype, pin_memory: bool) -> Any:
            made = torch.tensor(data, dtype=dtype)
            return SimpleNamespace(cuda=lambda non_blocking: made)

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    module.torch = OnCpu()  # type: ignore[attr-defined]
    return module.ModelRunner
