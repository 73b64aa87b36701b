"""How large the KV cache is: what steps and recorded graphs take is found by trying them, before it takes the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from batchwright.backend import BackendSettings
from batchwright.batch import SamplingArrays
from batchwright_backends.torch import memory, probe
from batchwright_backends.torch.attention import AttentionLayer, attending
from batchwright_backends.torch.devices import Accelerator, Device
from batchwright_backends.torch.graphs import DecodeGraphs, GraphChoice
from batchwright_backends.torch.group import ALONE, Group
from batchwright_backends.torch.inputs import DirectUpload
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kv_cache import KVCache
from batchwright_backends.torch.loading import weight_bytes
from batchwright_backends.torch.options import TorchOptions
from batchwright_backends.torch.runner import Runner
from batchwright_backends.torch.sampling import SamplingPlan, sample
from batchwright_backends.torch.torch_errors import LOWER_POOL, LOWER_STEP, torch_errors


def make_cache(
    settings: BackendSettings,
    options: TorchOptions,
    model: Any,
    layers: Mapping[torch.nn.Module, AttentionLayer],
    kernel: AttentionKernel,
    device: Device,
    graphs: GraphChoice,
    block_size: int,
    max_model_len: int | None,
    group: Group = ALONE,
) -> KVCache:
    """The KV cache: of the size that the settings say, else of what memory allows.

    Args:
        settings: of the engine.
        options: of the backend.
        model: with our attention function.
        layers: of it.
        kernel: that will run.
        device: of the model.
        graphs: that will be recorded.
        block_size: tokens of a block.
        max_model_len: tokens of a request at most; None: the cache bounds it.
        group: of ranks, whose caches have equally many blocks.

    Raises:
        ConfigError: the settings ask for more than there is.
        BackendError: there is no memory for a step, or for a single block.
    """
    specs = list(layers.values())
    block_bytes = KVCache.bytes_per_block(specs, block_size, model.dtype)

    def make_graphs() -> DecodeGraphs:
        scratch = KVCache(specs, 1, block_size, model.dtype, device.device)
        longest = max_model_len or (device.free_bytes() or 0) // block_bytes * block_size
        width = max(1, -(-longest // block_size))
        return Runner(model, layers, kernel, scratch, device).make_graphs(graphs.sizes, width)

    def budget() -> int:
        if not isinstance(device, Accelerator):
            return memory.cpu_budget(options.memory_fraction) // group.size
        gpu = device
        return memory.device_budget(
            gpu,
            options.memory_fraction,
            lambda: largest_step(model, settings.max_num_batched_tokens, settings.max_num_seqs, max_model_len),
            lambda: graphs.attempt(lambda: graph_bytes(gpu, make_graphs), otherwise=0),
        )

    blocks = memory.num_blocks(
        settings.num_blocks,
        options.kv_cache_gib,
        device.free_bytes() if isinstance(device, Accelerator) else group.share_of_host(device.free_bytes()),
        budget,
        block_bytes,
        block_size,
        str(device.device),
    )
    blocks = group.least(blocks, device.device)
    taking = f"taking {memory.size_text(blocks * block_bytes)} for a KV cache of {blocks} blocks"
    with torch_errors(taking, LOWER_POOL, lambda: {"weights": weight_bytes(model)}):
        return KVCache(specs, blocks, block_size, model.dtype, device.device)


def largest_step(model: Any, num_tokens: int, num_rows: int, max_model_len: int | None) -> None:
    """Run a step of the largest size without a KV cache, and sample from it in the way that takes most memory.

    Args:
        model: with our attention function.
        num_tokens: of the step.
        num_rows: that sample; at most as many as there are tokens do.
        max_model_len: positions stay below it; None: below ``num_tokens``.

    Raises:
        BackendError: there is no memory for it.
    """
    what = f"running a step of max_num_batched_tokens ({num_tokens}) in which max_num_seqs ({num_rows}) sample"
    rows = min(num_rows, num_tokens)
    with torch_errors(what, LOWER_STEP, lambda: {"weights": weight_bytes(model)}), torch.inference_mode():
        tokens = torch.arange(num_tokens, device=model.device)[None]
        keep = {"logits_to_keep": tokens[0, :rows]} if probe.keeps_logits(model) else {}
        with attending(probe.Probe()):
            logits = model(
                input_ids=tokens % model.config.get_text_config().vocab_size,
                position_ids=tokens % (max_model_len or num_tokens),
                use_cache=False,
                **keep,
            ).logits[0, :rows]
        sample(logits, SamplingPlan(_costly(rows), DirectUpload(model.device)))


def _costly(rows: int) -> SamplingArrays:
    """Parameters that need a sort and every filter."""
    return SamplingArrays(
        temperature=np.ones(rows, dtype=np.float32),
        top_k=np.zeros(rows, dtype=np.int32),
        top_p=np.full(rows, 0.5, dtype=np.float32),
        min_p=np.full(rows, 0.01, dtype=np.float32),
        seed=np.zeros(rows, dtype=np.uint64),
        output_index=np.zeros(rows, dtype=np.int64),
        logprobs=np.zeros(rows, dtype=np.int32),
    )


def graph_bytes(device: Accelerator, make_graphs: Callable[[], DecodeGraphs]) -> int:
    """Memory that all graphs will take: the largest is recorded and the one below it, and both are given up again.

    Each of the others is taken to need what the second one does beside the first, whose memory they share.

    Args:
        device: that records.
        make_graphs: over a KV cache that does not matter.
    """
    device.release()
    free = [device.free_bytes() or 0]
    graphs = make_graphs()
    for size in graphs.sizes[:-3:-1]:
        graphs.capture_one(size)
        device.release()
        free.append(device.free_bytes() or 0)
    others = len(graphs.sizes) - 1
    del graphs
    device.release()
    taken = [max(0, before - after) for before, after in pairwise(free)]
    return taken[0] + others * taken[-1] if others else taken[0]
