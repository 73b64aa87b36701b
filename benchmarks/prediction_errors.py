"""How far a predicted run is from a measured one: mean and percentiles of latencies, and the total time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchwright.lab import RunRecord
from batchwright.lab.samples import latency_samples
from batchwright_backends.sim.request_log import RequestLog

Floats = NDArray[np.float64]

STATISTICS: dict[str, Callable[[Floats], float]] = {
    "mean": lambda values: float(values.mean()),
    **{f"p{p}": lambda values, p=p: float(np.percentile(values, p)) for p in (50, 90, 95, 99)},  # type: ignore[misc]
}
LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL"}
TOTAL = "total"


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of one run; a value for each request that finished.

    Attributes:
        ttft, tpot, e2el: float64[n], seconds; TPOT without requests of one output token.
        total_s: from the first arrival to the last token.
    """

    ttft: Floats
    tpot: Floats
    e2el: Floats
    total_s: float

    @classmethod
    def of_run(cls, run: RunRecord) -> Latencies:
        """Of a run of Batchwright."""
        samples = latency_samples(run)
        last = max(r.token_times_ns[-1] for r in run.requests if len(r.token_times_ns))
        first = min(r.arrival_ns for r in run.requests)
        ttft, tpot, e2el = (samples[name].values / 1e3 for name in LATENCIES)
        return cls(ttft, tpot, e2el, (last - first) / 1e9)

    @classmethod
    def of_log(cls, log: RequestLog) -> Latencies:
        """Of a run of vLLM, by the same definitions; its requests arrive when the scheduler has queued them."""
        requests = log.requests
        last = max(r.last_token_s for r in requests)
        return cls(
            np.array([r.ttft_s for r in requests]),
            np.array([r.tpot_s for r in requests if r.tpot_s is not None]),
            np.array([r.e2e_s for r in requests]),
            last - min(r.arrival_s for r in requests),
        )


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a run, measured and predicted, in seconds.

    Attributes:
        latency: ``ttft``, ``tpot``, ``e2el`` or ``total``.
        statistic: ``mean``, ``p50`` and so on; empty for ``total``.
        measured, predicted: seconds.
        lowest, highest: of the predictions whose steps had a little noise, seconds; None: there were none.
    """

    latency: str
    statistic: str
    measured: float
    predicted: float
    lowest: float | None = None
    highest: float | None = None

    @property
    def error(self) -> float:
        """Relative; above 0: predicted too long."""
        return self.predicted / self.measured - 1

    @property
    def spread(self) -> tuple[float, float] | None:
        """Least and largest relative error of the predictions with noise."""
        if self.lowest is None or self.highest is None:
            return None
        return self.lowest / self.measured - 1, self.highest / self.measured - 1

    @property
    def label(self) -> str:
        """For tables."""
        return f"{LATENCIES[self.latency]} {self.statistic}" if self.latency in LATENCIES else "total time"

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        values = {"measured_s": self.measured, "predicted_s": self.predicted, "error": self.error}
        if self.spread is not None:
            values |= {"least_error": self.spread[0], "largest_error": self.spread[1]}
        return {"figure": self.label, **{name: float(f"{value:.4g}") for name, value in values.items()}}


def figures(measured: Latencies, predicted: Latencies) -> list[Figure]:
    """Each statistic of each latency, and the total time."""
    found = [
        Figure(latency, name, statistic(getattr(measured, latency)), statistic(getattr(predicted, latency)))
        for latency in LATENCIES
        for name, statistic in STATISTICS.items()
    ]
    return [*found, Figure(TOTAL, "", measured.total_s, predicted.total_s)]


def with_spread(found: Sequence[Figure], others: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Figures of a prediction, and how far those of predictions with noise lie apart.

    Args:
        found: of the prediction.
        others: of each prediction with noise; at least one.
    """
    columns = zip(*others, strict=True)
    return [
        replace(figure, lowest=min(o.predicted for o in column), highest=max(o.predicted for o in column))
        for figure, column in zip(found, columns, strict=True)
    ]


def worst(found: Iterable[Figure]) -> Figure:
    """The one that is furthest off."""
    return max(found, key=lambda figure: abs(figure.error))


def table(columns: dict[str, list[Figure]]) -> str:
    """A row for each figure: measured, and of each prediction its value, its error and what noise makes of that.

    Args:
        columns: figures of one measured run by the name of the prediction.
    """
    heads = "".join(
        f"{name:>14}{'error':>8}{'with noise' if _noisy(found) else '':>16}" for name, found in columns.items()
    )
    lines = [f"{'':11}{'measured':>10}{heads}".rstrip()]
    for row in zip(*columns.values(), strict=True):
        cells = "".join(f"{_time(figure.predicted):>14}{_error(figure)}" for figure in row)
        lines.append(f"{row[0].label:11}{_time(row[0].measured):>10}{cells}".rstrip())
    furthest = [worst(figures) for figures in columns.values()]
    cells = "".join(f"{figure.label:>14}{_error(figure)}" for figure in furthest)
    lines.append(f"{'worst':21}{cells}".rstrip())
    return "\n".join(lines)


def _noisy(found: Sequence[Figure]) -> bool:
    return any(figure.spread is not None for figure in found)


def _error(figure: Figure) -> str:
    spread = figure.spread
    said = "" if spread is None else f"[{100 * spread[0]:+.1f}, {100 * spread[1]:+.1f}]"
    return f"{100 * figure.error:>+7.1f}%{said:>16}"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.2f} ms"
