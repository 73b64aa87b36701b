"""From logits to tokens, on the device.

A draw is one number in [0, 1), hashed from the request's seed and the place of the token in its output; the token is
where the running sum of the probabilities, in the order of token ids, first exceeds it. So neither the other rows of
the batch, nor a preemption, nor the device has a say in it.

What a step needs is brought to the device before its logits are there (:class:`SamplingPlan`); from then on nothing
waits for the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from batchwright.batch import SamplingArrays
from batchwright_backends.torch.inputs import Upload

# Below this a temperature is greedy: the quotients would leave float32 for nothing.
GREEDY_BELOW = 1e-5
# More tokens than any vocabulary has.
ALL = np.iinfo(np.int64).max


class SamplingPlan:
    """How each row's token is chosen, with all numbers on the device.

    Attributes:
        num_rows: m.
        rows: int64[d], those that are drawn; None: all m, or none.
        num_drawn: d.
        temperature: float32[d, 1].
        uniform: float64[d, 1], in [0, 1).
        min_p: float32[d, 1]; None: nobody has one.
        top_p: float32[d, 1]; None: nobody has one.
        kept: int64[d, 1], ``top_k``; None: there is neither that nor ``top_p``.
        most_kept: the largest of ``kept``.
    """

    def __init__(self, params: SamplingArrays, upload: Upload) -> None:
        """Takes the parameters of m rows."""
        drawn = np.flatnonzero(params.temperature >= GREEDY_BELOW)
        self.num_rows = len(params.temperature)
        self.num_drawn = len(drawn)
        self.rows = self.min_p = self.top_p = self.kept = None
        if not drawn.size:
            return
        if drawn.size < self.num_rows:
            self.rows = upload.put(drawn, np.int64)

        def column(values: NDArray[Any]) -> torch.Tensor:
            return upload.put(values[drawn][:, None])

        self.temperature = column(params.temperature)
        self.uniform = upload.put(uniform(params.seed[drawn], params.output_index[drawn])[:, None])
        if (params.min_p[drawn] > 0).any():
            self.min_p = column(params.min_p)
        if (params.top_p[drawn] < 1).any():
            self.top_p = column(params.top_p)
        top_k = params.top_k[drawn].astype(np.int64)
        if self.top_p is not None or (top_k > 0).any():
            kept = np.where(top_k > 0, top_k, ALL)
            self.most_kept = int(kept.max())
            self.kept = upload.put(kept[:, None])


def sample(logits: torch.Tensor, plan: SamplingPlan) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row.

    The order is that of vLLM: temperature, then ``min_p``, ``top_k``, ``top_p``, each over what the one before left.
    Among tokens of equal probability the lower id is the likelier one.

    Args:
        logits: [m, vocabulary].
        plan: of these m rows.

    Returns:
        int64[m], the tokens; and bool[m], rows whose logits are all finite. The others' tokens mean nothing, but are
        in the vocabulary.
    """
    # A sum is finite only if every addend is, and costs one pass.
    finite = logits.sum(dim=-1, dtype=torch.float32).isfinite()
    if plan.num_drawn == plan.num_rows:
        return _draw(logits, plan), finite
    tokens = logits.max(dim=-1).indices  # argmax takes several times as long on bfloat16
    if plan.rows is not None:
        tokens = tokens.index_copy(0, plan.rows, _draw(logits.index_select(0, plan.rows), plan))
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


def _draw(logits: torch.Tensor, plan: SamplingPlan) -> torch.Tensor:
    """Tokens of the rows that are not greedy; ``logits`` holds these rows only."""
    x = logits.float()
    # Weights relative to the likeliest token: 1 for it, so never all zero, whatever the temperature.
    weights = (x - x.amax(dim=-1, keepdim=True)).div_(plan.temperature).exp_()
    if plan.min_p is not None:
        weights.masked_fill_(weights < plan.min_p, 0.0)
    if plan.kept is not None:
        weights = _filtered(weights, plan.kept, plan.most_kept, plan.top_p)
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    total = sums[:, -1:]
    # Strictly below the total, so that the search ends at a token with weight.
    target = torch.minimum(plan.uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(sums, target, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)


def _filtered(weights: torch.Tensor, kept: torch.Tensor, most_kept: int, top_p: torch.Tensor | None) -> torch.Tensor:
    """Weights with zeros for all but the likeliest tokens of each row: as many as ``kept`` says, then ``top_p``."""
    vocabulary = weights.shape[-1]
    kept, width = kept.clamp(max=vocabulary), min(most_kept, vocabulary)
    # Where few are wanted of every row, picking them takes a tenth of sorting all.
    best = weights.topk(width, dim=-1).values if width * 64 <= vocabulary else _descending(weights)
    if top_p is not None:
        sums = best.cumsum(dim=-1, dtype=torch.float64)
        reaching = (sums < top_p * sums.gather(-1, kept - 1)).sum(dim=-1, keepdim=True) + 1
        kept = torch.where(top_p < 1, torch.minimum(kept, reaching), kept)

    # Down to the weight of the last token kept; of those that share it, only as many as there is room for.
    last = best.gather(-1, kept - 1)
    keep = weights >= last
    # On CPU it pays to look whether any row has such; elsewhere looking would wait for all that is queued.
    if weights.device.type != "cpu" or bool((keep.sum(dim=-1, keepdim=True, dtype=torch.int32) > kept).any()):
        equal = weights == last
        room = kept - (keep & ~equal).sum(dim=-1, keepdim=True)
        keep &= ~equal | (equal.cumsum(dim=-1, dtype=torch.int32) <= room)  # the lowest ids
    return weights * keep


def _descending(weights: torch.Tensor) -> torch.Tensor:
    """Each row sorted, the largest first. On CPU by numpy, whose sort is vectorized."""
    if weights.device.type == "cpu":
        return torch.from_numpy(np.sort(weights.numpy(), axis=-1)[:, ::-1].copy())
    return weights.sort(dim=-1, descending=True).values
