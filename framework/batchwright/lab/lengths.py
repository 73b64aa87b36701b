"""Distributions of prompt and output lengths, of turns, and of seconds."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from batchwright.errors import WorkloadError

FORMS = (
    "N or fixed(N); uniform(LOW,HIGH), both included; lognormal(MEDIAN,SIGMA) or lognormal(MEDIAN,SIGMA,MAX); "
    "exponential(MEAN) or exponential(MEAN,MAX); zipf(EXPONENT,MAX)"
)
FORMS_S = "S or fixed(S); uniform(LOW,HIGH); lognormal(MEDIAN,SIGMA[,MAX]); exponential(MEAN[,MAX])"
_CALL = re.compile(r"([a-z]+)\(([^()]*)\)")
_HIGHEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts of at least 1, or of seconds.

    Attributes:
        kind: ``fixed``, ``uniform``, ``lognormal``, ``exponential`` or ``zipf``.
        values: its parameters: ``(n,)``; ``(low, high)``, both included; ``(median, sigma)`` of the underlying normal,
            with a third value to cut at; ``(mean,)``, with a second to cut at; or ``(exponent, max)``: n has a
            probability that goes with n to the power of -exponent.
    """

    kind: str
    values: tuple[float, ...]

    @classmethod
    def parse(cls, field: str, text: str) -> Lengths:
        """Read ``512``, ``fixed(512)``, ``uniform(16,128)``, ``lognormal(512,0.8)``, ``exponential(200)`` or
        ``zipf(1.2,4096)``.

        Raises:
            WorkloadError: it is none of these, or a parameter is out of its range; names ``field``.
        """
        found = cls._read(text)
        if found is None or not _valid(found.kind, found.values):
            raise WorkloadError(f"{field} is {text!r}; expected {FORMS}, with lengths of at least 1")
        return found

    @classmethod
    def parse_s(cls, field: str, text: str) -> Lengths:
        """The same for seconds of at least 0, which need not be whole.

        Raises:
            WorkloadError: it is none of the forms, or a parameter is out of its range; names ``field``.
        """
        found = cls._read(text)
        if found is None or not _valid_s(found.kind, found.values):
            raise WorkloadError(f"{field} is {text!r}; expected {FORMS_S}, in seconds of at least 0")
        return found

    @classmethod
    def _read(cls, text: str) -> Lengths | None:
        match = _CALL.fullmatch(text if "(" in text else f"fixed({text})")
        try:
            values = tuple(float(v) for v in match[2].split(",")) if match is not None else ()
        except ValueError:
            return None
        return cls(match[1], values) if match is not None and all(map(math.isfinite, values)) else None

    def draw(self, rng: np.random.Generator, num: int) -> NDArray[np.int64]:
        """int64[num] of lengths."""
        if self.kind == "fixed":
            return np.full(num, int(self.values[0]), dtype=np.int64)
        if self.kind == "uniform":
            low, high = map(int, self.values)
            return rng.integers(low, high + 1, size=num)
        if self.kind == "zipf":
            return np.searchsorted(_zipf_shares(*self.values), rng.random(num), side="right") + 1
        return np.clip(np.rint(self._real(rng, num)), 1, self._top(_HIGHEST)).astype(np.int64)

    def draw_s(self, rng: np.random.Generator, num: int) -> NDArray[np.float64]:
        """float64[num] of seconds."""
        if self.kind == "fixed":
            return np.full(num, self.values[0])
        if self.kind == "uniform":
            low, high = self.values
            return rng.uniform(low, high, size=num)
        return np.minimum(self._real(rng, num), self._top(math.inf))

    def _real(self, rng: np.random.Generator, num: int) -> NDArray[np.float64]:
        if self.kind == "exponential":
            return rng.exponential(self.values[0], size=num)
        median, sigma = self.values[:2]
        drawn: NDArray[np.float64] = median * np.exp(sigma * rng.standard_normal(num))
        return drawn

    def _top(self, without: float) -> float:
        bound = self.values[1:] if self.kind == "exponential" else self.values[2:]
        return bound[0] if bound else without

    @property
    def is_one(self) -> bool:
        """Whether it is always 1."""
        return self.kind == "fixed" and self.values == (1.0,)


@lru_cache(maxsize=1)
def _zipf_shares(exponent: float, top: float) -> NDArray[np.float64]:
    """float64[top]: probability of each length or less."""
    weights = np.arange(1, int(top) + 1, dtype=np.float64) ** -exponent
    shares: NDArray[np.float64] = np.cumsum(weights) / weights.sum()
    return shares


def _valid(kind: str, values: tuple[float, ...]) -> bool:
    whole = all(v.is_integer() and v >= 1 for v in values)
    match kind, values:
        case "fixed", (_,):
            return whole
        case "uniform", (low, high):
            return whole and low <= high
        case "lognormal", (median, sigma, *top):
            return median >= 1 and sigma >= 0 and len(top) <= 1 and all(v >= 1 for v in top)
        case "exponential", (mean, *top):
            return mean >= 1 and len(top) <= 1 and all(v >= 1 for v in top)
        case "zipf", (exponent, most):
            return exponent > 0 and most >= 1 and most.is_integer() and most <= 2**24
        case _:
            return False


def _valid_s(kind: str, values: tuple[float, ...]) -> bool:
    if any(v < 0 for v in values):
        return False
    match kind, values:
        case "fixed", (_,):
            return True
        case "uniform", (low, high):
            return low <= high
        case "lognormal", (median, _, *top):
            return median > 0 and len(top) <= 1
        case "exponential", (mean, *top):
            return mean > 0 and len(top) <= 1
        case _:
            return False
