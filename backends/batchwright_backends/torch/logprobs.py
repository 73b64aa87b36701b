"""Log-probabilities of sampled tokens: the log softmax of the raw logits, for the rows that want it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from batchwright import TokenLogprobs
from batchwright.batch import SamplingArrays
from batchwright_backends.torch.devices import Device
from batchwright_backends.torch.inputs import Upload


class LogprobsPlan:
    """Which rows want log-probabilities, known before the logits are there.

    Attributes:
        wanted: int32[m]; -1: none, 0: the token's own, above: of so many likeliest tokens beside it.
        rows: int64[w] on the device, those that want any; None: all m.
    """

    def __init__(self, wanted: NDArray[np.int32], upload: Upload) -> None:
        """Takes the wishes of m rows, of which at least one wants any."""
        self.wanted = wanted
        rows = np.flatnonzero(wanted >= 0)
        self.rows = None if len(rows) == len(wanted) else upload.put(rows, np.int64)

    @classmethod
    def of(cls, params: SamplingArrays, upload: Upload) -> LogprobsPlan | None:
        """The plan of a step; None: no row wants any."""
        return cls(params.logprobs, upload) if (params.logprobs >= 0).any() else None


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Of the w rows that want any, on the way to the host.

    Attributes:
        wanted: int32[m], as in the plan.
        own: float32[w], of the sampled tokens.
        rank: int64[w], 1 + the number of tokens that are likelier.
        top_ids: int64[w, most wanted], the likeliest tokens, likeliest first.
        top: float32[w, most wanted], theirs.
    """

    wanted: NDArray[np.int32]
    own: torch.Tensor
    rank: torch.Tensor
    top_ids: torch.Tensor
    top: torch.Tensor

    @classmethod
    def compute(cls, logits: torch.Tensor, tokens: torch.Tensor, plan: LogprobsPlan, device: Device) -> Logprobs:
        """Queue them, and their copy to the host.

        Args:
            logits: [m, vocabulary].
            tokens: int64[m], sampled from them.
            plan: of these m rows.
            device: where they are.
        """
        if plan.rows is not None:
            logits, tokens = logits.index_select(0, plan.rows), tokens.index_select(0, plan.rows)
        x = logits.float()
        total = x.logsumexp(dim=-1, keepdim=True)
        mine = x.gather(-1, tokens[:, None])
        best = x.topk(min(int(plan.wanted.max()), x.shape[-1]), dim=-1)
        return cls(
            wanted=plan.wanted,
            own=device.to_host((mine - total)[:, 0]),
            rank=device.to_host((x > mine).sum(dim=-1) + 1),
            top_ids=device.to_host(best.indices),
            top=device.to_host(best.values - total),
        )

    def read(self) -> list[TokenLogprobs | None]:
        """One for each of the m rows, None where it wants none; when they are on the host."""
        rows = zip(self.own.tolist(), self.rank.tolist(), self.top_ids.tolist(), self.top.tolist(), strict=True)
        out: list[TokenLogprobs | None] = []
        for wanted in self.wanted.tolist():
            if wanted < 0:
                out.append(None)
                continue
            own, rank, ids, values = next(rows)
            out.append(TokenLogprobs(own, rank, tuple(zip(ids[:wanted], values[:wanted], strict=True))))
        return out
