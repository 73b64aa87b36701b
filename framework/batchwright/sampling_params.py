"""How the tokens of one request are chosen, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from batchwright.errors import InvalidRequestError


def _whole(name: str, value: object, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InvalidRequestError(f"{name} must be a whole number of at least {low}, not {value!r}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping rules of one request.

    Attributes:
        max_tokens: output tokens at most, at least 1.
        temperature: 0 is greedy; otherwise logits are divided by it, at most 100.
        top_k: sample among this many likeliest tokens only; None for all.
        top_p: sample among the likeliest tokens whose probabilities first reach this sum; in (0, 1].
        min_p: leave out tokens less likely than this share of the likeliest; in [0, 1).
        seed: of this request's draws; None derives one from the engine's seed and the request id.
            A draw depends on seed and output position alone, so batching and preemption change no token.
        stop: strings that end the request when they appear in its text; they are not part of the output.
        stop_token_ids: further token ids that end the request.
        ignore_eos: go on past the model's end-of-sequence tokens.

    Raises:
        InvalidRequestError: a field is out of its range.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: Sequence[str] = field(default=())
    stop_token_ids: Sequence[int] = field(default=())
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, 1)
        if isinstance(self.temperature, bool) or not isinstance(self.temperature, (int, float)):
            raise InvalidRequestError(f"temperature must be a number in [0, 100], not {self.temperature!r}")
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 100):
            raise InvalidRequestError(f"temperature must be in [0, 100], not {self.temperature!r}")
        if self.top_k is not None:
            if isinstance(self.top_k, int) and self.top_k in (0, -1):
                raise InvalidRequestError(f"top_k must be at least 1, or None for all tokens, not {self.top_k}")
            _whole("top_k", self.top_k, 1)
        if not 0 < self.top_p <= 1:
            raise InvalidRequestError(f"top_p must be in (0, 1], not {self.top_p!r}")
        if not 0 <= self.min_p < 1:
            raise InvalidRequestError(f"min_p must be in [0, 1), not {self.min_p!r}")
        if self.seed is not None:
            _whole("seed", self.seed, 0)
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if any(not isinstance(s, str) or not s for s in stop):
            raise InvalidRequestError(f"stop must hold non-empty strings, not {self.stop!r}")
        object.__setattr__(self, "stop", stop)
        for token in self.stop_token_ids:
            _whole("stop_token_ids", token, 0)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
