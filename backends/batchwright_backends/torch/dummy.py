"""Random weights in the shapes of a config: for benchmarks, where speed matters and text does not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from batchwright_backends.torch.attention import ATTENTION
from batchwright_backends.torch.group import ALONE, Group

_from_config: Any = AutoModelForCausalLM.from_config


def make_model(config: Any, dtype: torch.dtype, device: torch.device, seed: int, group: Group = ALONE) -> Any:
    """A model whose weights are drawn as its own modeling code draws them before training.

    Weights are made on the device and in the dtype that they stay in, one tensor at a time: making a model takes the
    memory of the model. The norms are at one, and matrices small, so activations stay finite in every dtype however
    many layers there are. The process' own random state is left as it was.

    Args:
        config: of transformers.
        dtype: of the weights.
        device: of the weights.
        seed: the same config, dtype, device, seed and number of ranks give the same weights.
        group: of ranks that share the model; this one makes its shard.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.device(device):
        torch.manual_seed(seed % (1 << 63))
        if group.size > 1:
            return _make_shard(config, dtype, group)
        return _from_config(config, dtype=dtype, attn_implementation=ATTENTION)


def make_outline(config: Any) -> Any:
    """The model without weights."""
    with torch.device("meta"):
        return _from_config(config, attn_implementation=ATTENTION)


def _make_shard(config: Any, dtype: torch.dtype, group: Group) -> Any:
    """A checkpoint that lacks every weight has all of them drawn, and in the shape that this rank holds."""
    with _no_report():
        model = type(make_outline(config)).from_pretrained(
            None, config=config, state_dict={}, dtype=dtype, attn_implementation=ATTENTION, **group.load_options()
        )
    # Shards may differ in size, and then the ranks have drawn differently many numbers before a weight that is whole.
    group.share_whole_weights(model)
    return model


@contextmanager
def _no_report() -> Iterator[None]:
    log: Any = transformers_logging
    before = log.get_verbosity()
    log.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            # Numbers that differ from those of one process are as random.
            warnings.filterwarnings("ignore", message="DTensor random operators may not have complete support")
            yield
    finally:
        log.set_verbosity(before)
