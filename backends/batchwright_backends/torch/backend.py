"""The torch backend: one runner for CPU and CUDA.

A step: the batch's arrays become tensors; transformers' model runs all rows' tokens flat behind each other, each
layer's attention going through the block tables; logits are computed for the rows that sample, and tokens drawn from
them on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from batchwright.backend import Backend, BackendSettings, Capacity, RealClock, StepResult
from batchwright.batch import Batch
from batchwright.errors import BackendError, ConfigError
from batchwright_backends.torch import check, memory, probe
from batchwright_backends.torch.attention import AttentionLayer, PagedStep, attending
from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.kernels.choice import Choice, choose
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kv_cache import KVCache
from batchwright_backends.torch.loading import LoadedModel, load, weight_bytes
from batchwright_backends.torch.models import resolve
from batchwright_backends.torch.options import TorchOptions
from batchwright_backends.torch.sampling import sample
from batchwright_backends.torch.torch_errors import LOWER_POOL, LOWER_STEP, LOWER_WEIGHTS, torch_errors

logger = logging.getLogger(__name__)

PROBE_TOKENS = 8
_DEFAULT_DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Submitted:
    """A step on its way.

    Attributes:
        tokens: int64[m] on the device, or None if no row samples.
        finite: bool[m], rows whose logits are all finite.
        request_ids: of the m rows.
        start_ns: when it was submitted.
    """

    tokens: torch.Tensor | None
    finite: torch.Tensor | None
    request_ids: list[str]
    start_ns: int


class TorchBackend(Backend):
    """A transformers model over a paged KV cache. Make it with :meth:`create`.

    Attributes:
        model: the model.
        layers: its attention layers, by the module that calls.
        cache: K and V.
        kernel: which attention kernel runs.
        choice: why it does.
    """

    def __init__(
        self,
        name: str,
        loaded: LoadedModel,
        layers: Mapping[torch.nn.Module, AttentionLayer],
        choice: Choice,
        cache: KVCache,
        capacity: Capacity,
    ) -> None:
        self.name = name
        self.tokenizer = loaded.tokenizer
        self.clock = RealClock()
        self.model: Any = loaded.model
        self.layers = layers
        self.choice = choice
        self.kernel: AttentionKernel = choice.kernel
        self.cache: KVCache = cache
        self._capacity = capacity
        self._device: torch.device = loaded.model.device
        self._keeps_logits = probe.keeps_logits(loaded.model)

    @classmethod
    def create(cls, device_name: str, settings: BackendSettings) -> TorchBackend:
        """Load the model and take memory for its KV cache.

        Args:
            device_name: ``cpu`` or ``cuda``.
            settings: of the engine.

        Raises:
            ConfigError: a setting is out of its range.
            BackendError: the model cannot be loaded or run here, or does not fit.
        """
        options = TorchOptions.parse(settings.options)
        for field in ("block_size", "num_blocks", "max_model_len"):
            if (value := getattr(settings, field)) is not None and value < 1:
                raise ConfigError(f"{field} must be at least 1, or left out, not {value}")
        device = torch.device(device_name)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise BackendError(
                f"cuda:{settings.target} cannot run here: torch finds no CUDA device; use cpu:{settings.target}"
            )
        if options.num_threads is not None:
            torch.set_num_threads(options.num_threads)
        dtype = getattr(torch, options.dtype) if options.dtype else _DEFAULT_DTYPES[device.type]
        name = f"{device_name}:{settings.target}"
        source = resolve(settings.target)
        with torch_errors(f"loading {name}", LOWER_WEIGHTS):
            loaded = load(source, dtype, device, load_format=options.load_format, seed=settings.seed)
            layers = probe.run(loaded.model, PROBE_TOKENS)
        choice = choose(options.attention, device, dtype, settings.block_size, list(layers.values()))
        block_size = settings.block_size or choice.kernel.default_block_size
        max_model_len = _max_model_len(settings.max_model_len, loaded)
        cache = _make_cache(settings, options, loaded, layers, block_size, max_model_len)
        text = loaded.model.config.get_text_config()
        capacity = Capacity(
            num_blocks=cache.num_blocks,
            block_size=block_size,
            max_model_len=max_model_len or cache.num_blocks * block_size,
            vocab_size=int(text.vocab_size),
            eos_token_ids=loaded.eos_token_ids,
        )
        backend = cls(name, loaded, layers, choice, cache, capacity)
        if device.type != "cpu" or options.attention != "auto":
            backend.notes = (str(choice),)
        if options.check_logits:
            with torch_errors(f"comparing the logits of {name}", LOWER_STEP, backend.held_bytes):
                check.compare_with_eager(backend.model, backend.logits, capacity, list(layers.values()))
        logger.info("%s: %s, %s blocks of %s tokens, %s", name, dtype, cache.num_blocks, block_size, choice)
        return backend

    def capacity(self) -> Capacity:
        """See :class:`~batchwright.backend.Backend`."""
        return self._capacity

    def submit(self, batch: Batch) -> Submitted:
        """See :class:`~batchwright.backend.Backend`. On CPU the step is done when this returns."""
        start_ns = self.clock.now_ns()
        inputs = StepInputs.from_batch(batch)
        request_ids = [i for i, s in zip(batch.request_ids, batch.samples.tolist(), strict=True) if s]
        what = f"running step {batch.step_index} of {batch.num_tokens} tokens in {len(batch)} requests"
        with torch_errors(what, LOWER_STEP, self.held_bytes):
            logits = self.logits(inputs)
            if not request_ids:
                return Submitted(None, None, request_ids, start_ns)
            with torch.inference_mode():
                tokens, finite = sample(logits, batch.sampling)
        return Submitted(tokens, finite, request_ids, start_ns)

    def collect(self, handle: Submitted) -> StepResult:
        """See :class:`~batchwright.backend.Backend`."""
        if handle.tokens is None or handle.finite is None:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            return StepResult([], self.clock.now_ns() - handle.start_ns)
        token_ids: list[int] = handle.tokens.tolist()
        finite: list[bool] = handle.finite.tolist()
        failed = {} if all(finite) else dict(_failures(handle.request_ids, finite))
        return StepResult(token_ids, self.clock.now_ns() - handle.start_ns, failed)

    def logits(self, inputs: StepInputs) -> torch.Tensor:
        """Run a step's tokens through the model.

        Returns:
            [m, vocabulary], of the tokens in ``inputs.sampled``.
        """
        with torch.inference_mode():
            self.cache.clear_fresh(inputs.slots)
            plan = self.kernel.plan(inputs, self.cache)
            step = PagedStep(self.layers, self.cache, self.kernel, plan, self._to_device(inputs.slots))
            sampled = self._to_device(inputs.sampled)
            with attending(step):
                logits: torch.Tensor = self.model(
                    input_ids=self._to_device(inputs.token_ids)[None],
                    position_ids=self._to_device(inputs.positions)[None],
                    use_cache=False,
                    **({"logits_to_keep": sampled} if self._keeps_logits else {}),
                ).logits[0]
            return logits if self._keeps_logits else logits.index_select(0, sampled)

    def held_bytes(self) -> dict[str, int]:
        """What holds memory between steps."""
        return {"weights": weight_bytes(self.model), "KV cache": self.cache.num_bytes}

    def close(self) -> None:
        """Give back the memory of model and KV cache. Nothing of the backend works afterwards."""
        self.model, self.layers = None, {}
        if hasattr(self, "cache"):  # closing twice is no fault
            del self.cache
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _to_device(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self._device)


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


def _make_cache(
    settings: BackendSettings,
    options: TorchOptions,
    loaded: LoadedModel,
    layers: Mapping[torch.nn.Module, AttentionLayer],
    block_size: int,
    max_model_len: int | None,
) -> KVCache:
    model, device = loaded.model, loaded.model.device
    specs = list(layers.values())

    def budget() -> int:
        if device.type == "cpu":
            return memory.cpu_budget(options.memory_fraction)
        return memory.cuda_budget(
            device,
            options.memory_fraction,
            lambda: warm_up(model, settings.max_num_batched_tokens, max_model_len),
        )

    free = memory.free_host_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    block_bytes = KVCache.bytes_per_block(specs, block_size, model.dtype)
    blocks = memory.num_blocks(
        settings.num_blocks, options.kv_cache_gib, free, budget, block_bytes, block_size, str(device)
    )
    taking = f"taking {memory.size_text(blocks * block_bytes)} for a KV cache of {blocks} blocks"
    with torch_errors(taking, LOWER_POOL, lambda: {"weights": weight_bytes(model)}):
        return KVCache(specs, blocks, block_size, model.dtype, device)


def warm_up(model: Any, num_tokens: int, max_model_len: int | None) -> None:
    """Run a step of the largest size without a KV cache.

    Raises:
        BackendError: there is no memory for it.
    """
    what = f"running a step of max_num_batched_tokens ({num_tokens})"
    with torch_errors(what, LOWER_STEP, lambda: {"weights": weight_bytes(model)}):
        probe.run(model, num_tokens, max_model_len)


def _failures(request_ids: list[str], finite: list[bool]) -> Iterator[tuple[str, str]]:
    for request_id, fine in zip(request_ids, finite, strict=True):
        if not fine:
            yield (
                request_id,
                "the model's logits for this request are NaN or infinite; another dtype may help (float32, or bfloat16 "
                "in place of float16), and the weights may be damaged",
            )
