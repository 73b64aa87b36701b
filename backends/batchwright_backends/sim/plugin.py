"""What this package brings: the backend ``sim``."""

from __future__ import annotations

from collections.abc import Mapping

from batchwright.backend import Backend, BackendEntry, BackendSettings
from batchwright.calibration import CalibrationReport, CalibrationSettings
from batchwright.hookspecs import hookimpl
from batchwright_backends.sim import SYNTAX


def _create(settings: BackendSettings) -> Backend:
    from batchwright_backends.sim.backend import SimBackend

    return SimBackend(settings)


def _calibrate(settings: CalibrationSettings) -> CalibrationReport:
    from batchwright_backends.sim.calibrator import calibrate_simulator

    return calibrate_simulator(settings)


@hookimpl
def register_backends() -> Mapping[str, BackendEntry]:
    """The simulator, by its name."""
    return {
        "sim": BackendEntry(
            create=_create,
            summary="simulates a model on a GPU: a roofline cost model on a virtual clock, deterministic",
            syntax=SYNTAX,
            calibrate=_calibrate,
            virtual_time=True,
        )
    }
