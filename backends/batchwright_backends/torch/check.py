"""Whether the paged model computes what the model computes: a comparison at load, on a few tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from batchwright.backend import Capacity
from batchwright.errors import BackendError
from batchwright_backends.torch.attention import ATTENTION, AttentionLayer
from batchwright_backends.torch.inputs import StepInputs
from batchwright_backends.torch.structure import check_tokens_are_apart

# Distance of the logits, as a share of their own spread, that rounding explains. Half precision alone puts SmolLM2 0.15
# (bfloat16) and 0.007 (float16) from its float32 on random tokens, so there only gross errors are found.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.4, torch.float16: 0.1}
MAX_TOKENS = 48


def compare_with_eager(
    model: Any, logits: Callable[[StepInputs], torch.Tensor], capacity: Capacity, layers: Sequence[AttentionLayer]
) -> None:
    """Compare the logits of two requests, one of them cut in chunks, with those of the model's own eager attention.

    It finds what the probe cannot see: a bias or a mask that the model adds elsewhere, positions that it makes up
    itself, a kernel that computes something else. A window is seen where it is short enough.

    Args:
        model: with our attention function.
        logits: runs a step.
        capacity: of the backend; no request may be running.
        layers: of the model.

    Raises:
        BackendError: they differ by more than rounding explains.
    """
    check_tokens_are_apart(model, capacity.max_model_len)
    size = capacity.block_size
    windows = [layer.window for layer in layers if layer.window is not None]
    wanted = min(MAX_TOKENS, max([12, *(w + 8 for w in windows if w + 8 <= MAX_TOKENS)]))
    num_tokens = min(wanted, capacity.max_model_len, capacity.num_blocks // 2 * size or size)
    rng = np.random.default_rng(0)
    first = rng.integers(capacity.vocab_size, size=num_tokens).tolist()
    second = rng.integers(capacity.vocab_size, size=max(1, num_tokens // 3)).tolist()
    blocks = -(-num_tokens // size)
    table, other = list(range(blocks)), list(range(blocks, 2 * blocks))
    two = 2 * blocks <= capacity.num_blocks
    cut = num_tokens // 2

    mine = []
    if cut:
        rows = [(first[:cut], 0, table)] + ([(second, 0, other)] if two else [])
        mine.append(logits(StepInputs.of_rows(rows, size, all_logits=True)))
    mine.append(logits(StepInputs.of_rows([(first[cut:], cut, table)], size, all_logits=True)))
    theirs = _eager_logits(model, first)
    pairs = [(torch.cat([mine[0][:cut], mine[-1]]) if cut else mine[-1], theirs)]
    if cut and two:
        pairs.append((mine[0][cut:], _eager_logits(model, second)))
    for got, want in pairs:
        spread = (want.float() - want.float().mean(-1, keepdim=True)).norm()
        distance = float((got.float() - want.float()).norm() / spread.clamp(min=1e-30))
        if not distance <= TOLERANCE[model.dtype]:  # NaN fails as well
            raise BackendError(
                f"{type(model).__name__} (model_type {model.config.model_type!r}) computes other logits with paged "
                f"attention than with its own eager attention (distance {distance:.2g} of their spread, at most "
                f"{TOLERANCE[model.dtype]} is rounding in {str(model.dtype).removeprefix('torch.')}); its modeling "
                "code does something beside the attention call that a KV cache in blocks does not see. If you know "
                "better, set backend_options.check_logits to false"
            )


def _eager_logits(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """Logits [n, vocabulary] of one request by the model's own code."""
    ids = torch.tensor([tokens], device=model.device)
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            logits: torch.Tensor = model(
                input_ids=ids, position_ids=torch.arange(len(tokens), device=model.device)[None], use_cache=False
            ).logits[0]
        return logits
    finally:
        model.set_attn_implementation(ATTENTION)
