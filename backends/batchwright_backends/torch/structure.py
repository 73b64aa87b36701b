"""What a model does beside its attention calls: it must treat each token by itself, at the position that it is told.

A batch lays the tokens of many requests behind each other. What mixes neighbours outside of the attention function (a
convolution, a shift), or counts positions by itself, gives wrong tokens there. In half precision a comparison of logits
does not tell this from rounding; here it shows, since only what must not change at all is looked at.
"""

from __future__ import annotations

from typing import Any

import torch

from batchwright.errors import BackendError
from batchwright_backends.torch.attention import attending

# Tokens 0 to 7, as they stand in the second run.
ORDER = (3, 0, 6, 1, 7, 4, 2, 5)
# Distance of the logits of both runs, as a share of their spread. A row of a matrix product does not depend on where it
# stands, so nearly always they are equal bit by bit.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}


class OwnToken:
    """An attention session in which each token sees itself alone.

    What it answers depends on the token's Q, K and V, and so on its position as far as Q and K do.
    """

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **kwargs: Any,
    ) -> torch.Tensor:
        """See :class:`~batchwright_backends.torch.attention.AttentionSession`."""
        groups = query.shape[1] // key.shape[1]
        gate = _direction(query) + _direction(key).repeat_interleave(groups, dim=1)
        return (value.repeat_interleave(groups, dim=1) * (1 + gate)).transpose(1, 2).contiguous()


def _direction(heads: torch.Tensor) -> torch.Tensor:
    """One number [1, heads, T, 1] for each vector, which a rotation changes and its length does not."""
    weights = torch.linspace(-1, 1, heads.shape[-1], dtype=heads.dtype, device=heads.device)
    return (torch.nn.functional.normalize(heads, dim=-1) * weights).sum(-1, keepdim=True)


def check_tokens_are_apart(model: Any, max_model_len: int) -> None:
    """Each token's logits follow from that token and its position, as long as attention shows it nothing else.

    Args:
        model: of transformers, with our attention function.
        max_model_len: positions stay below it.

    Raises:
        BackendError: it mixes tokens by itself, or does not take the positions that it is given.
    """
    count = min(len(ORDER), max_model_len)
    order = torch.tensor([i for i in ORDER if i < count], device=model.device)
    ids = torch.arange(3, 3 + 7 * count, 7, device=model.device) % model.config.get_text_config().vocab_size
    positions = torch.arange(count, device=model.device)
    straight = _logits(model, ids, positions)
    poisoned = _logits(model, ids, positions, poisoned=count // 2)
    others = positions != count // 2
    name = f"{type(model).__name__} (model_type {model.config.model_type!r})"
    if straight[others].isfinite().all() and not poisoned[others].isfinite().all():
        raise BackendError(
            f"{name} cannot be run with paged attention: beside its attention calls it mixes neighbouring tokens (a "
            "convolution, say), and in a batch these belong to different requests. If you know better, set "
            "backend_options.check_logits to false"
        )
    moved = _logits(model, ids[order], positions[order])
    spread = (straight - straight.mean(-1, keepdim=True)).norm()
    distance = float((moved - straight[order]).norm() / spread.clamp(min=1e-30))
    if straight.isfinite().all() and not distance <= TOLERANCE[model.dtype]:
        raise BackendError(
            f"{name} cannot be run with paged attention: a token's logits depend on where it stands in the batch "
            f"(distance {distance:.2g} of their spread); its modeling code counts positions by itself instead of "
            "taking position_ids, or mixes neighbouring tokens. If you know better, set backend_options.check_logits "
            "to false"
        )


def _logits(model: Any, ids: torch.Tensor, positions: torch.Tensor, poisoned: int | None = None) -> torch.Tensor:
    """Logits float32[T, vocabulary] of tokens that do not see each other; the embedding of one may be NaN."""

    def poison(module: torch.nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        output = output.clone()
        output[:, poisoned] = torch.nan
        return output

    hooks = [] if poisoned is None else [model.get_input_embeddings().register_forward_hook(poison)]
    try:
        with torch.inference_mode(), attending(OwnToken()):
            logits: torch.Tensor = model(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits[0]
    finally:
        for hook in hooks:
            hook.remove()
    return logits.float()
