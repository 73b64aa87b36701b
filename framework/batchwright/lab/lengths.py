"""Distributions of prompt and output lengths."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from batchwright.errors import WorkloadError

FORMS = "N or fixed(N); uniform(LOW,HIGH), both included; lognormal(MEDIAN,SIGMA) or lognormal(MEDIAN,SIGMA,MAX)"
_CALL = re.compile(r"([a-z]+)\(([^()]*)\)")


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts of at least 1.

    Attributes:
        kind: ``fixed``, ``uniform`` or ``lognormal``.
        values: its parameters: ``(n,)``; ``(low, high)``, both included; or ``(median, sigma)`` of the underlying
            normal, with a third value to cut at.
    """

    kind: str
    values: tuple[float, ...]

    @classmethod
    def parse(cls, field: str, text: str) -> Lengths:
        """Read ``512``, ``fixed(512)``, ``uniform(16,128)`` or ``lognormal(512,0.8)``.

        Raises:
            WorkloadError: it is none of these, or a parameter is out of its range; names ``field``.
        """
        found = _CALL.fullmatch(text if "(" in text else f"fixed({text})")
        try:
            if found is None:
                raise ValueError
            kind, values = found[1], tuple(float(v) for v in found[2].split(","))
        except ValueError:
            raise _wrong(field, text) from None
        if not _valid(kind, values):
            raise _wrong(field, text)
        return cls(kind, values)

    def draw(self, rng: np.random.Generator, num: int) -> NDArray[np.int64]:
        """int64[num] of lengths."""
        if self.kind == "fixed":
            return np.full(num, int(self.values[0]), dtype=np.int64)
        if self.kind == "uniform":
            low, high = map(int, self.values)
            return rng.integers(low, high + 1, size=num)
        median, sigma, *top = self.values
        drawn = np.rint(median * np.exp(sigma * rng.standard_normal(num)))
        return np.clip(drawn, 1, top[0] if top else 2**31 - 1).astype(np.int64)


def _valid(kind: str, values: tuple[float, ...]) -> bool:
    if not all(map(math.isfinite, values)):
        return False
    whole = all(v.is_integer() and v >= 1 for v in values)
    match kind, values:
        case "fixed", (_,):
            return whole
        case "uniform", (low, high):
            return whole and low <= high
        case "lognormal", (median, sigma, *top):
            return median >= 1 and sigma >= 0 and len(top) <= 1 and all(v >= 1 for v in top)
        case _:
            return False


def _wrong(field: str, text: str) -> WorkloadError:
    return WorkloadError(f"{field} is {text!r}; expected {FORMS}, with lengths of at least 1")
