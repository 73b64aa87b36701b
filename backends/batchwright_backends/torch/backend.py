"""The torch backend: one runner for CPU and CUDA.

A step: the batch's arrays become tensors; transformers' model runs all rows' tokens flat behind each other, each
layer's attention going through the block tables; logits are computed for the rows that sample, and tokens drawn from
them on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from batchwright.backend import Backend, BackendSettings, Capacity, RealClock, StepResult
from batchwright.batch import Batch
from batchwright.errors import BackendError, ConfigError
from batchwright_backends.torch import check, probe
from batchwright_backends.torch.devices import Accelerator, device_of
from batchwright_backends.torch.dtypes import choose_dtype
from batchwright_backends.torch.graphs import GraphChoice
from batchwright_backends.torch.group import ALONE, Group
from batchwright_backends.torch.kernels.choice import Choice, choose
from batchwright_backends.torch.loading import LoadedModel, load, weight_bytes
from batchwright_backends.torch.models import resolve
from batchwright_backends.torch.options import TorchOptions
from batchwright_backends.torch.passes.optimise import optimise
from batchwright_backends.torch.runner import Runner, Sampled
from batchwright_backends.torch.sizing import make_cache
from batchwright_backends.torch.torch_errors import LOWER_STEP, LOWER_WEIGHTS, torch_errors

logger = logging.getLogger(__name__)

PROBE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Submitted:
    """A step on its way.

    Attributes:
        sampled: its tokens.
        request_ids: of the rows that sample.
        start_ns: when it was submitted.
        what: it is, for messages.
    """

    sampled: Sampled
    request_ids: list[str]
    start_ns: int
    what: str


class TorchBackend(Backend):
    """A transformers model over a paged KV cache. Make it with :meth:`create`.

    Attributes:
        model: the model.
        runner: that runs it.
        choice: which attention kernel runs, and why.
    """

    gives_logprobs = True

    def __init__(self, name: str, loaded: LoadedModel, choice: Choice, runner: Runner, capacity: Capacity) -> None:
        self.name = name
        self.tokenizer = loaded.tokenizer
        self.clock = RealClock()
        self.model: Any = loaded.model
        self.runner: Runner = runner
        self.choice = choice
        self._capacity = capacity
        self._collected_ns = 0

    @classmethod
    def create(cls, device_name: str, settings: BackendSettings, group: Group = ALONE) -> TorchBackend:
        """Load the model and take memory for its KV cache.

        Args:
            device_name: ``cpu`` or ``cuda``.
            settings: of the engine.
            group: of ranks that share the model; without it, as many are started as ``tensor_parallel_size`` says.

        Raises:
            ConfigError: a setting is out of its range.
            BackendError: the model cannot be loaded or run here, or does not fit.
        """
        options = TorchOptions.parse(settings.options)
        for field in ("block_size", "num_blocks", "max_model_len"):
            if (value := getattr(settings, field)) is not None and value < 1:
                raise ConfigError(f"{field} must be at least 1, or left out, not {value}")
        where = group.device(device_name)
        if where.type == "cuda" and not torch.cuda.is_available():
            raise BackendError(
                f"cuda:{settings.target} cannot run here: torch finds no CUDA device; use cpu:{settings.target}"
            )
        if options.num_threads is not None:
            torch.set_num_threads(options.num_threads)
        if options.tensor_parallel_size != group.size:
            from batchwright_backends.torch.parallel import create_sharded

            return create_sharded(device_name, settings)
        dtype = choose_dtype(options.dtype, where)
        name = f"{device_name}:{settings.target}"
        source = resolve(settings.target)
        with torch_errors(f"loading {name}", LOWER_WEIGHTS):
            loaded = load(source, dtype, where, load_format=options.load_format, seed=settings.seed, group=group)
            group.meet()
            layers = probe.run(loaded.model, PROBE_TOKENS)
        choice = choose(options.attention, where, dtype, settings.block_size, list(layers.values()))
        block_size = settings.block_size or choice.kernel.default_block_size
        max_model_len = _max_model_len(settings.max_model_len, loaded)
        device = device_of(where)
        graphs = GraphChoice.make(options.cuda_graphs, device, choice.kernel, settings.max_num_seqs)
        cache = make_cache(
            settings, options, loaded.model, layers, choice.kernel, device, graphs, block_size, max_model_len, group
        )
        text = loaded.model.config.get_text_config()
        capacity = Capacity(
            num_blocks=cache.num_blocks,
            block_size=block_size,
            max_model_len=max_model_len or cache.num_blocks * block_size,
            vocab_size=int(text.vocab_size),
            eos_token_ids=loaded.eos_token_ids,
        )
        runner = Runner(loaded.model, layers, choice.kernel, cache, device)
        backend = cls(name, loaded, choice, runner, capacity)
        if options.check_logits:
            with torch_errors(f"comparing the logits of {name}", LOWER_STEP, backend.held_bytes):
                check.compare_with_eager(backend.model, runner.logits, capacity, list(layers.values()))
        if not isinstance(device, Accelerator) and group.size == 1:
            optimise(loaded.model, layers, choice.kernel, options.passes, runner.logits, capacity)
        longest = -(-capacity.max_model_len // block_size)
        graphs.attempt(lambda: runner.record_decodes(graphs.sizes, min(longest, cache.num_blocks)), None)
        if isinstance(device, Accelerator):
            backend.notes = (str(choice), str(graphs))
        elif options.attention != "auto":
            backend.notes = (str(choice),)
        logger.info("%s: %s, %s blocks of %s tokens, %s, %s", name, dtype, cache.num_blocks, block_size, choice, graphs)
        return backend

    def capacity(self) -> Capacity:
        """See :class:`~batchwright.backend.Backend`."""
        return self._capacity

    def submit(self, batch: Batch) -> Submitted:
        """See :class:`~batchwright.backend.Backend`. On CPU the step is done when this returns."""
        start_ns = self.clock.now_ns()
        what = f"running step {batch.step_index} of {batch.num_tokens} tokens in {len(batch)} requests"
        with torch_errors(what, LOWER_STEP, self.held_bytes):
            sampled = self.runner.run(batch)
        request_ids = [i for i, s in zip(batch.request_ids, batch.samples.tolist(), strict=True) if s]
        return Submitted(sampled, request_ids, start_ns, what)

    def collect(self, handle: Submitted) -> StepResult:
        """See :class:`~batchwright.backend.Backend`."""
        sampled = handle.sampled
        with torch_errors(handle.what, LOWER_STEP, self.held_bytes):
            sampled.done.synchronize()
        # Submitted before the step ahead of it was done, it began when that one ended.
        start_ns, self._collected_ns = max(handle.start_ns, self._collected_ns), self.clock.now_ns()
        elapsed_ns = self._collected_ns - start_ns
        if sampled.tokens is None or sampled.finite is None:
            return StepResult([], elapsed_ns)
        token_ids: list[int] = sampled.tokens.tolist()
        finite: list[bool] = sampled.finite.tolist()
        failed = {} if all(finite) else dict(_failures(handle.request_ids, finite))
        return StepResult(token_ids, elapsed_ns, failed, None if sampled.logprobs is None else sampled.logprobs.read())

    def held_bytes(self) -> dict[str, int]:
        """What holds memory between steps."""
        return {"weights": weight_bytes(self.model), "KV cache": self.runner.cache.num_bytes}

    def close(self) -> None:
        """Give back the memory of model and KV cache. Nothing of the backend works afterwards."""
        if hasattr(self, "runner"):  # closing twice is no fault
            device = self.runner.device
            self.model = None
            del self.runner
            device.release()


def _max_model_len(wanted: int | None, loaded: LoadedModel) -> int | None:
    """Tokens of one request at most; None: only the pool bounds it.

    Raises:
        ConfigError: more is wanted than the model can do.
    """
    limit, steady = loaded.max_positions, loaded.steady_positions
    if wanted is not None and limit is not None and wanted > limit:
        raise ConfigError(f"max_model_len is {wanted}, and the model is made for at most {limit} tokens: lower it")
    if steady is not None and (wanted or limit or steady + 1) > steady:
        why = f"past {steady} tokens this model's position encoding depends on the longest request of the batch"
        if wanted is not None:
            raise ConfigError(f"max_model_len is {wanted}, and {why}: give at most {steady}")
        logger.warning("max_model_len is %s: %s", steady, why)
        return steady
    return wanted or limit


def _failures(request_ids: list[str], finite: list[bool]) -> Iterator[tuple[str, str]]:
    for request_id, fine in zip(request_ids, finite, strict=True):
        if not fine:
            yield (
                request_id,
                "the model's logits for this request are NaN or infinite; another dtype may help (float32, or bfloat16 "
                "in place of float16), and the weights may be damaged",
            )
