"""How many KV blocks a GPU has room for beside a model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from batchwright.errors import ConfigError
from batchwright_backends.sim.gpus import Gpu
from batchwright_backends.sim.shape import ModelShape

# CUDA context, libraries and graphs. With the two terms below, the RTX 4090 run of LLMServingSim (vLLM 0.19.0,
# Llama-3.1-8B, 0.9 of the memory, 2048 tokens and 256 requests a step) comes out at 2618 blocks of 16; it had 2588.
RUNTIME_BYTES = 512 * 2**20
# Logits of a step: bf16 as they come, then fp32, then what sampling makes of them.
BYTES_PER_LOGIT = 12

DEFAULT_UTILIZATION = 0.9
"""Share of a device's memory that an engine takes, unless told otherwise."""
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one GPU.

    Attributes:
        usable: its memory times the utilisation.
        weights: its share of the model.
        reserve: activations of the largest step, and the runtime.
        block: one KV block.
    """

    usable: int
    weights: int
    reserve: int
    block: int

    @property
    def num_blocks(self) -> int:
        """Blocks that fit; 0 or less: none do."""
        return (self.usable - self.weights - self.reserve) // self.block


def plan_memory(
    shape: ModelShape,
    gpu: Gpu,
    tensor_parallel: int,
    *,
    utilization: float,
    block_size: int,
    max_num_batched_tokens: int,
    max_num_seqs: int,
) -> MemoryPlan:
    """Where the memory of each GPU goes.

    Activations are counted for the largest step: four rows of the residual stream and one of gate, up and their
    product for each token, and the logits of each request.
    """
    return MemoryPlan(
        usable=int(gpu.memory_bytes * utilization),
        weights=-(-shape.weight_bytes // tensor_parallel),
        reserve=_reserve(shape, tensor_parallel, max_num_batched_tokens, max_num_seqs),
        block=block_size * shape.kv_bytes_per_token(tensor_parallel),
    )


def check_fits(plan: MemoryPlan, shape: ModelShape, gpu: Gpu, tensor_parallel: int, utilization: float) -> None:
    """Refuse a model that leaves no room for a block.

    Raises:
        ConfigError: gives the sizes, and what would help.
    """
    if plan.num_blocks >= 1:
        return
    spread = "" if tensor_parallel == 1 else f" on each of {tensor_parallel} GPUs"
    sizes = [n for n in shape.tensor_parallel_sizes if n > tensor_parallel]
    enough = next((n for n in sizes if shape.weight_bytes / n + plan.reserve + plan.block <= plan.usable), None)
    helps = ["a GPU with more memory"]
    if enough is not None:
        helps.insert(0, f"{gpu.name}x{enough}")
    if plan.weights + plan.block <= plan.usable:
        helps.append("a lower max_num_batched_tokens or max_num_seqs")
    raise ConfigError(
        f"{shape.name} does not fit {gpu.name}: weights take {plan.weights / _GIB:.1f} GiB{spread} and activations "
        f"{plan.reserve / _GIB:.1f} GiB, of {plan.usable / _GIB:.1f} GiB usable ({gpu.memory_bytes / _GIB:.1f} GiB at "
        f"gpu_memory_utilization {utilization:g}), so no KV block is left; try {' or '.join(helps)}"
    )


def _reserve(shape: ModelShape, tensor_parallel: int, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """Bytes of activations of the largest step, and of the runtime."""
    inner = max(
        shape.intermediate_size,
        shape.num_experts_per_tok * shape.moe_intermediate_size + shape.shared_expert_intermediate_size,
    )
    per_token = shape.dtype_bytes * (4 * shape.hidden_size + (shape.mlp_matrices * inner) // tensor_parallel)
    return RUNTIME_BYTES + max_num_batched_tokens * per_token + max_num_seqs * shape.vocab_size * BYTES_PER_LOGIT


def memory_for(
    shape: ModelShape, num_blocks: int, block_size: int, max_num_batched_tokens: int, max_num_seqs: int
) -> int:
    """Bytes of the device on which a model, under these limits and the default utilisation, has so many blocks."""
    block = block_size * shape.kv_bytes_per_token()
    reserve = _reserve(shape, 1, max_num_batched_tokens, max_num_seqs)
    usable = shape.weight_bytes + reserve + num_blocks * block + block // 2
    return math.ceil(usable / DEFAULT_UTILIZATION)
