"""When requests of an open loop arrive: a rate, how bursty it is, and how it goes over time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from batchwright.errors import WorkloadError
from batchwright.lab.key_values import key_values
from batchwright.lab.workload import Workload

SHAPES = "steady, constant, onoff(ON_S,OFF_S) or ramp(FROM,TO)"
EXAMPLE = "rate=4,burstiness=0.5,shape=onoff(10,20),seed=1"
_SHAPE = re.compile(r"([a-z]+)(?:\(([^()]*)\))?")


@dataclass(frozen=True, slots=True)
class Shape:
    """How the rate goes over time.

    Attributes:
        kind: ``steady``; ``constant`` (steady, and all gaps are equal); ``onoff`` (requests come for some seconds, then
            none for some); ``ramp`` (from one rate to another, in equal steps of time).
        values: of ``onoff``, both lengths in seconds; of ``ramp``, the rates at start and end, in proportion.
    """

    kind: str = "steady"
    values: tuple[float, ...] = ()

    @classmethod
    def parse(cls, field: str, text: str) -> Shape:
        """Read one of :data:`SHAPES`.

        Raises:
            WorkloadError: it is none of these; names ``field``.
        """
        match = _SHAPE.fullmatch(text)
        try:
            values = tuple(float(v) for v in match[2].split(",")) if match is not None and match[2] else ()
        except ValueError:
            values = (math.nan,)
        good = all(math.isfinite(v) and v >= 0 for v in values)
        match (match[1] if match is not None else ""), values:
            case ("steady" | "constant") as kind, ():
                return cls(kind)
            case "onoff", (on, _) if good and on > 0:
                return cls("onoff", values)
            case "ramp", (begin, end) if good and begin + end > 0:
                return cls("ramp", values)
            case _:
                raise WorkloadError(f"{field} is {text!r}; expected {SHAPES}, with numbers of at least 0")

    def times_s(self, share: NDArray[np.float64], span_s: float) -> NDArray[np.float64]:
        """When arrivals happen that would be at these shares of the span if the rate were steady.

            Arrivals at a steady rate are moved by the inverse of the integral of the rate (Çinlar, Introduction to
        Stochastic Processes, 1975, chapter 4).

        Args:
            share: float64[n] in [0, 1].
            span_s: seconds of the whole.
        """
        if self.kind == "onoff":
            on, off = self.values
            busy = share * (span_s * on / (on + off))
            num_before: NDArray[np.float64] = np.maximum(np.ceil(busy / on) - 1, 0)
            return busy + num_before * off
        if self.kind == "ramp":
            begin, end = self.values
            if begin == end:
                return share * span_s
            # The integral of begin + (end - begin) x from 0 to x, over that to 1, is the share.
            root = np.sqrt(begin * begin + (end * end - begin * begin) * share)
            done: NDArray[np.float64] = (root - begin) / (end - begin)
            return done * span_s
        return share * span_s


STEADY = Shape()


def draw_times(num: int, rate: float, burstiness: float, shape: Shape, rng: np.random.Generator) -> NDArray[np.int64]:
    """int64[num] nanoseconds: arrivals at a mean rate, the last of them at ``num / rate``.

    Gaps are gamma distributed with shape ``burstiness``, so their coefficient of variation is 1 / sqrt(burstiness), and
    are scaled so that seeds differ in pattern, not in load: both as ``vllm bench serve`` does.
    """
    if shape.kind == "constant":
        return _nanoseconds(np.arange(1, num + 1) / num, num, rate, shape)
    gaps = rng.gamma(burstiness, size=num)
    return _nanoseconds(_shares(np.cumsum(gaps), float(gaps.sum())), num, rate, shape)


def draw_times_in_parts(
    num: int, rate: float, burstiness: float, shape: Shape, rng: Callable[[], np.random.Generator], size: int
) -> Iterator[NDArray[np.int64]]:
    """The times of :func:`draw_times`, so many at once; all gaps are in memory only while they are added up.

    Args:
        num, rate, burstiness, shape: as there.
        rng: makes the generator; the same each time.
        size: times of each part but the last.
    """
    is_drawn = shape.kind != "constant"
    total = float(rng().gamma(burstiness, size=num).sum()) if is_drawn else 0.0
    drawn, before = rng(), 0.0
    for first in range(0, num, size):
        here = min(size, num - first)
        if is_drawn:
            gaps = drawn.gamma(burstiness, size=here)
            gaps[0] += before
            sums = np.cumsum(gaps)
            before = float(sums[-1])
            share = _shares(sums, total)
        else:
            share = np.arange(first + 1, first + here + 1) / num
        yield _nanoseconds(share, num, rate, shape)


def _shares(sums: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    # A tiny shape can underflow every gap to 0; then all arrive at the end of the span, in one burst.
    return sums / total if total > 0 else np.ones(len(sums))


def _nanoseconds(share: NDArray[np.float64], num: int, rate: float, shape: Shape) -> NDArray[np.int64]:
    if shape.kind in ("steady", "constant"):
        return np.rint(share * (num / rate * 1e9)).astype(np.int64)
    return np.rint(shape.times_s(np.minimum(share, 1.0), num / rate) * 1e9).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSpec:
    """Arrival times for requests that have none, or others than they have.

    Attributes:
        rate: arrivals a second on average; ``inf`` lets all arrive at once.
        burstiness: shape of the gamma distribution of gaps.
        shape: how the rate goes over time.
        seed: of what is drawn.
    """

    rate: float = 1.0
    burstiness: float = 1.0
    shape: Shape = STEADY
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> ArrivalSpec:
        """Read ``rate=4,burstiness=0.5,shape=onoff(10,20),seed=1``; keys that are left out keep their defaults.

        Raises:
            WorkloadError: a key is unknown or given twice, or a value is out of its range.
        """
        values = key_values(text, "arrivals", EXAMPLE, {f.name: VALUES[f.name] for f in fields(cls)})
        return cls(**values)


def with_arrivals(workload: Workload, spec: ArrivalSpec) -> Workload:
    """The same requests in the same order with new arrival times; rows that wait for others go on waiting."""
    rows = list(workload.held())
    first = [place for place, row in enumerate(rows) if not row.after]
    times = draw_times(len(first), spec.rate, spec.burstiness, spec.shape, np.random.default_rng([spec.seed, 0]))
    for place, when in zip(first, times.tolist(), strict=True):
        rows[place] = replace(rows[place], arrival_ns=when)
    waiting = (replace(row, arrival_ns=0) if row.after else row for row in rows)
    return replace(workload.with_rows(list(waiting)), speedup=1.0)


def _rate(key: str, text: str) -> float:
    return _positive(key, text, "a number above 0, or inf for all at once", endless=True)


def _burstiness(key: str, text: str) -> float:
    return _positive(key, text, "a finite number above 0", endless=False)


def _positive(key: str, text: str, choices: str, *, endless: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0 or (not endless and math.isinf(value)):
        raise WorkloadError(f"{key} is {text!r}; expected {choices}")
    return value


def whole(low: int) -> Callable[[str, str], int]:
    """What reads a whole number of at least ``low``."""

    def read(key: str, text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) >= low):
            raise WorkloadError(f"{key} is {text!r}; expected a whole number of at least {low}")
        return int(text)

    return read


VALUES: dict[str, Callable[[str, str], object]] = {
    "rate": _rate,
    "burstiness": _burstiness,
    "shape": Shape.parse,
    "seed": whole(0),
}
"""What reads the value of each key."""
