"""Random weights in the shapes of a config: for benchmarks, where speed matters and text does not."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from batchwright_backends.torch.attention import ATTENTION


def make_model(config: Any, dtype: torch.dtype, device: torch.device, seed: int) -> Any:
    """A model whose weights are drawn as its own modeling code draws them before training.

    Weights are made on the device and in the dtype that they stay in, one tensor at a time: making a model takes the
    memory of the model. The norms are at one, and matrices small, so activations stay finite in every dtype however
    many layers there are. The process' own random state is left as it was.

    Args:
        config: of transformers.
        dtype: of the weights.
        device: of the weights.
        seed: the same config, dtype, device and seed give the same weights.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.device(device):
        torch.manual_seed(seed % (1 << 63))
        make: Any = AutoModelForCausalLM.from_config
        return make(config, dtype=dtype, attn_implementation=ATTENTION)
