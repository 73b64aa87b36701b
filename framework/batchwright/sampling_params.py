"""How the tokens of one request are chosen, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from batchwright.errors import InvalidRequestError

MAX_LOGPROBS = 20
"""Likeliest tokens that a request may ask for, as vLLM's default ``max_logprobs``."""


def _whole(name: str, value: object, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InvalidRequestError(f"{name} must be a whole number of at least {low}, not {value!r}")


def _number(name: str, value: object, allowed: str, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise InvalidRequestError(f"{name} must be a number in {allowed}, not {value!r}")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping rules of one request.

    Attributes:
        max_tokens: output tokens at most, at least 1.
        temperature: 0 is greedy; otherwise logits are divided by it, at most 100.
        top_k: sample among this many likeliest tokens only, below 2^31; None for all.
        top_p: sample among the likeliest tokens whose probabilities first reach this sum; in (0, 1].
        min_p: leave out tokens less likely than this share of the likeliest; in [0, 1).
        seed: of this request's draws, below 2^64; None derives one from the engine's seed and the request id.
            A draw depends on seed and output position alone, so batching and preemption change no token.
        stop: strings that end the request when they appear in its text; they are not part of the output.
        stop_token_ids: further token ids that end the request.
        ignore_eos: go on past the model's end-of-sequence tokens.
        logprobs: log-probabilities that come with each output token: None for none, 0 for the token's own, up to 20
            for those of so many likeliest tokens beside it. They are of the model's own distribution, before
            temperature and filters: see :class:`TokenLogprobs`.

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
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, 1)
        _number("temperature", self.temperature, "[0, 100]", 0, 100)
        if self.top_k is not None:
            if isinstance(self.top_k, int) and self.top_k in (0, -1):
                raise InvalidRequestError(f"top_k must be at least 1, or None for all tokens, not {self.top_k}")
            _whole("top_k", self.top_k, 1)
            if self.top_k >= 2**31:
                raise InvalidRequestError(f"top_k must be below 2^31, or None for all tokens, not {self.top_k}")
        _number("top_p", self.top_p, "(0, 1]", math.nextafter(0, 1), 1)
        _number("min_p", self.min_p, "[0, 1)", 0, math.nextafter(1, 0))
        if self.seed is not None:
            _whole("seed", self.seed, 0)
            if self.seed >= 2**64:
                raise InvalidRequestError(f"seed must be below 2^64, not {self.seed}")
        if self.logprobs is not None:
            _whole("logprobs", self.logprobs, 0)
            if self.logprobs > MAX_LOGPROBS:
                raise InvalidRequestError(
                    f"logprobs must be at most {MAX_LOGPROBS}, or None for none, not {self.logprobs}"
                )
        object.__setattr__(self, "stop", self._strings(self.stop))
        object.__setattr__(self, "stop_token_ids", self._tokens(self.stop_token_ids))

    @staticmethod
    def _strings(stop: object) -> tuple[str, ...]:
        many = () if stop is None else (stop,) if isinstance(stop, str) else stop
        strings = tuple(many) if isinstance(many, Iterable) else (many,)
        good = tuple(s for s in strings if isinstance(s, str) and s)
        if len(good) != len(strings):
            raise InvalidRequestError(f"stop must be a non-empty string or some of them, not {stop!r}")
        return good

    @staticmethod
    def _tokens(token_ids: object) -> tuple[int, ...]:
        many = () if token_ids is None else token_ids
        if not isinstance(many, Iterable) or isinstance(many, (str, bytes)):
            raise InvalidRequestError(f"stop_token_ids must be token ids, not {token_ids!r}")
        for token in (many := tuple(many)):
            _whole("stop_token_ids", token, 0)
        return many
