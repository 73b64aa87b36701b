"""From logits to tokens, on the device.

A draw is one number in [0, 1), hashed from the request's seed and the place of the token in its output; the token is
where the running sum of the probabilities, in the order of token ids, first exceeds it. So neither the other rows of
the batch, nor a preemption, nor the device has a say in it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from batchwright.batch import SamplingArrays

# Below this a temperature is greedy: the quotients would leave float32 for nothing.
GREEDY_BELOW = 1e-5


def sample(logits: torch.Tensor, params: SamplingArrays) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row.

    The order is that of vLLM: temperature, then ``min_p``, ``top_k``, ``top_p``, each over what the one before left.
    Among tokens of equal probability the lower id is the likelier one.

    Args:
        logits: [m, vocabulary].
        params: of these m rows.

    Returns:
        int64[m], the tokens; and bool[m], rows whose logits are all finite. The others' tokens mean nothing.
    """
    # A sum is finite only if every addend is, and costs one pass.
    finite = logits.sum(dim=-1, dtype=torch.float32).isfinite()
    drawn = np.flatnonzero(params.temperature >= GREEDY_BELOW)
    if drawn.size == len(params.temperature):
        return _draw(logits, params, drawn), finite
    tokens = logits.max(dim=-1).indices  # argmax takes several times as long on bfloat16
    if drawn.size:
        rows = torch.from_numpy(drawn).to(logits.device)
        tokens = tokens.index_copy(0, rows, _draw(logits.index_select(0, rows), params, drawn))
    return tokens, finite


def uniform(seed: NDArray[np.uint64], index: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in [0, 1), each a function of its seed and index alone.

    The mixer is SplitMix64's (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014); the seed goes
    through it first, so that neighbouring seeds do not walk the same sequence.
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    mixed = _mix(_mix(seed.astype(np.uint64) + step) + step * (index.astype(np.uint64) + np.uint64(1)))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _draw(logits: torch.Tensor, params: SamplingArrays, rows: NDArray[np.intp]) -> torch.Tensor:
    """Tokens of the rows that are not greedy; ``logits`` holds these rows only."""

    def column(values: NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(values[rows]).to(logits.device)[:, None]

    x = logits.float()
    # Weights relative to the likeliest token: 1 for it, so never all zero, whatever the temperature.
    weights = (x - x.amax(dim=-1, keepdim=True)).div_(column(params.temperature)).exp_()
    if (params.min_p[rows] > 0).any():
        weights.masked_fill_(weights < column(params.min_p), 0.0)
    top_k, top_p = params.top_k[rows], params.top_p[rows]
    if (top_k > 0).any() or (top_p < 1).any():
        weights = _filtered(weights, top_k, top_p)
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    total = sums[:, -1:]
    u = torch.from_numpy(uniform(params.seed[rows], params.output_index[rows])).to(logits.device)[:, None]
    # Strictly below the total, so that the search ends at a token with weight.
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, target, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)


def _filtered(weights: torch.Tensor, top_k: NDArray[np.int32], top_p: NDArray[np.float32]) -> torch.Tensor:
    """Weights with zeros for all but the likeliest tokens of each row: ``top_k`` (0: all), then ``top_p``."""
    vocabulary = weights.shape[-1]
    limit = np.where(top_k > 0, np.minimum(top_k, vocabulary), vocabulary)
    kept = torch.from_numpy(limit.astype(np.int64)).to(weights.device)[:, None]  # tokens that stay
    width = int(limit.max())
    # Where few are wanted of every row, picking them takes a tenth of sorting all.
    best = weights.topk(width, dim=-1).values if width * 64 <= vocabulary else _descending(weights)
    if (top_p < 1).any():
        p = torch.from_numpy(top_p).to(weights.device)[:, None]
        sums = best.cumsum(dim=-1, dtype=torch.float64)
        reaching = (sums < p * sums.gather(-1, kept - 1)).sum(dim=-1, keepdim=True) + 1
        kept = torch.where(p < 1, torch.minimum(kept, reaching), kept)

    # Down to the weight of the last token kept; of those that share it, only as many as there is room for.
    last = best.gather(-1, kept - 1)
    keep = weights >= last
    if bool((keep.sum(dim=-1, keepdim=True, dtype=torch.int32) > kept).any()):
        equal = weights == last
        room = kept - (keep & ~equal).sum(dim=-1, keepdim=True)
        keep &= ~equal | (equal.cumsum(dim=-1, dtype=torch.int32) <= room)  # the lowest ids
    return weights * keep


def _descending(weights: torch.Tensor) -> torch.Tensor:
    """Each row sorted, the largest first. On CPU by numpy, whose sort is vectorized."""
    if weights.device.type == "cpu":
        return torch.from_numpy(np.sort(weights.numpy(), axis=-1)[:, ::-1].copy())
    return weights.sort(dim=-1, descending=True).values
