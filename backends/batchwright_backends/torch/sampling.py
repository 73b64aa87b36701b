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
# Tokens that are looked at first on CPU, then 16 times as many: of 32 rows of 49,152 that takes 3 and 10 ms, and
# sorting them 33 ms (two cores).
FEW = 256
# Tokens that are looked at together: summed in a draw, compared for the largest logit.
CHUNK = 256


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
    tokens = _largest(logits)
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


def _largest(logits: torch.Tensor) -> torch.Tensor:
    """int64[m]: the token of each row's largest logit, of several the lowest id.

    On CPU in two steps, a chunk of tokens and a token of it: the largest value of a stretch is found several times as
    fast as where it is. ``argmax`` takes even longer on bfloat16.
    """
    vocabulary = logits.shape[-1]
    whole = vocabulary // CHUNK * CHUNK
    if not _is_cpu(logits) or not whole:
        return logits.max(dim=-1).indices
    chunks = logits[:, :whole].view(len(logits), whole // CHUNK, CHUNK).amax(dim=-1)
    if whole < vocabulary:
        chunks = torch.cat((chunks, logits[:, whole:].amax(dim=-1, keepdim=True)), dim=-1)
    chunk = chunks.max(dim=-1, keepdim=True).indices
    ids = (chunk * CHUNK + torch.arange(CHUNK)).clamp_(max=vocabulary - 1)
    return ids.gather(-1, logits.gather(-1, ids).max(dim=-1, keepdim=True).indices)[:, 0]


def _draw(logits: torch.Tensor, plan: SamplingPlan) -> torch.Tensor:
    """Tokens of the rows that are not greedy; ``logits`` holds these rows only."""
    # One copy, changed in place: each further one of this size costs more than the computation.
    weights = logits.to(torch.float32, copy=True)
    # Relative to the likeliest token: 1 for it, so never all zero, whatever the temperature.
    weights.sub_(weights.amax(dim=-1, keepdim=True)).div_(plan.temperature).exp_()
    if plan.min_p is not None:
        weights.masked_fill_(weights < plan.min_p, 0.0)
    if plan.kept is not None:
        weights = _filtered(weights, plan.kept, plan.most_kept, plan.top_p)
    return _first_past(weights, plan.uniform)


def _first_past(weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """int64[d]: where the running sum of each row's weights first exceeds that share of their total.

    In two steps, a chunk of tokens and a token of it: a running sum over the whole vocabulary in float64 takes several
    times as long, and twice the memory of the weights.
    """
    vocabulary = weights.shape[-1]
    whole = vocabulary // CHUNK * CHUNK
    chunks = weights[:, :whole].view(len(weights), whole // CHUNK, CHUNK).sum(dim=-1)
    if whole < vocabulary:
        chunks = torch.cat((chunks, weights[:, whole:].sum(dim=-1, keepdim=True)), dim=-1)
    sums = chunks.cumsum(dim=-1, dtype=torch.float64)
    target = _below(share * sums[:, -1:], sums[:, -1:])
    chunk = torch.searchsorted(sums, target, right=True).clamp_(max=chunks.shape[-1] - 1)
    before = sums.gather(-1, chunk) - chunks.gather(-1, chunk)
    ids = chunk * CHUNK + torch.arange(CHUNK, device=weights.device)
    inside = weights.gather(-1, ids.clamp(max=vocabulary - 1)).masked_fill_(ids >= vocabulary, 0.0)
    sums = inside.cumsum(dim=-1, dtype=torch.float64)
    target = _below((target - before).clamp_(min=0.0), sums[:, -1:])
    token = chunk * CHUNK + torch.searchsorted(sums, target, right=True)
    return token[:, 0].clamp_(max=vocabulary - 1)


def _below(value: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
    """Strictly below the bound, so that a search ends at something with weight."""
    return torch.minimum(value, torch.nextafter(bound, torch.zeros_like(bound)))


def _filtered(weights: torch.Tensor, kept: torch.Tensor, most_kept: int, top_p: torch.Tensor | None) -> torch.Tensor:
    """Weights with zeros for all but the likeliest tokens of each row: as many as ``kept`` says, then ``top_p``."""
    last, kept = _limits(weights, kept.clamp(max=weights.shape[-1]), most_kept, top_p)
    keep = weights >= last
    # Of tokens that share the last weight, only as many as there is room for. On CPU it pays to look whether any row
    # has such; elsewhere looking would wait for all that is queued.
    if not _is_cpu(weights) or bool((keep.sum(dim=-1, keepdim=True, dtype=torch.int32) > kept).any()):
        equal = weights == last
        room = kept - (keep & ~equal).sum(dim=-1, keepdim=True)
        keep &= ~equal | (equal.cumsum(dim=-1, dtype=torch.int32) <= room)  # the lowest ids
    return weights * keep


def _limits(
    weights: torch.Tensor, kept: torch.Tensor, most_kept: int, top_p: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each row the weight of the last token that stays, and how many stay: [d, 1] both."""
    vocabulary = weights.shape[-1]
    # Where few are wanted of every row, picking them takes a tenth of sorting all.
    if most_kept * 64 <= vocabulary:
        return _last(weights.topk(most_kept, dim=-1).values, kept, top_p, None)
    if not _is_cpu(weights):
        return _last(_descending(weights), kept, top_p, None)
    return _limits_in_steps(weights, kept, top_p, FEW)


def _limits_in_steps(
    weights: torch.Tensor, kept: torch.Tensor, top_p: torch.Tensor | None, few: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`_limits`: rows without ``top_k`` most often reach ``top_p`` within a few tokens, so only those that do
    not are looked at further, and sorted in the end.
    """
    vocabulary = weights.shape[-1]
    if few * 4 > vocabulary:
        return _last(_descending(weights), kept, top_p, None)
    best = weights.topk(few, dim=-1).values
    last, stay = _last(best, kept, top_p, weights.sum(dim=-1, keepdim=True, dtype=torch.float64))
    everything = stay == vocabulary
    last = last.masked_fill(everything, 0.0)
    # The share of a row is known if it is of all tokens, or of no more than these.
    unknown = (stay > few) & ~everything | (kept > few) & (kept < vocabulary)
    others = unknown[:, 0].nonzero()[:, 0]
    if others.numel():
        p = None if top_p is None else top_p[others]
        last[others], stay[others] = _limits_in_steps(weights[others], kept[others], p, few * 16)
    return last, stay


def _last(
    best: torch.Tensor, kept: torch.Tensor, top_p: torch.Tensor | None, total: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`_limits`, of the largest weights in order; ``total`` is that of rows of which more are kept."""
    width = best.shape[-1]
    if top_p is not None:
        sums = best.cumsum(dim=-1, dtype=torch.float64)
        share = sums.gather(-1, kept.clamp(max=width) - 1)
        if total is not None:
            share = torch.where(kept > width, total, share)
        reaching = (sums < top_p * share).sum(dim=-1, keepdim=True) + 1
        kept = torch.where(top_p < 1, torch.minimum(kept, reaching), kept)
    return best.gather(-1, kept.clamp(max=width) - 1), kept


def _descending(weights: torch.Tensor) -> torch.Tensor:
    """Each row sorted, the largest first. On CPU by numpy, whose sort is vectorized."""
    if _is_cpu(weights):
        return torch.from_numpy(np.sort(weights.numpy(), axis=-1)[:, ::-1].copy())
    return weights.sort(dim=-1, descending=True).values


def _is_cpu(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"
