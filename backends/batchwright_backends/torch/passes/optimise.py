"""The passes, in their order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from batchwright.backend import Capacity
from batchwright.errors import BackendError
from batchwright_backends.torch import probe
from batchwright_backends.torch.attention import AttentionLayer
from batchwright_backends.torch.check import TOLERANCE
from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.kernels.kernel import AttentionKernel
from batchwright_backends.torch.kernels.native import NativeAttention
from batchwright_backends.torch.native.build import NotBuilt
from batchwright_backends.torch.native.library import Functions, functions
from batchwright_backends.torch.passes import layers as decoder_layers
from batchwright_backends.torch.passes import linears, norms
from batchwright_backends.torch.passes.names import PASSES, Pass
from batchwright_backends.torch.passes.products import NativeProduct, OneDnnProduct, Product

logger = logging.getLogger(__name__)

# Of the steps on which modules are compared: the first token alone would not tell a rotary embedding from none.
NUM_TOKENS = 8


def optimise(
    model: Any,
    layers: Mapping[torch.nn.Module, AttentionLayer],
    kernel: AttentionKernel,
    wanted: Sequence[Pass] | None,
    logits: Callable[[StepInputs], torch.Tensor],
    capacity: Capacity,
) -> dict[Pass, str]:
    """Make the model faster.

    Args:
        model: on CPU, with our attention function.
        layers: its attention layers.
        kernel: that computes attention.
        wanted: passes to run; None: all.
        logits: runs a step; no request may be running.
        capacity: of the backend.

    Returns:
        for each pass what it did, or why nothing.

    Raises:
        BackendError: the model computes something else afterwards.
    """
    wanted = PASSES if wanted is None else wanted
    if not wanted:
        return {}
    size = capacity.block_size
    num_tokens = min(NUM_TOKENS, size * capacity.num_blocks, capacity.max_model_len)
    tokens = [7 * i % capacity.vocab_size for i in range(num_tokens)]
    inputs = StepInputs.of_rows([(tokens, 0, list(range(-(-num_tokens // size))))], size, all_logits=True)
    before = logits(inputs)
    done: dict[Pass, str] = {}
    with torch.inference_mode():
        for name in PASSES:
            if name in wanted:
                done[name] = _run(name, model, layers, kernel)
    logger.info("%s", "; ".join(f"{name}: {what}" for name, what in done.items()))
    after = logits(inputs)
    spread = (before.float() - before.float().mean(-1, keepdim=True)).norm()
    distance = float((after.float() - before.float()).norm() / spread.clamp(min=1e-30))
    if not distance <= TOLERANCE[model.dtype]:
        raise BackendError(
            f"{type(model).__name__} computes other logits after {', '.join(done)} than before (distance "
            f"{distance:.2g} of their spread, at most {TOLERANCE[model.dtype]} is rounding); set "
            "backend_options.passes to [] or to those that leave it right, and report it"
        )
    return done


def _run(
    name: Pass,
    model: Any,
    layers: Mapping[torch.nn.Module, AttentionLayer],
    kernel: AttentionKernel,
) -> str:
    def step() -> object:
        return probe.run(model, NUM_TOKENS)

    if name == "packed_linears":
        return _pack(model, step)
    if not isinstance(kernel, NativeAttention):
        return f"left out, attention is by {kernel.title}"
    if name == "fused_layers":
        return f"{decoder_layers.fuse(model, layers, kernel.functions, step)} layers"
    return f"{norms.fuse(model, kernel.functions)} norms"


def _pack(model: Any, step: Callable[[], object]) -> str:
    """Weights for the C++ products where these run, else for oneDNN's."""
    one_dnn = OneDnnProduct.refusal(model.dtype)
    native, reason = _native_products(model.dtype)
    if native is None and one_dnn is not None:
        return f"left out, {one_dnn}; not native: {reason}"

    def make(weight: torch.Tensor, bias: torch.Tensor | None, num_layers: int) -> Product:
        if native is None or NativeProduct.refusal(native, weight.shape[1]) is not None:
            return OneDnnProduct(weight, bias, num_layers)
        return NativeProduct(native, weight, bias, num_layers)

    watch = linears.InputWatch(model)
    step()
    packed = linears.pack(model, watch.groups(), make)
    return f"{packed} layers, by {'native products' if native is not None else f'oneDNN (not native: {reason})'}"


def _native_products(dtype: torch.dtype) -> tuple[Functions | None, str | None]:
    """The functions, or why they cannot be had."""
    try:
        built = functions(dtype)
    except NotBuilt as error:
        return None, str(error)
    reason = NativeProduct.refusal(built, 2)
    return (built, None) if reason is None else (None, reason)
