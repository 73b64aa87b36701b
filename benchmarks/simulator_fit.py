"""The simulator fitted to measurements, by the same code as ``batchwright calibrate``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from batchwright.calibration import CalibrationSettings
from batchwright.plugins import load_plugins


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted simulator.

    Attributes:
        target: of a backend: ``sim:TARGET``.
        said: what was fitted on what, and the residuals on what no fit saw, in sentences.
        extrapolates: where it goes beyond the measurements, in sentences.
    """

    target: str
    said: Sequence[str]
    extrapolates: Sequence[str]


def fit_simulator(source: Path, base: str | None, out: Path) -> Fit:
    """Fit the simulator to measurements.

    Args:
        source: a file or folder that ``batchwright calibrate`` takes.
        base: the target to start from; None: as the measurements say.
        out: the YAML file to write.

    Raises:
        ConfigError: the measurements cannot be read, or do not tell enough.
    """
    calibrate = load_plugins().backend("sim").calibrate
    assert calibrate is not None
    report = calibrate(CalibrationSettings(source, base))
    out.write_text(report.text, encoding="utf-8")
    held_out = [f"held out, {regime}: {found}" for regime, found in report.held_out.items()]
    return Fit(str(out), [*report.notes, *held_out], list(report.extrapolates))
