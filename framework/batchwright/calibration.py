"""What a backend's estimates of time can be fitted to, and what such a fit answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class CalibrationSettings:
    """What is to be fitted to what.

    Attributes:
        source: the measurements: a file or a folder; the backend says which it can read.
        base: the target that the fit starts from, as in ``sim:TARGET``; what the measurements do not show keeps its
            values. None: the backend finds one in the measurements, or says that it needs one.
        options: further ones, by name; the backend refuses what it does not know.
        more: further measurements of the same kind.
    """

    source: Path
    base: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    more: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Residual:
    """Relative errors of predicted times.

    Attributes:
        num_rows: how many were judged.
        mean: of the absolute errors; 0.04 is 4%.
        p90: 90th percentile of the absolute errors.
        bias: mean of the signed errors; above 0: predicted too slow.
    """

    num_rows: int
    mean: float
    p90: float
    bias: float

    def __str__(self) -> str:
        return (
            f"mean {100 * self.mean:.1f}%, p90 {100 * self.p90:.1f}%, bias {100 * self.bias:+.1f}%, "
            f"{self.num_rows} rows"
        )


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """What a fit gave.

    Attributes:
        held_out: residual by regime, on what no fit saw.
        fitted: residual by regime, on what was fitted.
        notes: what it was fitted on, and with what it started, in sentences.
        extrapolates: where its predictions go beyond the measurements, in sentences.
        text: a file that the backend takes as its target.
    """

    held_out: Mapping[str, Residual]
    fitted: Mapping[str, Residual]
    notes: Sequence[str]
    extrapolates: Sequence[str]
    text: str
