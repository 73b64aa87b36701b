"""Runs steps: arrays to the device, the model over them, tokens from its logits.

A step has three parts, each a method: ``prepare`` does all that the host has to do and queues one copy, ``forward``
queues the model, ``sample`` queues the choice of tokens and their way back. On a GPU none of them waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from batchwright.batch import Batch, SamplingArrays
from batchwright.errors import BackendError
from batchwright_backends.torch import probe
from batchwright_backends.torch.attention import AttentionLayer, PagedStep, attending
from batchwright_backends.torch.buffers import Staging
from batchwright_backends.torch.devices import Accelerator, Device, Event
from batchwright_backends.torch.graphs import DecodeGraphs
from batchwright_backends.torch.inputs import DirectUpload, StepInputs, StepTensors
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kv_cache import KVCache
from batchwright_backends.torch.logprobs import Logprobs, LogprobsPlan
from batchwright_backends.torch.sampling import SamplingPlan, sample

_PADDING_CHECK = "warn_if_padding_and_no_attention_mask"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step whose arrays are on their way to the device.

    Attributes:
        inputs: on the host.
        sampling: how the rows that sample do so; None: none does, or only their logits are wanted.
        logprobs: which of them want log-probabilities; None: none does.
        fresh: int64, blocks to clear first; None: none.
        graph: the size of the recorded batch that runs, and what it reads; None: the model runs.
        tensors: for the model.
        plan: of the attention kernel.
    """

    inputs: StepInputs
    sampling: SamplingPlan | None
    logprobs: LogprobsPlan | None
    fresh: torch.Tensor | None
    graph: tuple[int, tuple[torch.Tensor, torch.Tensor]] | None
    tensors: StepTensors | None
    plan: Any


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens on their way back.

    Attributes:
        tokens: int64[m] on the host, once ``done``; None: no row samples.
        finite: bool[m], rows whose logits are all finite.
        logprobs: of the rows that want them; None: none does.
        done: when they are there, and with them the step.
    """

    tokens: torch.Tensor | None
    finite: torch.Tensor | None
    logprobs: Logprobs | None
    done: Event


class Runner:
    """A model over a paged KV cache.

    Attributes:
        model: a causal language model of transformers with our attention function.
        layers: its attention layers, by the module that calls.
        kernel: that computes attention.
        cache: K and V.
        device: where they are.
        graphs: recorded steps of decodes; None: the model runs each step.
        announce: is told of each step before it runs: other ranks run it too; None: there are none.
    """

    def __init__(
        self,
        model: Any,
        layers: Mapping[torch.nn.Module, AttentionLayer],
        kernel: AttentionKernel,
        cache: KVCache,
        device: Device,
    ) -> None:
        self.model = model
        self.layers = layers
        self.kernel = kernel
        self.cache = cache
        self.device = device
        self.graphs: DecodeGraphs | None = None
        self.announce: Callable[[StepInputs], None] | None = None
        self._keeps_logits = probe.keeps_logits(model)
        spare_the_padding_check(model)
        self._staging = Staging(device) if isinstance(device, Accelerator) else None
        self._upload = self._staging or DirectUpload(device.device)

    def make_graphs(self, sizes: Sequence[int], max_num_blocks: int) -> DecodeGraphs:
        """Graphs of this runner's steps of decodes, none of them recorded.

        Args:
            sizes: of batches, ascending.
            max_num_blocks: of a request.

        Raises:
            BackendError: the device records none.
        """
        if not isinstance(self.device, Accelerator):
            raise BackendError(f"steps cannot be recorded on {self.device.device}: only a GPU has graphs")
        return DecodeGraphs(self.device, self.kernel, self.cache, self._run_model, sizes, max_num_blocks)

    def record_decodes(self, sizes: Sequence[int], max_num_blocks: int) -> None:
        """Record steps of decodes; from now on they are replayed. Arguments as of :meth:`make_graphs`."""
        graphs = self.make_graphs(sizes, max_num_blocks)
        graphs.capture()
        self.graphs = graphs

    def run(self, batch: Batch) -> Sampled:
        """Queue a step."""
        with torch.inference_mode():
            step = self.prepare(StepInputs.from_batch(batch), batch.sampling)
            return self.sample(self.forward(step), step)

    def logits(self, inputs: StepInputs) -> torch.Tensor:
        """Run a step's tokens through the model.

        Returns:
            [m, vocabulary], of the tokens in ``inputs.sampled``.
        """
        with torch.inference_mode():
            return self.forward(self.prepare(inputs))

    def prepare(self, inputs: StepInputs, params: SamplingArrays | None = None) -> Prepared:
        """All of a step that is done on the host.

        Args:
            inputs: its arrays.
            params: of the rows that sample; None: only logits are wanted.
        """
        if self._staging is not None:
            self._staging.begin()
        if self.announce is not None:
            self.announce(inputs)
        inputs.upload = self._upload
        fresh = self.cache.fresh_blocks(inputs.slots)
        tensors = plan = graph = None
        size = self.graphs.size_for(inputs.num_rows) if self.graphs is not None and inputs.is_decode else None
        if self.graphs is not None and size is not None:
            graph = size, self.graphs.fill(inputs, size, self._upload)
        else:
            tensors = inputs.tensors(self.device.device)
            plan = self.kernel.plan(inputs, self.cache)
        sampling = logprobs = None
        if params is not None and len(inputs.sampled):
            sampling, logprobs = SamplingPlan(params, self._upload), LogprobsPlan.of(params, self._upload)
        step = Prepared(
            inputs=inputs,
            sampling=sampling,
            logprobs=logprobs,
            fresh=None if fresh is None else self._upload.put(fresh),
            graph=graph,
            tensors=tensors,
            plan=plan,
        )
        if self._staging is not None:
            self._staging.flush()
        return step

    def forward(self, step: Prepared) -> torch.Tensor:
        """Queue the model: logits [m, vocabulary], which stand until the next step is queued."""
        if step.fresh is not None:
            self.cache.clear(step.fresh)
        if step.graph is not None:
            assert self.graphs is not None
            size, filled = step.graph
            return self.graphs.run(filled, size)[: step.inputs.num_rows]
        assert step.tensors is not None
        return self._run_model(step.tensors, step.plan)

    def sample(self, logits: torch.Tensor, step: Prepared) -> Sampled:
        """Queue the choice of tokens, and their copy to the host."""
        if step.sampling is None:
            return Sampled(None, None, None, self.device.mark())
        tokens, finite = sample(logits, step.sampling)
        logprobs = None if step.logprobs is None else Logprobs.compute(logits, tokens, step.logprobs, self.device)
        return Sampled(self.device.to_host(tokens), self.device.to_host(finite), logprobs, self.device.mark())

    def _run_model(self, tensors: StepTensors, plan: Any) -> torch.Tensor:
        """Logits [m, vocabulary]."""
        sampled = tensors.sampled
        session = PagedStep(self.layers, self.cache, self.kernel, plan, tensors.slots)
        keep = {} if sampled is None or not self._keeps_logits else {"logits_to_keep": sampled}
        with attending(session):
            logits: torch.Tensor = self.model(
                input_ids=tensors.token_ids[None], position_ids=tensors.positions[None], use_cache=False, **keep
            ).logits[0]
        return logits if sampled is None or self._keeps_logits else logits.index_select(0, sampled)


def spare_the_padding_check(model: Any) -> None:
    """Some models of transformers look for padding among the token ids where there is no mask, only to warn of it.

    Here is neither padding nor a mask, and looking waits for all that the device has queued.
    """
    for module in model.modules():
        if hasattr(module, _PADDING_CHECK):
            setattr(module, _PADDING_CHECK, _nothing)


def _nothing(*args: Any) -> None:
    pass
