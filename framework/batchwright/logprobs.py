"""Log-probabilities of sampled tokens, as a backend gives them and a caller gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from batchwright.errors import BackendError
from batchwright.request import Request


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a sampled token was, and which tokens were likeliest in its place.

    They are of the model's own distribution: the log softmax of its raw logits, before temperature, top-k, top-p and
    min-p (vLLM's default, ``raw_logprobs``).

    Attributes:
        logprob: natural logarithm of the sampled token's probability.
        rank: 1 + the number of tokens that were likelier than the sampled one.
        top: the likeliest tokens with their log-probabilities, likeliest first; as many as the request asked for (or as
            the vocabulary has). The sampled token is among them only where its rank puts it there.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


def keep_logprobs(rows: Sequence[Request | None], logprobs: Sequence[TokenLogprobs | None] | None) -> None:
    """Give each row that samples its token's log-probabilities, where its request wants them.

    Args:
        rows: those that sample, in batch order; None in the place of one whose token is not used.
        logprobs: one for each of them; None: the backend gave none.

    Raises:
        BackendError: a row lacks what its request wants; nothing was touched.
    """
    wanting = [(place, r) for place, r in enumerate(rows) if r is not None and r._logprobs is not None]
    for place, request in wanting:
        given = logprobs[place] if logprobs is not None else None
        if not isinstance(given, TokenLogprobs):
            raise BackendError(
                f"request {request.request_id!r} wants log-probabilities, and the backend gave {given!r} for its "
                "token; StepResult.logprobs takes a TokenLogprobs for each such row"
            )
    for place, request in wanting:
        assert request._logprobs is not None and logprobs is not None
        given = logprobs[place]
        assert given is not None
        request._logprobs.append(given)
